"""An upgrade in the middle of a batch."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg

from ledger import schema
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.world import World

OTHERS = "m_2"
LONGEST = 2.0
"""Seconds that no claim waits for an upgrade."""


@scenario("functions-replaced", "Functions, grants and guards are replaced whole, three times, while a batch runs")
def functions_replaced(world: World) -> None:
    world.refunds(world.rng.randint(20, 40))
    worker = world.worker("A", hold=world.point("before claim", "after claim", "before refund", "before confirm"))
    worker.until_held()
    with ThreadPoolExecutor(1) as threads, world.ledger("ledger_worker") as ledger:
        resource = f"settle:{OTHERS}"
        token = ledger.draw_token(resource)
        ledger.activate_token(resource, token, "probe/1/0123456789abcdef")
        replaced: Future[None] = threads.submit(replace_functions, world.dsn("ledger_admin"), 3)
        worker.go()
        longest, claims = 0.0, 0
        while not replaced.done() or claims < 10:
            began = time.monotonic()
            ledger.claim_refunds(OTHERS, token, 1)
            longest, claims = max(longest, time.monotonic() - began), claims + 1
        replaced.result()
    world.fault(f"the functions were replaced three times; the longest of {claims} claims took {longest:.3f} s")
    if longest > LONGEST:
        world.breaches.append(f"I7: a claim waited {longest:.1f} s for the upgrade")
    worker.join()


def replace_functions(dsn: str, times: int) -> None:
    """What every upgrade ends with."""
    text = schema.offline_sql(part="functions").encode()
    for _ in range(times):
        with psycopg.connect(dsn) as migrator:
            migrator.execute(text)


@scenario("upgrade-undone", "An upgrade is ended by the server halfway, while a worker is at a point of the protocol")
def upgrade_undone(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point("before claim", "after claim", "before confirm"))
    worker.until_held()
    with psycopg.connect(world.dsn("ledger_admin")) as migrator:
        migrator.execute(schema.offline_sql(part="functions").encode())
        worker.go()
        worker.join()
        world.rows("select pg_terminate_backend(%s)", [migrator.info.backend_pid])
        world.fault("an upgrade is ended before its commit")
        assert world.tries(migrator.commit) is not None
    assert not world.open_refunds("pending"), "the worker waited for the upgrade"
