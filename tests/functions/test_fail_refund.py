from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Move
from tests.functions.settling import NeedsCommittedClaim, NeedsReason, last_entry
from tests.story import BOB, MERCHANT, activated, added, in_state, refund, refused

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    token = activated(ledger)
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    return token


class TestSettling(NeedsReason, NeedsCommittedClaim):
    function = "fail_refund"
    text = "card closed"
    repeated = "already_failed"
    state = "failed"


# What it does


def test_a_refund_that_was_refused_for_good_gives_its_money_back(ledger: Ledger, token: int, admin: Connection) -> None:
    move = ledger.fail_refund(MERCHANT, "r_1", token, "card closed", {"code": "charge_disputed"})
    assert move == Move(
        MERCHANT, "r_1", "failed", "card closed", "failed", "sending", token, 7025, "EUR", "m_1/r_1", None, 1, False,
        refund(admin, "r_1", "changed_at"),
    )  # fmt: skip
    state, changed, settled = refund(admin, "r_1", "state", "changed_at", "settled_at")
    assert state == "failed"
    assert changed == settled
    assert last_entry(admin) == (
        "sending", "failed", token, 1, False, "refund_reserved", "merchant_available", 7025,
    )  # fmt: skip
    assert admin.execute("select account, balance_minor from ledger.balance order by 1").fetchall() == [
        ("merchant_available", 0),
        ("refund_reserved", 0),
    ]


def test_the_final_word_on_an_accepted_refund_is_anybodys_who_holds_the_active_token(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    newer = activated(ledger, BOB)
    move = ledger.fail_refund(MERCHANT, "r_1", newer, "bank refused")
    assert (move.outcome, move.previous_state, move.token, move.gateway_ref) == ("failed", "accepted", newer, "re_1")
    assert last_entry(admin)[:3] == ("accepted", "failed", newer)


def test_the_same_with_another_reason_is_still_the_same(ledger: Ledger, token: int) -> None:
    ledger.fail_refund(MERCHANT, "r_1", token, "card closed")
    assert ledger.fail_refund(MERCHANT, "r_1", token, "closed card").outcome == "already_failed"


# What it refuses beyond what every settling call refuses


def test_what_an_older_token_recorded_as_failed_is_finished(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.fail_refund(MERCHANT, "r_1", token, "card closed")
    newer = activated(ledger, BOB)
    with refused("LG202", admin) as refusal:
        ledger.fail_refund(MERCHANT, "r_1", newer, "card closed")
    assert refusal.tells(state="failed", token=newer, row_token=token)


@pytest.mark.parametrize("state", ["unknown", "released", "review"])
def test_own_but_given_back_is_not_claimed(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_2", token, ledger, admin)
    with refused("LG203", admin) as refusal:
        ledger.fail_refund(MERCHANT, "r_2", token, "card closed")
    assert refusal.tells(reason="not_claimed", row_token=token)
