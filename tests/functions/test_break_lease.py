from __future__ import annotations

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
    in_state,
    on_a_new_timeline,
    raised,
    refund,
    refused,
    unchanged,
)

WHO: dict[str, Any] = {"actor": "carol", "reason": "its host is gone"}


def test_whoever_held_it_is_fenced_out(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    in_state("sending", "r_1", token, ledger, admin)
    in_flight = drawn(ledger)

    new = operators.break_lease(RESOURCE, ALICE, **WHO)

    assert new > in_flight
    for stale in (token, in_flight):
        with refused("LG101", admin):
            ledger.confirm_refund(MERCHANT, "r_1", stale, "re_1")


def test_under_the_new_token_a_person_goes_on(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)
    token = operators.break_lease(RESOURCE, ALICE, **WHO)

    assert operators.claim_refund(MERCHANT, "r_1", token).outcome == "taken_over"
    assert operators.confirm_refund(MERCHANT, "r_1", token, "re_1").outcome == "confirmed"


def test_one_transaction_can_break_claim_and_settle_what_was_claimed_before(
    ledger: Ledger, connect: Connect, operator_dsn: str, admin: Connection
) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)
    operator = connect(operator_dsn)
    with operator.transaction():
        hand = Ledger(operator)
        token = hand.break_lease(RESOURCE, ALICE, **WHO)
        hand.claim_refund(MERCHANT, "r_1", token)
        hand.confirm_refund(MERCHANT, "r_1", token, "re_1")
    assert refund(admin, "r_1", "state", "fence") == ("sent", token)


def test_who_broke_whom_and_why_is_on_record(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    activated(ledger)
    token = operators.break_lease(RESOURCE, ALICE, **WHO)
    rows = admin.execute(
        "select kind, resource, token, previous_holder, actor, reason, database_user from ledger.event"
        " where event = 'lease_broken'"
    ).fetchall()
    assert rows == [("settle", RESOURCE, token, ALICE, "carol", "its host is gone", "ledger_operator")]
    holders = admin.execute("select holder from ledger.fence where resource = %s", [RESOURCE]).fetchall()
    assert len(holders) == 1
    assert holders[0][0].startswith("person/")


def test_a_resource_that_was_never_held_can_be_broken_too(operators: Ledger, ledger: Ledger) -> None:
    added(ledger, "r_1")
    token = operators.break_lease(RESOURCE, ALICE, **WHO)
    assert operators.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


@pytest.mark.parametrize("who", [{}, {"actor": "carol"}, {"reason": "why"}])
def test_it_needs_somebody_and_a_reason(
    ledger: Ledger, operators: Ledger, admin: Connection, who: dict[str, str]
) -> None:
    activated(ledger)
    with refused("LG304", admin) as refusal:
        operators.break_lease(RESOURCE, ALICE, **who)
    assert refusal.tells(function="break_lease", resource=RESOURCE, holder=ALICE)


@pytest.mark.parametrize(
    ("resource", "holder"), [("settle", ALICE), (None, ALICE), (RESOURCE, None), (RESOURCE, "a:b")]
)
def test_resource_and_holder_are_well_formed(operators: Ledger, admin: Connection, resource: Any, holder: Any) -> None:
    with refused("LG304", admin):
        operators.break_lease(resource, holder, **WHO)


def test_a_server_that_must_be_recovered_first_says_so(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    activated(ledger)
    on_a_new_timeline(admin)
    with refused("LG106", admin):
        operators.break_lease(RESOURCE, ALICE, **WHO)


def test_a_worker_may_not_break(ledger: Ledger, admin: Connection) -> None:
    activated(ledger)
    with unchanged(admin), raised("42501"):
        ledger.break_lease(RESOURCE, ALICE, **WHO)
