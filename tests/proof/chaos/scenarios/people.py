"""Operators who pause, break leases and move refunds by hand while workers are at it, and those who err."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from ledger.client import Ledger
from ledger.commands import ledger as commands
from ledger.commands.exits import run
from ledger.errors import Refused
from ledger.gateway import Accepted, Sent, Unknown
from ledger.lease import Lease
from ledger.sandbox import Behaviour, Fault, SandboxGateway
from tests.proof.chaos.crew import CONTEXT
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import Hold
from tests.proof.chaos.world import MERCHANT, PERSON, RESOURCE, World
from tests.story import UNDRAWN, on_a_new_timeline

EVIDENCE = {"seen": "the gateway's dashboard"}
ABSENT = {"not_at_gateway": True}
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
    token, holder = lease_of(world)
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


def lease_of(world: World) -> tuple[int, str]:
    """The active token, and its holder."""
    (row,) = world.rows("select active, holder from ledger.fence where resource = %s", [RESOURCE])
    return int(row[0]), str(row[1])


# One refund for each move that a person, a webhook or a holder may make.


class Hand:
    """A person with an active token, a gateway and the truth."""

    def __init__(self, world: World, ledger: Ledger, gateway: SandboxGateway, token: int) -> None:
        self.world = world
        self.ledger = ledger
        self.gateway = gateway
        self.token = token

    def claim(self, refund_id: str) -> Any:
        return self.ledger.claim_refund(MERCHANT, refund_id, self.token)

    def send(self, refund_id: str, fault: Fault | None = None) -> Any:
        """Claim it and call the gateway; its answer."""
        claim = self.claim(refund_id)
        if fault is not None:
            self.world.gateway.engine.plan(claim.idempotency_key, fault)
        return self.gateway.refund(claim, self.token, 5.0)

    def accepted(self, refund_id: str) -> str:
        """It is at the gateway, and its final word comes later."""
        answer = self.send(refund_id, Fault.ACCEPT)
        assert isinstance(answer, Accepted), answer
        self.ledger.accept_refund(MERCHANT, refund_id, self.token, answer.ref)
        return answer.ref

    def final_word(self, refund_id: str, *, moved: bool) -> Any:
        return self.world.gateway.engine.complete(f"{MERCHANT}/{refund_id}", moved)

    def review(self, refund_id: str) -> None:
        self.ledger.review_refund(MERCHANT, refund_id, evidence=EVIDENCE, **PERSON)

    def resolve(self, refund_id: str, to_state: str, ref: str | None = None) -> None:
        self.ledger.resolve_refund(MERCHANT, refund_id, to_state, ref, evidence=EVIDENCE, **PERSON)


def accepted_then_sent(hand: Hand, refund_id: str) -> None:
    ref = hand.accepted(refund_id)
    hand.final_word(refund_id, moved=True)
    if hand.world.rng.random() < 0.5:
        hand.resolve(refund_id, "sent", ref)
    else:
        hand.ledger.confirm_refund(MERCHANT, refund_id, hand.token, ref)


def accepted_then_failed(hand: Hand, refund_id: str) -> None:
    hand.accepted(refund_id)
    hand.final_word(refund_id, moved=False)
    if hand.world.rng.random() < 0.5:
        hand.resolve(refund_id, "failed")
    else:
        hand.ledger.fail_refund(MERCHANT, refund_id, hand.token, "declined after all")


def accepted_then_unknown(hand: Hand, refund_id: str) -> None:
    hand.accepted(refund_id)
    hand.ledger.mark_unknown(MERCHANT, refund_id, hand.token, "the gateway is silent")
    hand.final_word(refund_id, moved=True)


def accepted_then_review(hand: Hand, refund_id: str) -> None:
    ref = hand.accepted(refund_id)
    hand.review(refund_id)
    hand.final_word(refund_id, moved=True)
    hand.resolve(refund_id, "sent", ref)


def review_then_back_to_work(hand: Hand, refund_id: str) -> None:
    hand.review(refund_id)
    hand.ledger.requeue_refund(MERCHANT, refund_id, evidence=ABSENT, **PERSON)


def unknown_then_review_then_failed(hand: Hand, refund_id: str) -> None:
    assert isinstance(hand.send(refund_id, Fault.ERROR), Unknown)
    hand.ledger.mark_unknown(MERCHANT, refund_id, hand.token, "a 500")
    hand.review(refund_id)
    hand.resolve(refund_id, "failed")


def review_then_cancelled(hand: Hand, refund_id: str) -> None:
    hand.review(refund_id)
    hand.ledger.cancel_refund(MERCHANT, refund_id, **PERSON)


def cancelled(hand: Hand, refund_id: str) -> None:
    hand.ledger.cancel_refund(MERCHANT, refund_id, **PERSON)


def sent_then_returned(hand: Hand, refund_id: str) -> None:
    sent = hand.send(refund_id)
    assert isinstance(sent, Sent), sent
    hand.ledger.confirm_refund(MERCHANT, refund_id, hand.token, sent.ref)
    hand.ledger.return_refund(MERCHANT, refund_id, evidence=EVIDENCE, **PERSON)


def another_amount_then_returned(hand: Hand, refund_id: str) -> None:
    sent = hand.send(refund_id)
    assert isinstance(sent, Sent), sent
    move = hand.ledger.confirm_refund(MERCHANT, refund_id, hand.token, sent.ref, {"amount_minor": 1})
    assert move.outcome == "review", move
    hand.resolve(refund_id, "returned", sent.ref)


def released(hand: Hand, refund_id: str) -> None:
    hand.claim(refund_id)
    hand.ledger.release_refund(MERCHANT, refund_id, hand.token, "claimed by mistake")


def declined(hand: Hand, refund_id: str) -> None:
    hand.send(refund_id, Fault.DECLINE)
    hand.ledger.fail_refund(MERCHANT, refund_id, hand.token, "declined for good")


def left_behind(hand: Hand, refund_id: str) -> None:
    hand.send(refund_id)


MOVES: tuple[Callable[[Hand, str], None], ...] = (
    accepted_then_sent, accepted_then_failed, accepted_then_unknown, accepted_then_review, review_then_back_to_work,
    unknown_then_review_then_failed, review_then_cancelled, cancelled, sent_then_returned, another_amount_then_returned,
    released, declined, left_behind,
)  # fmt: skip


@scenario("every-move", "People make every legal move by the functions, and lose their token in the middle of it")
def every_move(world: World) -> None:
    """Each move has a refund of its own; whoever is fenced out takes a new lease and goes on with what is left."""
    ids = world.refunds(len(MOVES))
    left = list(zip(ids, world.rng.sample(MOVES, len(MOVES)), strict=True))
    interrupted = world.rng.randint(1, len(MOVES) - 1)
    while left:
        with (
            Lease(RESOURCE, db=world.dsn("ledger_operator"), redis=world.servers.redis_url, wait=5.0) as lease,
            world.ledger() as ledger,
            SandboxGateway(world.gateway.url) as gateway,
            suppress(Refused),
        ):
            hand = Hand(world, ledger, gateway, lease.token)
            while left:
                refund_id, move = left.pop()
                if len(left) == interrupted:
                    interrupted = -1
                    token = ledger.break_lease(RESOURCE, lease.holder, **PERSON)
                    world.fault(f"token {lease.token} is fenced out by {token}")
                    left.append((refund_id, move))
                    world.tries(partial(hand.claim, refund_id))
                    break
                move(hand, refund_id)
                world.note(f"{refund_id}: {move.__name__}")


@scenario("paused", "An operator pauses the kind or the merchant while a worker is at it, and resumes later")
def paused(world: World) -> None:
    world.refunds()
    worker = world.worker(
        "A", hold=world.point("before claim", "after claim", "before refund", "before confirm", most=2)
    )
    worker.until_held()
    target = world.rng.choice(["settle", RESOURCE])
    with world.ledger() as ledger:
        ledger.pause(target, **PERSON)
        world.fault(f"{target} is paused")
        worker.go()
        worker.join()
        assert world.open_refunds("sending") == 0, "what is out gets recorded or given back"
        rival = world.worker("B")
        rival.join()
        assert any(said.facts.get("outcome") == "LG107" for said in rival.calls("draw_token")), rival.said
        ledger.resume(target, **PERSON)


@scenario("unknown-server", "The server is another than the one that handed the tokens out, until it is recovered")
def unknown_server(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point("before claim", "before refund", "before confirm", "after activate"))
    worker.until_held()
    on_a_new_timeline(world.admin)
    world.fault("the timeline is another")
    worker.go()
    worker.join()
    with world.ledger("ledger_worker") as ledger:
        assert world.tries(lambda: ledger.draw_token(RESOURCE)) == "LG106"
    with world.ledger() as ledger:
        world.note(f"recover_failover: {ledger.recover_failover(**PERSON)}")


@scenario("wrong-calls", "Calls that are wrong in every way an error is documented for, in any order, beside a worker")
def wrong_calls(world: World) -> None:
    ids = world.refunds(8)
    first, second = sorted(ids)[:2]
    worker = world.worker("A", hold=Hold("after confirm", 1, first), batch=1, in_flight=1)
    worker.until_held()
    token, _ = lease_of(world)
    with (
        world.ledger("ledger_worker") as ledger,
        world.ledger("ledger_worker") as other,
        world.ledger() as person,
    ):
        wrong: list[tuple[str, Callable[[], Any]]] = [
            ("LG102", lambda: ledger.claim_refunds(MERCHANT, UNDRAWN, 1)),
            ("LG105", lambda: ledger.claim_refunds(MERCHANT, ledger.draw_token(RESOURCE), 1)),
            ("LG104", lambda: both_lock(ledger, other)),
            ("LG201", lambda: ledger.claim_refund(MERCHANT, "r_none", token)),
            ("LG202", lambda: ledger.claim_refund(MERCHANT, first, token)),
            ("LG203", lambda: ledger.confirm_refund(MERCHANT, second, token, "re_1")),
            ("LG204", lambda: accepted_is_claimed(world, ledger, token, second)),
            ("LG301", lambda: ledger.add_refund(MERCHANT, first, 1, "EUR", "another")),
            ("LG302", lambda: ledger.add_refund(MERCHANT, "r_zero", 0, "EUR")),
            ("LG303", lambda: ledger.confirm_refund(MERCHANT, first, token, "re_another")),
            ("LG304", lambda: ledger.claim_refunds(MERCHANT, token, 0)),
            ("LG304", lambda: person.cancel_refund(MERCHANT, second)),
            ("55P03", lambda: activated_while_the_gate_is_held(world, ledger)),
            ("40001", lambda: claimed_from_an_old_snapshot(world)),
        ]
        world.rng.shuffle(wrong)
        for code, call in wrong:
            got = world.tries(call)
            world.fault(f"a wrong call: {code}")
            if got != code:
                world.breaches.append(f"I8: a call that deserves {code} got {got}")
    worker.go()


def both_lock(ledger: Ledger, other: Ledger) -> None:
    assert isinstance(ledger.connection, psycopg.Connection)
    with ledger.connection.transaction(force_rollback=True):
        ledger.lock_job("charges:org_7", "one/1/0123456789abcdef")
        other.lock_job("charges:org_7", "two/2/0123456789abcdef")


def accepted_is_claimed(world: World, ledger: Ledger, token: int, refund_id: str) -> None:
    """A refund that was accepted needs no claim; undone afterwards."""
    assert isinstance(ledger.connection, psycopg.Connection)
    with ledger.connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, refund_id, token)
        ledger.mark_unknown(MERCHANT, refund_id, token, "not known")
        ledger.claim_refund(MERCHANT, refund_id, token)


def activated_while_the_gate_is_held(world: World, ledger: Ledger) -> None:
    token = ledger.draw_token(RESOURCE)
    with world.admin.transaction(force_rollback=True):
        world.admin.execute("select pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", [RESOURCE])
        ledger.activate_token(RESOURCE, token, "three/3/0123456789abcdef")


def claimed_from_an_old_snapshot(world: World) -> None:
    """A transaction that began before the number was drawn."""
    resource = "settle:m_2"
    with (
        psycopg.connect(world.dsn("ledger_worker")) as connection,
        world.ledger("ledger_worker") as other,
    ):
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1 from ledger.kind")
        token = other.draw_token(resource)
        Ledger(connection).claim_refunds("m_2", token, 1)


@scenario("stray-writes", "The owner and a superuser write past the functions while a worker is at it")
def stray_writes(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point("after claim", "before refund", "after confirm"))
    worker.until_held()
    for statement in world.rng.sample(STRAY, len(STRAY)):
        stray(world, statement)
    worker.go()


STRAY = (
    "set local role ledger_owner; update ledger.refund set state = 'pending'",
    "set local role ledger_owner; update ledger.refund set fence = fence - 1 where fence > 0",
    "set local role ledger_owner; delete from ledger.journal",
    "set local role ledger_owner; truncate ledger.journal",
    "update ledger.refund set fence = 0, state = 'pending'",
    "update ledger.fence set active = active - 1",
    "set local session_replication_role = replica; update ledger.refund set fence = fence - 1 where fence > 0",
    "set local session_replication_role = replica; delete from ledger.journal where number > 1",
)


def stray(world: World, statement: str) -> None:
    """Write past the functions, and say whether that was refused."""

    def write() -> None:
        with world.admin.transaction():
            for part in statement.split("; "):
                world.admin.execute(part.encode())

    code = world.tries(write)
    world.fault(f"{statement}: {code}")
    if code is None:
        world.breaches.append(f"I3: {statement} went through")


@scenario("advisory-holder-ended", "The session that holds an advisory lease is ended, or its server is restarted")
def advisory_holder_ended(world: World) -> None:
    world.limit(lock="advisory")
    world.refunds()
    worker = world.worker("A", hold=world.point("after activate", "after claim", "before refund", "before confirm"))
    worker.until_held()
    token, _ = lease_of(world)
    if world.rng.random() < 0.5:
        ((holders,),) = world.rows("select ledger.job_holders(%s)", [RESOURCE])
        world.rows("select pg_terminate_backend(%s)", [holders[0]["pid"]])
        world.fault("the session with the lease is ended")
    else:
        world.postgres_failed = True
        world.servers.restart_postgres()
        world.fault("Postgres is restarted")
    rival = world.worker("B", wait=5.0)
    rival.until(lambda said: said.what == "call" and said.facts["name"] == "activate_token", "to take over")
    assert lease_of(world)[0] > token
    worker.go()
