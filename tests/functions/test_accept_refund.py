from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Move
from tests.functions.settling import NeedsCommittedClaim, NeedsRef, last_entry
from tests.story import BOB, MERCHANT, activated, added, in_state, moved_by_a_person, refund, refused

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    token = activated(ledger)
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    return token


class TestSettling(NeedsRef, NeedsCommittedClaim):
    function = "accept_refund"
    text = "re_r_1"
    repeated = "already_accepted"
    state = "accepted"


# What it does


def test_a_refund_that_the_gateway_has_stays_open_under_its_reference(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    move = ledger.accept_refund(MERCHANT, "r_1", token, "re_1", {"status": "pending"})
    assert move == Move(
        MERCHANT, "r_1", "accepted", None, "accepted", "sending", token, 7025, "EUR", "m_1/r_1", "re_1", 1, True,
        refund(admin, "r_1", "changed_at"),
    )  # fmt: skip
    assert refund(admin, "r_1", "state", "fence", "gateway_ref", "settled_at") == ("accepted", token, "re_1", None)
    assert last_entry(admin) == ("sending", "accepted", token, 1, True, None, None, None)
    assert admin.execute("select account, balance_minor from ledger.balance order by 1").fetchall() == [
        ("merchant_available", -7025),
        ("refund_reserved", 7025),
    ]


@pytest.mark.parametrize("evidence", [{"amount_minor": 1}, {"currency": "USD"}])
def test_its_evidence_is_kept_and_judged_with_the_final_word(
    evidence: dict[str, Any], ledger: Ledger, token: int
) -> None:
    assert ledger.accept_refund(MERCHANT, "r_1", token, "re_1", evidence).outcome == "accepted"


def test_a_persons_reason_is_kept_with_the_entry(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    with connection.transaction():
        connection.execute("set local ledger.reason = 'ticket 91'")
        ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    reasons = admin.execute("select reason from ledger.journal where to_state = 'accepted'").fetchall()
    assert reasons == [("ticket 91",)]


def test_an_accepted_refund_is_not_claimed_again(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    with refused("LG204", admin):
        ledger.claim_refund(MERCHANT, "r_1", token)
    assert ledger.claim_refunds(MERCHANT, activated(ledger, BOB), 10) == []


# What it refuses beyond what every settling call refuses


def test_another_holder_accepts_only_what_it_claimed(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    newer = activated(ledger, BOB)
    with refused("LG203", admin) as refusal:
        ledger.accept_refund(MERCHANT, "r_1", newer, "re_1")
    assert refusal.tells(reason="not_claimed", state="accepted", row_token=token)


def test_what_was_confirmed_is_finished_even_under_its_reference(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    with refused("LG202", admin):
        ledger.accept_refund(MERCHANT, "r_1", token, "re_1")


@pytest.mark.parametrize("state", ["unknown", "released", "review"])
def test_own_but_given_back_is_not_claimed(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_2", token, ledger, admin)
    with refused("LG203", admin) as refusal:
        ledger.accept_refund(MERCHANT, "r_2", token, "re_r_2")
    assert refusal.tells(reason="not_claimed", row_token=token)


@pytest.mark.parametrize(
    ("state", "code"),
    [("failed", "LG202"), ("unknown", "LG203"), ("review", "LG203"), ("pending", "LG203"), ("cancelled", "LG202")],
)
def test_what_was_accepted_and_moved_on_is_not_accepted_again(
    state: str, code: str, ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    if state == "failed":
        ledger.fail_refund(MERCHANT, "r_1", token, "card closed")
    elif state == "unknown":
        ledger.mark_unknown(MERCHANT, "r_1", token, "no final word")
    else:
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1", {"amount_minor": 1})
    if state in {"pending", "cancelled"}:
        moved_by_a_person(admin, "r_1", state)
    assert refund(admin, "r_1", "state", "fence", "gateway_ref") == (state, token, "re_1")
    with refused(code, admin):
        ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
