from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from tests.functions.by_person import WHO, MovedByPerson
from tests.story import (
    MERCHANT,
    Connection,
    activated,
    added,
    as_ledger_fn,
    balanced,
    in_state,
    journal,
    refund,
    refused,
)

ABSENT = {"not_at_gateway": True, "asked": "the dashboard"}


class TestRequeue(MovedByPerson):
    function = "requeue_refund"
    to_state = "pending"
    outcome = "requeued"
    already = "already_pending"
    starts_from = frozenset({"review"})
    evidence = ABSENT
    accounts = (None, None)


@pytest.mark.parametrize(
    "evidence", [None, {}, {"seen": True}, {"not_at_gateway": False}, {"not_at_gateway": "true"}, {"not_at_gateway": 1}]
)
def test_the_evidence_says_that_the_gateway_has_nothing(
    ledger: Ledger, operators: Ledger, admin: Connection, evidence: dict[str, Any] | None
) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)
    with refused("LG304", admin) as refusal:
        operators.requeue_refund(MERCHANT, "r_1", evidence=evidence, **WHO)
    assert refusal.tells(reason='evidence must say {"not_at_gateway": true}: look there first')


def test_attempts_begin_again_and_the_next_holder_asks_first(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    for _ in range(5):
        token = activated(ledger)
        ledger.claim_refund(MERCHANT, "r_1", token)
        ledger.mark_unknown(MERCHANT, "r_1", token, "timeout")
    assert ledger.claim_refund(MERCHANT, "r_1", activated(ledger)).reason == "attempts_used_up"

    operators.requeue_refund(MERCHANT, "r_1", evidence=ABSENT, **WHO)

    assert refund(admin, "r_1", "state", "attempts", "maybe_sent") == ("pending", 0, True)
    assert journal(admin, "r_1")[-1][:5] == ("review", "pending", None, 0, True)
    claim = ledger.claim_refund(MERCHANT, "r_1", activated(ledger))
    assert (claim.outcome, claim.attempt) == ("taken_over", 1)
    assert balanced(operators)


def test_the_key_window_begins_again_for_a_person_has_looked(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    token = activated(ledger)
    in_state("unknown", "r_1", token, ledger, admin)
    as_ledger_fn(admin, "update ledger.refund set first_claimed_at = first_claimed_at - interval '24 hours'")
    assert ledger.claim_refund(MERCHANT, "r_1", activated(ledger)).reason == "key_window_over"

    operators.requeue_refund(MERCHANT, "r_1", evidence=ABSENT, **WHO)

    first, changed = refund(admin, "r_1", "first_claimed_at", "changed_at")
    assert first == changed
    assert ledger.claim_refund(MERCHANT, "r_1", activated(ledger)).outcome == "taken_over"


def test_one_that_was_never_claimed_is_not_marked(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    operators.review_refund(MERCHANT, "r_1", **WHO)
    operators.requeue_refund(MERCHANT, "r_1", evidence=ABSENT, **WHO)

    assert refund(admin, "r_1", "maybe_sent", "first_claimed_at") == (False, None)
    assert ledger.claim_refund(MERCHANT, "r_1", activated(ledger)).outcome == "claimed"
    assert balanced(operators)


def test_one_that_was_claimed_once_is_marked_though_it_was_given_back(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    in_state("released", "r_1", activated(ledger), ledger, admin)
    operators.review_refund(MERCHANT, "r_1", **WHO)
    assert refund(admin, "r_1", "maybe_sent") is False
    assert operators.requeue_refund(MERCHANT, "r_1", evidence=ABSENT, **WHO).maybe_sent is True

    assert refund(admin, "r_1", "maybe_sent") is True
    assert journal(admin, "r_1")[-1][:5] == ("review", "pending", None, 0, True)
    assert balanced(operators)


def test_a_mark_stays_whatever_else_the_row_says(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    operators.review_refund(MERCHANT, "r_1", **WHO)
    as_ledger_fn(admin, "update ledger.refund set maybe_sent = true")
    operators.requeue_refund(MERCHANT, "r_1", evidence=ABSENT, **WHO)
    assert refund(admin, "r_1", "maybe_sent") is True
