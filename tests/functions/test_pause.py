from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import (
    ALICE,
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    drawn,
    in_background,
    in_state,
    is_waiting,
    raised,
    refund,
    refused,
    unchanged,
    until,
)

WHO: dict[str, Any] = {"actor": "carol", "reason": "gateway incident 812"}
JOB = "charges:org_7"

BEGINS: dict[str, Callable[[Ledger, int], Any]] = {
    "draw_token": lambda ledger, _: ledger.draw_token(RESOURCE),
    "activate_token": lambda ledger, token: ledger.activate_token(RESOURCE, token, ALICE),
    "claim_refund": lambda ledger, token: ledger.claim_refund(MERCHANT, "r_pending", token),
    "claim_refunds": lambda ledger, token: ledger.claim_refunds(MERCHANT, token, 10),
}
RECORDS: dict[str, tuple[str, Callable[[Ledger, int], Any]]] = {
    "confirm_refund": ("sent", lambda ledger, token: ledger.confirm_refund(MERCHANT, "r_out", token, "re_r_out")),
    "confirm_refunds": ("sent", lambda ledger, token: ledger.confirm_refunds(MERCHANT, token, ["r_out"], ["re_r_out"])),
    "fail_refund": ("failed", lambda ledger, token: ledger.fail_refund(MERCHANT, "r_out", token, "card closed")),
    "mark_unknown": ("unknown", lambda ledger, token: ledger.mark_unknown(MERCHANT, "r_out", token, "timeout")),
    "accept_refund": ("accepted", lambda ledger, token: ledger.accept_refund(MERCHANT, "r_out", token, "re_r_out")),
    "release_refund": ("pending", lambda ledger, token: ledger.release_refund(MERCHANT, "r_out", token, "not sent")),
}


@pytest.fixture
def token(ledger: Ledger, admin: Connection) -> int:
    """The active token, under which r_out is claimed."""
    added(ledger, "r_pending")
    token = activated(ledger)
    in_state("sending", "r_out", token, ledger, admin)
    return token


@pytest.mark.parametrize("target", ["settle", RESOURCE])
@pytest.mark.parametrize("name", BEGINS)
def test_nothing_begins(
    ledger: Ledger, operators: Ledger, admin: Connection, token: int, name: str, target: str
) -> None:
    operators.pause(target, **WHO)
    with refused("LG107", admin) as refusal:
        BEGINS[name](ledger, token)
    assert refusal.tells(function=name, paused=target, paused_by="carol", reason="gateway incident 812")
    assert f"{target} is paused by carol since" in refusal.message
    assert refusal.message.endswith("gateway incident 812; nothing was changed")
    assert refusal.hint == "Confirm, fail and mark_unknown go on. An operator ends it with ledger.resume(target, ...)."


def test_where_both_are_paused_the_kind_is_named(
    ledger: Ledger, connection: Connection, operators: Ledger, admin: Connection, token: int
) -> None:
    """In whatever order they were paused, and whatever the plan."""
    for target in (RESOURCE, "settle"):
        operators.pause(target, **WHO)
    admin.execute("analyze ledger.pause")
    connection.execute("set enable_indexscan = off")
    connection.execute("set enable_bitmapscan = off")
    for call in (lambda: ledger.draw_token(RESOURCE), lambda: ledger.claim_refund(MERCHANT, "r_pending", token)):
        with refused("LG107", admin) as refusal:
            call()
        assert refusal.tells(paused="settle")


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_out_gets_recorded(ledger: Ledger, operators: Ledger, admin: Connection, token: int, name: str) -> None:
    operators.pause("settle", **WHO)
    state, record = RECORDS[name]
    record(ledger, token)
    assert refund(admin, "r_out", "state") == state


def test_jobs_do_not_begin_either(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    operators.pause("charges", **WHO)
    with refused("LG107", admin):
        ledger.lock_job(JOB, ALICE)
    ledger.hold_job(JOB)  # only the right to try: the number for it can't be drawn
    with refused("LG107", admin):
        ledger.draw_token(JOB)


def test_a_lease_is_not_broken_for_nothing_can_begin_anyway(operators: Ledger, admin: Connection, token: int) -> None:
    operators.pause("settle", **WHO)
    with refused("LG107", admin):
        operators.break_lease(RESOURCE, ALICE, **WHO)


def test_refunds_are_added_and_persons_go_on(ledger: Ledger, operators: Ledger, token: int) -> None:
    operators.pause("settle", **WHO)
    added(ledger, "r_new")
    assert operators.cancel_refund(MERCHANT, "r_new", **WHO).state == "cancelled"


def test_others_are_not_concerned(ledger: Ledger, operators: Ledger) -> None:
    operators.pause("settle:m_2", **WHO)
    operators.pause("charges", **WHO)
    activated(ledger)
    assert drawn(ledger, "settle:m_22")


def test_a_pause_says_by_whom_why_and_since_when(operators: Ledger, admin: Connection) -> None:
    pause = operators.pause("settle", **WHO)

    assert (pause.target, pause.actor, pause.reason) == ("settle", "carol", "gateway incident 812")
    rows = admin.execute("select target, paused_at, actor, reason from ledger.pause").fetchall()
    assert rows == [("settle", pause.paused_at, "carol", "gateway incident 812")]
    assert admin.execute("select event, kind, resource, actor, reason from ledger.event").fetchall() == [
        ("paused", "settle", None, "carol", "gateway incident 812")
    ]


def test_pausing_again_leaves_the_first_word(operators: Ledger, admin: Connection) -> None:
    first = operators.pause(RESOURCE, **WHO)
    with unchanged(admin):
        assert operators.pause(RESOURCE, "dana", "me too") == first


def test_two_who_pause_at_once_are_told_the_same(connect: Connect, operator_dsn: str, admin: Connection) -> None:
    first, second = connect(operator_dsn), connect(operator_dsn)
    with first.transaction():
        paused = Ledger(first).pause("settle", **WHO)
        other = in_background(lambda: Ledger(second).pause("settle", "dana", "me too"))
        until(is_waiting(admin, second))

    assert other.result(5) == paused
    assert admin.execute("select count(*) from ledger.event where event = 'paused'").fetchone() == (1,)


def test_actor_and_reason_may_come_from_the_transaction(connect: Connect, operator_dsn: str) -> None:
    operator = connect(operator_dsn)
    with operator.transaction():
        operator.execute("set local ledger.actor = 'dana'")
        operator.execute("set local ledger.reason = 'INC-7'")
        pause = Ledger(operator).pause("settle")
    assert (pause.actor, pause.reason) == ("dana", "INC-7")


@pytest.mark.parametrize("who", [{}, {"actor": "carol"}, {"reason": "why"}, {"actor": " ", "reason": "why"}])
def test_it_needs_somebody_and_a_reason(operators: Ledger, admin: Connection, who: dict[str, str]) -> None:
    with refused("LG304", admin) as refusal:
        operators.pause("settle", **who)
    assert refusal.tells(function="pause", target="settle")


@pytest.mark.parametrize("target", [None, "", "settle:", ":m_1", "a{b", "x" * 301])
def test_the_target_is_a_kind_or_a_resource(operators: Ledger, admin: Connection, target: Any) -> None:
    with refused("LG304", admin):
        operators.pause(target, **WHO)


def test_a_worker_may_not_pause(ledger: Ledger, admin: Connection) -> None:
    with unchanged(admin), raised("42501"):
        ledger.pause("settle", **WHO)
