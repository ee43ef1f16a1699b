from __future__ import annotations

from typing import Any, cast

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
    is_waiting,
    on_a_new_timeline,
    raised,
    refund,
    refused,
    unchanged,
    until,
)

WHO: dict[str, Any] = {"actor": "carol", "reason": "a managed service promotes by itself"}


def setting(admin: Connection) -> Any:
    return admin.execute("select failover from ledger.server").fetchall()


def test_a_new_timeline_holds_unless_told_otherwise(ledger: Ledger, admin: Connection) -> None:
    assert setting(admin) == [("hold",)]
    on_a_new_timeline(admin)
    with refused("LG106", admin):
        drawn(ledger)


def test_lifting_does_what_the_command_does(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    held = drawn(ledger)
    operators.set_failover("lift", **WHO)
    on_a_new_timeline(admin)

    new = drawn(ledger)

    assert new > held + 1_000_000
    assert refund(admin, "r_1", "maybe_sent") is True
    for stale in (token, held):
        with refused("LG101", admin):
            ledger.claim_refund(MERCHANT, "r_1", stale)
    ledger.activate_token(RESOURCE, new, ALICE)
    assert ledger.claim_refund(MERCHANT, "r_1", new).outcome == "taken_over"
    rows = admin.execute("select actor, reason, detail ->> 'outcome' from ledger.event where event = 'recovered'")
    assert rows.fetchall() == [("ledger", "failover is set to lift", "recovered")]
    assert operators.verify() == []


def test_a_stale_claim_that_comes_first_is_refused_by_what_it_lifts(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    operators.set_failover("lift", **WHO)
    on_a_new_timeline(admin)

    for _ in range(2):
        with raised("LG101") as refusal:
            ledger.claim_refund(MERCHANT, "r_1", token)
        assert refusal.tells(reason="superseded", active_holder="recovery")
        assert refusal.detail["active"] > token
        assert refusal.detail["active_since"] is not None
    assert refund(admin, "r_1", "state", "fence") == ("pending", 0)


def test_no_token_is_none_where_nothing_was_ever_active(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    operators.set_failover("lift", **WHO)
    added(ledger, "r_1")
    on_a_new_timeline(admin)
    with raised("LG102"):
        ledger.claim_refund(MERCHANT, "r_1", cast("int", None))
    assert refund(admin, "r_1", "state") == "pending"


def test_only_one_lifts(ledger: Ledger, connect: Connect, operators: Ledger, admin: Connection) -> None:
    operators.set_failover("lift", **WHO)
    on_a_new_timeline(admin)
    first, second = connect(), connect()
    with first.transaction():
        one = Ledger(first).draw_token(RESOURCE)
        other = in_background(lambda: Ledger(second).draw_token(RESOURCE))
        until(is_waiting(admin, second))
    assert other.result(5) > one
    assert admin.execute("select count(*) from ledger.event where event = 'recovered'").fetchone() == (1,)


def test_it_can_be_taken_back(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    operators.set_failover("lift", **WHO)
    operators.set_failover("hold", **WHO)
    on_a_new_timeline(admin)
    with refused("LG106", admin):
        drawn(ledger)


def test_who_set_it_and_why_is_remembered(operators: Ledger, admin: Connection) -> None:
    operators.set_failover("lift", **WHO)
    assert setting(admin) == [("lift",)]
    assert admin.execute("select event, actor, reason, detail from ledger.event").fetchall() == [
        ("failover_set", "carol", "a managed service promotes by itself", {"failover": "lift"})
    ]


@pytest.mark.parametrize("failover", [None, "", "LIFT", "off"])
def test_it_is_hold_or_lift(operators: Ledger, admin: Connection, failover: Any) -> None:
    with refused("LG304", admin) as refusal:
        operators.set_failover(failover, **WHO)
    assert refusal.tells(reason="failover is hold or lift", failover=failover)


@pytest.mark.parametrize("who", [{}, {"actor": "carol"}, {"reason": "why"}])
def test_it_needs_somebody_and_a_reason(operators: Ledger, admin: Connection, who: dict[str, str]) -> None:
    with refused("LG304", admin):
        operators.set_failover("lift", **who)


def test_a_worker_may_not_set_it(ledger: Ledger, admin: Connection) -> None:
    with unchanged(admin), raised("42501"):
        ledger.set_failover("lift", **WHO)
