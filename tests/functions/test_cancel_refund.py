from __future__ import annotations

from ledger.client import Ledger
from tests.functions.by_person import MovedByPerson
from tests.story import MERCHANT, Connection, activated, added, refund, refused


class TestCancel(MovedByPerson):
    function = "cancel_refund"
    to_state = "cancelled"
    outcome = "cancelled"
    already = "already_cancelled"
    starts_from = frozenset({"pending", "review"})
    accounts = ("refund_reserved", "merchant_available")


def test_one_that_may_have_been_sent_is_not_cancelled(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", activated(ledger))
    token = activated(ledger)
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "taken_over"
    ledger.mark_unknown(MERCHANT, "r_1", token, "timeout")
    operators.review_refund(MERCHANT, "r_1", "carol", "ticket 91")

    with refused("LG204", admin) as refusal:
        operators.cancel_refund(MERCHANT, "r_1", "carol", "ticket 91")
    assert refusal.tells(state="review", refund_id="r_1")
    assert refund(admin, "r_1", "maybe_sent") is True


def test_one_that_was_released_as_never_sent_may_be_cancelled(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_1", token)
    ledger.release_refund(MERCHANT, "r_1", token, "not sent")

    assert operators.cancel_refund(MERCHANT, "r_1", "carol", "ticket 91").outcome == "cancelled"
    assert refund(admin, "r_1", "state", "fence") == ("cancelled", token)
