from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ledger.client import Ledger
from tests.functions.by_person import MovedByPerson
from tests.story import MERCHANT, Connection, activated, added, in_state, refund, refused


class TestCancel(MovedByPerson):
    function = "cancel_refund"
    to_state = "cancelled"
    outcome = "cancelled"
    already = "already_cancelled"
    starts_from = frozenset({"pending"})  # and from review what was never out, below
    accounts = ("refund_reserved", "merchant_available")


def used_up(ledger: Ledger, operators: Ledger, token: int) -> None:
    operators.set_kind("settle", max_attempts=1, actor="carol", reason="ticket 91")
    assert ledger.claim_refund(MERCHANT, "r_1", activated(ledger)).reason == "attempts_used_up"


WITHOUT_A_FINAL_WORD: dict[str, Callable[[Ledger, Ledger, int], Any]] = {
    "unknown": lambda ledger, _, token: ledger.mark_unknown(MERCHANT, "r_1", token, "timeout"),
    "accepted": lambda ledger, _, token: ledger.accept_refund(MERCHANT, "r_1", token, "re_1"),
    "of another amount": lambda ledger, _, token: ledger.confirm_refund(
        MERCHANT, "r_1", token, "re_1", {"amount_minor": 1}
    ),
    "claimed too often": used_up,
}


@pytest.mark.parametrize("way", WITHOUT_A_FINAL_WORD)
def test_one_that_may_have_been_sent_is_not_cancelled(
    way: str, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"
    WITHOUT_A_FINAL_WORD[way](ledger, operators, token)
    operators.review_refund(MERCHANT, "r_1", "carol", "ticket 91")

    with refused("LG204", admin) as refusal:
        operators.cancel_refund(MERCHANT, "r_1", "carol", "ticket 91")
    assert refusal.tells(state="review", refund_id="r_1")
    assert {move["to"] for move in refusal.detail["legal"]} == {"sent", "failed", "returned", "pending"}
    assert refusal.hint.startswith("It may have been sent. Look at the gateway, then record what it did")
    assert refund(admin, "r_1", "maybe_sent") is True


def test_a_finished_one_is_called_finished_marked_or_not(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)
    newer = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_1", newer)
    ledger.confirm_refund(MERCHANT, "r_1", newer, "re_1")
    assert refund(admin, "r_1", "maybe_sent") is True
    with refused("LG202", admin) as refusal:
        operators.cancel_refund(MERCHANT, "r_1", "carol", "ticket 91")
    assert refusal.tells(state="sent")


def test_one_in_review_that_was_never_out_may_be_cancelled(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    operators.review_refund(MERCHANT, "r_1", "carol", "ticket 91")
    assert operators.cancel_refund(MERCHANT, "r_1", "carol", "ticket 91").outcome == "cancelled"


def test_one_that_was_released_as_never_sent_may_be_cancelled(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_1", token)
    ledger.release_refund(MERCHANT, "r_1", token, "not sent")

    assert operators.cancel_refund(MERCHANT, "r_1", "carol", "ticket 91").outcome == "cancelled"
    assert refund(admin, "r_1", "state", "fence") == ("cancelled", token)
