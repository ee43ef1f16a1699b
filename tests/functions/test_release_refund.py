from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Move
from tests.functions.settling import NeedsReason, last_entry
from tests.story import BOB, MERCHANT, activated, added, in_state, refund, refused, unchanged

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    token = activated(ledger)
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    return token


class TestSettling(NeedsReason):
    function = "release_refund"
    text = "never left"
    repeated = "already_released"
    state = "pending"


# What it does


def test_a_refund_that_was_not_sent_is_pending_again(ledger: Ledger, token: int, admin: Connection) -> None:
    move = ledger.release_refund(MERCHANT, "r_1", token, "never left")
    assert move == Move(
        MERCHANT, "r_1", "released", "never left", "pending", "sending", token, 7025, "EUR", "m_1/r_1", None, 1, False,
        refund(admin, "r_1", "changed_at"),
    )  # fmt: skip
    assert refund(admin, "r_1", "state", "fence", "attempts", "maybe_sent", "settled_at") == (
        "pending", token, 1, False, None,
    )  # fmt: skip
    assert last_entry(admin) == ("sending", "pending", token, 1, False, None, None, None)


def test_one_that_an_earlier_claimer_may_have_sent_is_unknown_and_not_pending(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    newer = activated(ledger, BOB)
    ledger.claim_refund(MERCHANT, "r_1", newer)
    move = ledger.release_refund(MERCHANT, "r_1", newer, "never left")
    assert (move.outcome, move.state, move.maybe_sent) == ("unknown", "unknown", True)
    assert last_entry(admin) == ("sending", "unknown", newer, 2, True, None, None, None)


def test_so_is_one_that_the_holder_itself_claimed_twice(ledger: Ledger, token: int) -> None:
    ledger.claim_refund(MERCHANT, "r_1", token)
    assert ledger.release_refund(MERCHANT, "r_1", token, "never left").state == "unknown"


def test_repeating_the_release_that_led_to_unknown_changes_nothing(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.claim_refund(MERCHANT, "r_1", token)
    ledger.release_refund(MERCHANT, "r_1", token, "never left")
    activated(ledger, BOB)
    with unchanged(admin):
        again = ledger.release_refund(MERCHANT, "r_1", token, "never left")
    assert (again.outcome, again.state) == ("already_unknown", "unknown")


def test_claim_and_release_may_share_a_transaction_for_nothing_was_sent(
    ledger: Ledger, connection: Connection, token: int
) -> None:
    added(ledger, "r_2")
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_2", token)
        assert ledger.release_refund(MERCHANT, "r_2", token, "never left").outcome == "released"


def test_no_money_moves(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.release_refund(MERCHANT, "r_1", token, "never left")
    assert admin.execute("select account, balance_minor from ledger.balance order by 1").fetchall() == [
        ("merchant_available", -7025),
        ("refund_reserved", 7025),
    ]


# What it refuses beyond what every settling call refuses


@pytest.mark.parametrize("state", ["accepted", "review"])
def test_what_the_gateway_has_is_not_released(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_2", token, ledger, admin)
    with refused("LG203", admin) as refusal:
        ledger.release_refund(MERCHANT, "r_2", token, "never left")
    assert refusal.tells(reason="not_claimed", state=state, row_token=token)


def test_what_an_older_token_released_is_not_claimed(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.release_refund(MERCHANT, "r_1", token, "never left")
    newer = activated(ledger, BOB)
    with refused("LG203", admin) as refusal:
        ledger.release_refund(MERCHANT, "r_1", newer, "never left")
    assert refusal.tells(reason="not_claimed", state="pending", row_token=token)
