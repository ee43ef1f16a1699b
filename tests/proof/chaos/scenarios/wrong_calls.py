"""Calls that are wrong in every way that an error is documented for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from ledger.client import Ledger
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import Hold
from tests.proof.chaos.world import MERCHANT, RESOURCE, World
from tests.story import UNDRAWN


@scenario("wrong-calls", "Calls that are wrong in every way an error is documented for, in any order, beside a worker")
def wrong_calls(world: World) -> None:
    ids = world.refunds(8)
    first, second = sorted(ids)[:2]
    worker = world.worker("A", hold=Hold("after confirm", 1, first), batch=1, in_flight=1)
    worker.until_held()
    token, _ = world.active()
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
