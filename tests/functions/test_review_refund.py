from __future__ import annotations

from ledger.client import Ledger
from tests.functions.by_person import MovedByPerson
from tests.story import MERCHANT, Connection, activated, added, in_state, refused


class TestReview(MovedByPerson):
    function = "review_refund"
    to_state = "review"
    outcome = "review"
    already = "already_review"
    starts_from = frozenset({"pending", "unknown", "accepted"})
    accounts = (None, None)


def test_one_that_is_sending_belongs_to_its_holder_until_that_is_fenced_out(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    token = activated(ledger)
    in_state("sending", "r_1", token, ledger, admin)
    with refused("LG204", admin) as refusal:
        operators.review_refund(MERCHANT, "r_1", "carol", "ticket 91")
    assert refusal.tells(state="sending", row_token=token)
    assert {move["to"] for move in refusal.detail["legal"]} >= {"sent", "failed", "unknown"}


def test_a_set_of_claims_goes_round_it(ledger: Ledger, operators: Ledger) -> None:
    added(ledger, "r_1", "r_2")
    operators.review_refund(MERCHANT, "r_1", "carol", "ticket 91")
    assert [claim.refund_id for claim in ledger.claim_refunds(MERCHANT, activated(ledger), 10)] == ["r_2"]
