from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Move
from tests.functions.settling import NeedsReason, last_entry
from tests.story import BOB, MERCHANT, activated, added, in_state, refund, refused

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    token = activated(ledger)
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    return token


class TestSettling(NeedsReason):
    function = "mark_unknown"
    text = "timeout"
    repeated = "already_unknown"
    state = "unknown"


# What it does


def test_a_lost_reply_leaves_the_refund_open_and_its_money_reserved(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    move = ledger.mark_unknown(MERCHANT, "r_1", token, "timeout", {"after": "30 s"})
    assert move == Move(
        MERCHANT, "r_1", "unknown", "timeout", "unknown", "sending", token, 7025, "EUR", "m_1/r_1", None, 1, True,
        refund(admin, "r_1", "changed_at"),
    )  # fmt: skip
    assert refund(admin, "r_1", "state", "fence", "settled_at") == ("unknown", token, None)
    assert last_entry(admin) == ("sending", "unknown", token, 1, True, None, None, None)
    assert admin.execute("select account, balance_minor from ledger.balance order by 1").fetchall() == [
        ("merchant_available", -7025),
        ("refund_reserved", 7025),
    ]


def test_the_next_claim_is_told_to_ask_the_gateway_first(ledger: Ledger, token: int) -> None:
    ledger.mark_unknown(MERCHANT, "r_1", token, "timeout")
    claim = ledger.claim_refund(MERCHANT, "r_1", activated(ledger, BOB))
    assert (claim.outcome, claim.previous_state, claim.previous_token) == ("taken_over", "unknown", token)


def test_an_accepted_refund_becomes_unknown_under_any_active_token_and_keeps_its_reference(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.accept_refund(MERCHANT, "r_1", token, "re_1")
    newer = activated(ledger, BOB)
    move = ledger.mark_unknown(MERCHANT, "r_1", newer, "the gateway does not know it any more")
    assert (move.outcome, move.previous_state, move.token, move.gateway_ref) == ("unknown", "accepted", newer, "re_1")
    assert refund(admin, "r_1", "state", "fence", "gateway_ref") == ("unknown", newer, "re_1")
    assert last_entry(admin)[:3] == ("accepted", "unknown", newer)


def test_claim_and_doubt_may_share_a_transaction(ledger: Ledger, connection: Connection, token: int) -> None:
    added(ledger, "r_2")
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_2", token)
        assert ledger.mark_unknown(MERCHANT, "r_2", token, "timeout").outcome == "unknown"


# What it refuses beyond what every settling call refuses


@pytest.mark.parametrize("state", ["released", "review"])
def test_own_but_given_back_is_not_claimed(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_2", token, ledger, admin)
    with refused("LG203", admin) as refusal:
        ledger.mark_unknown(MERCHANT, "r_2", token, "timeout")
    assert refusal.tells(reason="not_claimed", row_token=token)
