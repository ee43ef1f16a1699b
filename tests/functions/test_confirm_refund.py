from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Move
from tests.functions.settling import NeedsCommittedClaim, NeedsRef, last_entry
from tests.story import BOB, MERCHANT, activated, added, in_state, long_ways, refund, refused, unchanged

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    token = activated(ledger)
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    return token


class TestSettling(NeedsRef, NeedsCommittedClaim):
    function = "confirm_refund"
    text = "re_r_1"
    repeated = "already_confirmed"
    state = "sent"


# What it does


def test_a_claimed_refund_is_confirmed_and_its_money_moved(ledger: Ledger, token: int, admin: Connection) -> None:
    move = ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    assert move == Move(
        MERCHANT, "r_1", "confirmed", None, "sent", "sending", token, 7025, "EUR", "m_1/r_1", "re_1", 1, False,
        refund(admin, "r_1", "changed_at"),
    )  # fmt: skip
    state, ref, changed, settled = refund(admin, "r_1", "state", "gateway_ref", "changed_at", "settled_at")
    assert (state, ref) == ("sent", "re_1")
    assert changed == settled
    assert last_entry(admin) == (
        "sending", "sent", token, 1, False, "refund_reserved", "gateway_clearing", 7025,
    )  # fmt: skip


def test_the_holders_own_claim_is_confirmed_the_short_way(ledger: Ledger, token: int, admin: Connection) -> None:
    confirm: LiteralString = "select ledger.confirm_refund('m_1', 'r_1', %s, 're_1')"
    assert long_ways(admin, confirm, token) == set()
    assert refund(admin, "r_1", "state") == "sent"
    assert long_ways(admin, confirm, token) == {"confirm_or_refuse"}


def test_a_persons_reason_is_kept_with_the_confirm(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    with connection.transaction():
        connection.execute("set local ledger.reason = 'ticket 91'")
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    assert admin.execute("select reason from ledger.journal where to_state = 'sent'").fetchall() == [("ticket 91",)]


def test_an_accepted_refund_is_confirmed_by_whoever_holds_the_active_token(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    newer = activated(ledger, BOB)
    move = ledger.confirm_refund(MERCHANT, "r_1", newer, "re_1")
    assert (move.outcome, move.previous_state, move.token) == ("confirmed", "accepted", newer)
    assert refund(admin, "r_1", "state", "fence") == ("sent", newer)
    assert last_entry(admin)[:3] == ("accepted", "sent", newer)


def test_another_holder_that_brings_the_recorded_reference_is_told_so(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    newer = activated(ledger, BOB)
    with unchanged(admin):
        move = ledger.confirm_refund(MERCHANT, "r_1", newer, "re_1")
    assert (move.outcome, move.token) == ("already_confirmed", token)


def test_a_mark_that_it_may_have_been_sent_before_stays(ledger: Ledger, token: int, admin: Connection) -> None:
    newer = activated(ledger, BOB)
    ledger.claim_refund(MERCHANT, "r_1", newer)
    assert ledger.confirm_refund(MERCHANT, "r_1", newer, "re_1").maybe_sent is True
    assert refund(admin, "r_1", "maybe_sent") is True


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"amount_minor": 7025},
        {"amount_minor": 7025.0},
        {"amount_minor": "7025"},
        {"amount_minor": None},
        {"currency": "EUR"},
        {"currency": None},
        {"amount_minor": 7025, "currency": "EUR", "status": "succeeded"},
        {"amount": 1, "Currency": "USD"},
    ],
)
def test_evidence_that_names_the_same_or_nothing_is_a_confirmation(
    evidence: dict[str, Any], ledger: Ledger, token: int
) -> None:
    assert ledger.confirm_refund(MERCHANT, "r_1", token, "re_1", evidence).outcome == "confirmed"


@pytest.mark.parametrize(
    "evidence",
    [
        {"amount_minor": 7026},
        {"amount_minor": 70.25},
        {"amount_minor": -7025},
        {"amount_minor": "70.25"},
        {"amount_minor": "NaN"},
        {"amount_minor": [7025]},
        {"amount_minor": True},
        {"currency": "USD"},
        {"currency": "eur"},
        {"currency": ""},
        {"currency": ["EUR"]},
        {"amount_minor": 7025, "currency": "JPY"},
    ],
)
def test_evidence_that_names_another_amount_or_currency_leads_to_review(
    evidence: dict[str, Any], ledger: Ledger, token: int, admin: Connection
) -> None:
    move = ledger.confirm_refund(MERCHANT, "r_1", token, "re_1", evidence)
    assert (move.outcome, move.state, move.reason) == (
        "review", "review", "the gateway names another amount or currency",
    )  # fmt: skip
    assert refund(admin, "r_1", "state", "gateway_ref", "settled_at", "fence") == ("review", "re_1", None, token)
    assert last_entry(admin) == ("sending", "review", token, 1, True, None, None, None)
    assert admin.execute("select reason, evidence from ledger.journal where to_state = 'review'").fetchall() == [
        ("the gateway names another amount or currency", evidence)
    ]


def test_an_accepted_refund_with_other_evidence_goes_to_review_too(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    assert ledger.confirm_refund(MERCHANT, "r_1", token, "re_1", {"currency": "USD"}).outcome == "review"
    assert last_entry(admin)[:2] == ("accepted", "review")


def test_repeating_a_confirm_that_led_to_review_says_review_again(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1", {"currency": "USD"})
    activated(ledger, BOB)
    with unchanged(admin):
        again = ledger.confirm_refund(MERCHANT, "r_1", token, "re_1", {"currency": "USD"})
    assert (again.outcome, again.state, again.previous_state) == ("review", "review", "review")


# What it refuses beyond what every settling call refuses


def test_a_review_is_not_ended_by_another_holders_confirm(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1", {"currency": "USD"})
    newer = activated(ledger, BOB)
    with refused("LG203", admin) as refusal:
        ledger.confirm_refund(MERCHANT, "r_1", newer, "re_1")
    assert refusal.tells(reason="not_claimed", state="review", row_token=token)


def test_a_takeover_fences_out_the_first_claimers_confirm(
    ledger: Ledger, rivals: Ledger, token: int, admin: Connection
) -> None:
    newer = activated(rivals, BOB)
    rivals.claim_refund(MERCHANT, "r_1", newer)
    with refused("LG101", admin) as refusal:
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    assert refusal.tells(reason="superseded", token=token, active=newer)


def test_what_the_next_holder_confirmed_is_no_repetition_of_the_first_ones(
    ledger: Ledger, rivals: Ledger, token: int, admin: Connection
) -> None:
    newer = activated(rivals, BOB)
    rivals.claim_refund(MERCHANT, "r_1", newer)
    rivals.confirm_refund(MERCHANT, "r_1", newer, "re_1")
    with refused("LG101", admin):
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")


@pytest.mark.parametrize("state", ["unknown", "released"])
def test_own_but_given_back_is_not_claimed(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_2", token, ledger, admin)
    with refused("LG203", admin) as refusal:
        ledger.confirm_refund(MERCHANT, "r_2", token, "re_1")
    assert refusal.tells(reason="not_claimed", row_token=token)


# Which refusal comes first


def test_a_conflict_is_told_before_a_final_state(ledger: Ledger, token: int, admin: Connection) -> None:
    in_state("returned", "r_2", token, ledger, admin)
    with refused("LG303", admin):
        ledger.confirm_refund(MERCHANT, "r_2", token, "re_other")
    with refused("LG202", admin):
        ledger.confirm_refund(MERCHANT, "r_2", token, "re_r_2")
