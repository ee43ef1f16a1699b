from __future__ import annotations

from typing import Any, ClassVar

import pytest

from ledger.client import Ledger
from tests.functions.by_person import WHO, MovedByPerson
from tests.story import MERCHANT, Connection, activated, in_state, refund, refused


class TestResolveAsSent(MovedByPerson):
    function = "resolve_refund"
    to_state = "sent"
    outcome = "sent"
    already = "already_sent"
    starts_from = frozenset({"review", "accepted"})
    arguments: ClassVar = {"to_state": "sent", "gateway_ref": "re_r_1"}
    accounts = ("refund_reserved", "gateway_clearing")


class TestResolveAsFailed(MovedByPerson):
    function = "resolve_refund"
    to_state = "failed"
    outcome = "failed"
    already = "already_failed"
    starts_from = frozenset({"review", "accepted"})
    arguments: ClassVar = {"to_state": "failed"}
    accounts = ("refund_reserved", "merchant_available")


class TestResolveAsReturned(MovedByPerson):
    function = "resolve_refund"
    to_state = "returned"
    outcome = "returned"
    already = "already_returned"
    starts_from = frozenset({"review", "sent"})
    arguments: ClassVar = {"to_state": "returned"}
    accounts = ("refund_reserved", "merchant_available")


@pytest.mark.parametrize(
    "to_state", [None, "", "pending", "sending", "unknown", "accepted", "cancelled", "review", "SENT"]
)
def test_only_what_became_of_it_can_be_recorded(operators: Ledger, admin: Connection, to_state: Any) -> None:
    with refused("LG304", admin) as refusal:
        operators.resolve_refund(MERCHANT, "r_1", to_state, evidence={"seen": True}, **WHO)
    assert refusal.tells(reason="to_state is sent, failed or returned", to_state=to_state)


@pytest.mark.parametrize("ref", [None, "", " "])
def test_a_sent_one_has_the_gateways_reference(
    ledger: Ledger, operators: Ledger, admin: Connection, ref: str | None
) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)
    with refused("LG304", admin):
        operators.resolve_refund(MERCHANT, "r_1", "sent", ref, evidence={"seen": True}, **WHO)


@pytest.mark.parametrize("to_state", ["failed", "returned"])
def test_a_reference_that_is_given_is_one(ledger: Ledger, operators: Ledger, admin: Connection, to_state: str) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)
    with refused("LG304", admin):
        operators.resolve_refund(MERCHANT, "r_1", to_state, " ", evidence={"seen": True}, **WHO)


@pytest.mark.parametrize("evidence", [None, {}])
def test_the_money_follows_the_evidence_so_there_must_be_some(
    ledger: Ledger, operators: Ledger, admin: Connection, evidence: dict[str, Any] | None
) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)
    with refused("LG304", admin) as refusal:
        operators.resolve_refund(MERCHANT, "r_1", "failed", evidence=evidence, **WHO)
    assert refusal.tells(reason="evidence is needed: what the gateway says, as a JSON object")


@pytest.mark.parametrize("state", ["accepted", "review", "sent"])
def test_another_reference_than_the_recorded_one_stops_everything(
    ledger: Ledger, operators: Ledger, admin: Connection, state: str
) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)
    with refused("LG303", admin) as refusal:
        operators.resolve_refund(MERCHANT, "r_1", "sent", "re_other", evidence={"seen": True}, **WHO)
    assert refusal.tells(recorded_gateway_ref="re_r_1", gateway_ref="re_other", state=state)


def test_a_webhooks_final_word_is_recorded_while_a_holder_is_at_work(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    token = activated(ledger)
    in_state("accepted", "r_1", token, ledger, admin)
    in_state("sending", "r_2", token, ledger, admin)

    moved = operators.resolve_refund(
        MERCHANT, "r_1", "sent", "re_r_1", actor="webhook", reason="evt_1", evidence={"event": "evt_1"}
    )

    assert (moved.token, refund(admin, "r_1", "fence")) == (token, token)
    assert ledger.confirm_refund(MERCHANT, "r_1", token, "re_r_1").outcome == "already_confirmed"
    assert ledger.confirm_refund(MERCHANT, "r_2", token, "re_2").outcome == "confirmed"
