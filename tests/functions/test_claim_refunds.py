from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Claim
from tests.functions.fenced import Fenced
from tests.story import (
    BOB,
    MERCHANT,
    UNDRAWN,
    activated,
    added,
    as_ledger_fn,
    in_state,
    journal,
    on_a_new_timeline,
    refund,
    refused,
    unchanged,
)

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    return activated(ledger)


def outcomes(claims: list[Claim]) -> list[tuple[str, str]]:
    return [(claim.refund_id, claim.outcome) for claim in claims]


# What it does


def test_the_next_refunds_are_claimed_in_the_order_of_their_ids(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_3", "r_1", "r_10", "r_2", "R_9")
    claims = ledger.claim_refunds(MERCHANT, token, 3)
    assert outcomes(claims) == [("R_9", "claimed"), ("r_1", "claimed"), ("r_10", "claimed")]
    assert claims[1] == Claim(
        MERCHANT, "r_1", 7025, "EUR", None, None, "m_1/r_1", 1, "claimed", None, "pending", None,
        refund(admin, "r_1", "first_claimed_at"),
    )  # fmt: skip
    assert refund(admin, "r_2", "state") == "pending"


def test_each_claim_has_all_that_the_gateway_needs(ledger: Ledger, token: int) -> None:
    ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", "pay_1", "acme", "key_1")
    [claim] = ledger.claim_refunds(MERCHANT, token, 10)
    assert (claim.amount_minor, claim.currency, claim.payment_ref, claim.gateway, claim.idempotency_key) == (
        7025, "EUR", "pay_1", "acme", "key_1",
    )  # fmt: skip


def test_their_order_does_not_rest_on_the_plan(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    for refund_id in ("r_3", "r_1", "r_2"):
        added(ledger, refund_id)
    admin.execute("analyze ledger.refund")
    connection.execute("set enable_indexscan = off")
    assert [claim.refund_id for claim in ledger.claim_refunds(MERCHANT, token, 2)] == ["r_1", "r_2"]


def test_a_cursor_leads_through_them_all_once(ledger: Ledger, token: int) -> None:
    added(ledger, *(f"r_{n:02}" for n in range(7)))
    seen: list[str] = []
    while claims := ledger.claim_refunds(MERCHANT, token, 3, seen[-1] if seen else ""):
        seen += [claim.refund_id for claim in claims]
    assert seen == [f"r_{n:02}" for n in range(7)]


def test_another_merchants_refunds_are_not_touched(ledger: Ledger, token: int) -> None:
    added(ledger, "r_1", merchant_id="m_2")
    assert ledger.claim_refunds(MERCHANT, token, 10) == []


def test_what_is_written_is_what_the_single_call_writes(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1", "r_2")
    ledger.claim_refund(MERCHANT, "r_1", token)
    assert outcomes(ledger.claim_refunds(MERCHANT, token, 1)) == [("r_2", "claimed")]
    refunds = admin.execute(
        "select to_jsonb(r) - '{refund_id,idempotency_key,added_at,changed_at,first_claimed_at,claimed_xid}'::text[] "
        "from ledger.refund as r"
    ).fetchall()
    entries = admin.execute(
        "select to_jsonb(j) - '{refund_id,at}'::text[] from ledger.journal as j where number = 2"
    ).fetchall()
    assert refunds[0] == refunds[1]
    assert entries[0] == entries[1]
    assert ledger.verify() == []


def test_only_what_a_claim_may_take_is_taken(ledger: Ledger, token: int, admin: Connection) -> None:
    for state in (
        "accepted",
        "cancelled",
        "failed",
        "pending",
        "released",
        "returned",
        "review",
        "sending",
        "sent",
        "unknown",
    ):
        in_state(state, f"r_{state}", token, ledger, admin)
    assert outcomes(ledger.claim_refunds(MERCHANT, token, 100)) == [("r_pending", "claimed"), ("r_released", "claimed")]
    newer = activated(ledger, BOB)
    assert outcomes(ledger.claim_refunds(MERCHANT, newer, 100)) == [
        ("r_pending", "taken_over"),
        ("r_released", "taken_over"),
        ("r_sending", "taken_over"),
        ("r_unknown", "taken_over"),
    ]


def test_the_takers_over_are_told_from_whom_and_since_when(ledger: Ledger, token: int, admin: Connection) -> None:
    in_state("unknown", "r_1", token, ledger, admin)
    newer = activated(ledger, BOB)
    (claim,) = ledger.claim_refunds(MERCHANT, newer, 10)
    assert (claim.outcome, claim.attempt, claim.previous_state, claim.previous_token) == (
        "taken_over", 2, "unknown", token,
    )  # fmt: skip
    assert claim.first_claimed_at == refund(admin, "r_1", "first_claimed_at")
    assert refund(admin, "r_1", "state", "fence", "attempts", "maybe_sent") == ("sending", newer, 2, True)
    assert journal(admin, "r_1")[-1] == ("unknown", "sending", newer, 2, True, None, None, None)


def test_ones_own_are_taken_again_only_when_asked_for(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1", "r_2")
    ledger.claim_refunds(MERCHANT, token, 10)
    with unchanged(admin):
        assert ledger.claim_refunds(MERCHANT, token, 10) == []
    again = ledger.claim_refunds(MERCHANT, token, 10, reclaim=True)
    assert [(claim.outcome, claim.attempt, claim.previous_token) for claim in again] == [("reclaimed", 1, token)] * 2
    assert refund(admin, "r_2", "attempts", "maybe_sent") == (1, True)
    assert journal(admin, "r_2")[-1] == ("sending", "sending", token, 1, True, None, None, None)
    with unchanged(admin):
        assert len(ledger.claim_refunds(MERCHANT, token, 10, reclaim=True)) == 2
        after = ledger.claim_refunds(MERCHANT, token, 10, after_refund_id="r_1", reclaim=True)
    assert [claim.refund_id for claim in after] == ["r_2"]


def test_a_reclaim_passes_by_what_its_own_token_found_unknown(ledger: Ledger, token: int, admin: Connection) -> None:
    in_state("unknown", "r_1", token, ledger, admin)
    assert ledger.claim_refunds(MERCHANT, token, 10, reclaim=True) == []


def test_rows_that_go_to_review_come_back_too(ledger: Ledger, operators: Ledger, token: int, admin: Connection) -> None:
    operators.set_kind("settle", max_attempts=1, actor="carol", reason="a test")
    in_state("released", "r_1", token, ledger, admin)
    in_state("sending", "r_2", token, ledger, admin)
    added(ledger, "r_3")
    as_ledger_fn(
        admin,
        "update ledger.refund set first_claimed_at = now() - %s where refund_id = 'r_2'",
        [timedelta(hours=23)],
    )
    newer = activated(ledger, BOB)
    claims = ledger.claim_refunds(MERCHANT, newer, 10)
    assert [(claim.outcome, claim.reason, claim.attempt) for claim in claims] == [
        ("review", "attempts_used_up", 1),
        ("review", "key_window_over", 1),
        ("claimed", None, 1),
    ]
    assert refund(admin, "r_1", "state", "fence") == ("review", newer)
    assert journal(admin, "r_2")[-1] == ("sending", "review", newer, 1, True, None, None, None)


def test_ones_own_past_the_key_window_go_to_review_when_taken_again(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("sending", "r_1", token, ledger, admin)
    as_ledger_fn(admin, "update ledger.refund set first_claimed_at = now() - interval '1 day'")
    (claim,) = ledger.claim_refunds(MERCHANT, token, 10, reclaim=True)
    assert (claim.outcome, claim.reason) == ("review", "key_window_over")


def test_rows_that_somebody_has_locked_are_passed_over(
    ledger: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1", "r_2", "r_3")
    with rival.transaction(force_rollback=True):
        Ledger(rival).claim_refund(MERCHANT, "r_2", token)
        assert outcomes(ledger.claim_refunds(MERCHANT, token, 2)) == [("r_1", "claimed"), ("r_3", "claimed")]
    assert outcomes(ledger.claim_refunds(MERCHANT, token, 2)) == [("r_2", "claimed")]


@pytest.mark.parametrize("max_rows", [1, 1000])
def test_max_rows_is_from_one_to_a_thousand(max_rows: int, ledger: Ledger, token: int) -> None:
    added(ledger, "r_1", "r_2")
    assert len(ledger.claim_refunds(MERCHANT, token, max_rows)) == min(max_rows, 2)


def test_nothing_to_claim_is_an_empty_answer(ledger: Ledger, token: int, admin: Connection) -> None:
    with unchanged(admin):
        assert ledger.claim_refunds(MERCHANT, token, 10) == []


def test_a_confirm_may_not_share_the_claims_transaction(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    with refused("LG203", admin) as refusal, connection.transaction():
        ledger.claim_refunds(MERCHANT, token, 10)
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    assert refusal.detail["reason"] == "claim_not_committed"


def test_claiming_them_again_does_not_make_the_claims_durable(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    with refused("LG203", admin) as refusal, connection.transaction():
        ledger.claim_refunds(MERCHANT, token, 10)
        assert ledger.claim_refunds(MERCHANT, token, 10, reclaim=True)[0].outcome == "reclaimed"
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    assert refusal.detail["reason"] == "claim_not_committed"


def test_a_persons_reason_is_kept_with_the_claim(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    with connection.transaction():
        connection.execute("set local ledger.actor = 'carol'; set local ledger.reason = 'by hand'")
        ledger.claim_refunds(MERCHANT, token, 10)
    assert admin.execute("select actor, reason from ledger.journal where number = 2").fetchall() == [
        ("carol", "by hand")
    ]


# What it refuses


@pytest.mark.parametrize(
    "wrong", [{"merchant_id": None}, {"after_refund_id": None}, {"reclaim": None}], ids=lambda wrong: next(iter(wrong))
)
def test_a_null_argument_is_refused(wrong: dict[str, Any], ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    with refused("LG304", admin) as refusal:
        ledger.claim_refunds(**{"merchant_id": MERCHANT, "token": token, "max_rows": 1, **wrong})
    assert refusal.tells(
        function="claim_refunds", token=token, reason="merchant_id, after_refund_id and reclaim must not be null"
    )


@pytest.mark.parametrize("max_rows", [None, 0, -1, 1001, 2**31 - 1])
def test_max_rows_out_of_bounds_is_refused(max_rows: Any, ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    with refused("LG304", admin) as refusal:
        ledger.claim_refunds(MERCHANT, token, max_rows)
    assert refusal.tells(
        function="claim_refunds", merchant_id=MERCHANT, token=token, reason="max_rows is from 1 to 1000"
    )
    assert refusal.message == "claim_refunds of m_1 refused: max_rows is from 1 to 1000; nothing was changed"
    assert refusal.hint == "Mend the call. docs/errors.md, LG304, lists the bounds."


class TestFence(Fenced):
    function = "claim_refunds"

    def prepare(self, ledger: Ledger, token: int) -> None:
        added(ledger, "r_1")

    def call(self, ledger: Ledger, token: int) -> object:
        return ledger.claim_refunds(MERCHANT, token, 10)


def test_a_stale_token_is_refused_even_when_there_is_nothing_to_claim(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    activated(ledger, BOB)
    with refused("LG101", admin):
        ledger.claim_refunds(MERCHANT, token, 10)


@pytest.mark.parametrize("merchant_id", ["", "m_9", "m" * 1000])
def test_a_merchant_without_a_fence_has_no_drawn_token(
    merchant_id: str, ledger: Ledger, token: int, admin: Connection
) -> None:
    with refused("LG102", admin) as refusal:
        ledger.claim_refunds(merchant_id, token, 10)
    assert refusal.tells(merchant_id=merchant_id, token=token, active=None)


def test_rows_ahead_of_their_fence_are_passed_over(ledger: Ledger, token: int, admin: Connection) -> None:
    for state in ("pending", "sending", "unknown"):
        in_state(state, f"r_{state}", token, ledger, admin)
    as_ledger_fn(admin, "update ledger.refund set fence = %s + 1000", [token])
    with unchanged(admin):
        assert ledger.claim_refunds(MERCHANT, token, 10, reclaim=True) == []


# Which refusal comes first


def test_a_bad_argument_is_told_before_the_new_timeline(ledger: Ledger, token: int, admin: Connection) -> None:
    on_a_new_timeline(admin)
    with refused("LG304", admin):
        ledger.claim_refunds(MERCHANT, UNDRAWN, 0)


def test_a_null_merchant_is_told_before_the_number_of_rows(ledger: Ledger, token: int, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.claim_refunds(cast("str", None), token, 0)
    assert "must not be null" in refusal.message
