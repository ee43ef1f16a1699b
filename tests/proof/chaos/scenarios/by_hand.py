"""People who break leases and put refunds right by the command line while a worker is at it."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from ledger.commands import ledger as commands
from ledger.commands.exits import run
from ledger.sandbox import Behaviour
from tests.proof.chaos.crew import CONTEXT
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.world import MERCHANT, RESOURCE, World

BUSY, DONE, REFUSED, PARTLY = 6, 0, 3, 8


def command(world: World, *arguments: str) -> int:
    """The exit code of the real command line, in a process of its own."""
    environment = {
        "LEDGER_DSN": world.dsn("ledger_operator"), "LEDGER_REDIS_URL": world.servers.redis_url, "LEDGER_ACTOR": "dana",
    }  # fmt: skip
    process = CONTEXT.Process(target=_command, args=(list(arguments), environment), daemon=True)
    process.start()
    process.join(15)
    if process.exitcode is None:
        process.kill()
        process.join()
    world.note(f"ledger {' '.join(arguments)}: exit code {process.exitcode}")
    if process.exitcode not in (DONE, REFUSED, BUSY, PARTLY):
        world.breaches.append(f"I8: ledger {' '.join(arguments)} ended with {process.exitcode}")
    return process.exitcode or 0


def _command(arguments: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        code = run(commands, ["--yes", *arguments])
    os._exit(code)


@scenario("by-hand", "People fence the worker out and put refunds right by the command line while it is at it")
def by_hand(world: World) -> None:
    world.open_gateway(Behaviour(latency=0.03))
    ids = world.refunds(12)
    worker = world.worker("A", hold=world.point("before refund", "after refund", "before confirm"))
    worker.until_held()
    token, holder = world.active()
    if world.rng.random() < 0.5:
        command(world, "lease", "break", RESOURCE, "--holder", holder, "--reason", "its host is gone")
        world.fault(f"the lease of A, token {token}, is broken")
    else:
        worker.freeze()
        world.fault("A is frozen")
    for _ in range(4):
        refund_id = world.rng.choice(ids)
        act = world.rng.choice(["unknown", "claim", "release", "review", "cancel", "requeue", "confirm"])
        command(world, *spelled(world, act, refund_id))
        if world.rng.random() < 0.5:
            worker.wake()
    worker.wake()
    worker.join()


def spelled(world: World, act: str, refund_id: str) -> list[str]:
    """The command, with what it needs; a confirm names what the gateway really has."""
    wait = ["--wait", "5s"] if act in ("unknown", "claim", "release", "confirm") else []
    more: list[str] = []
    moved = list(world.movements.of(refund_id=refund_id))
    if act == "confirm":
        if not moved:
            act, more = "unknown", []
        else:
            more = ["--gateway-ref", moved[0].ref]
    if act == "cancel" and (moved or sendable(world, refund_id)):
        act = "review"
    if act == "requeue":
        more = ["--not-at-gateway"]
    return [act, MERCHANT, refund_id, *more, *wait, "--reason", "ticket 91"]


def sendable(world: World, refund_id: str) -> bool:
    """Whether somebody may have a request out, which a person would ask the gateway about before cancelling."""
    return bool(world.rows("select 1 from ledger.refund where refund_id = %s and attempts > 0", [refund_id]))
