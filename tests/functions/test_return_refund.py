from __future__ import annotations

from ledger.client import Ledger
from tests.functions.by_person import WHO, MovedByPerson
from tests.story import MERCHANT, Connection, activated, in_state, journal, refund, refused


class TestReturn(MovedByPerson):
    function = "return_refund"
    to_state = "returned"
    outcome = "returned"
    already = "already_returned"
    starts_from = frozenset({"sent", "review"})
    accounts = ("refund_reserved", "merchant_available")


def test_a_sent_one_comes_back_by_the_mirror_of_how_it_went(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    settled = refund(admin, "r_1", "settled_at")

    operators.return_refund(MERCHANT, "r_1", "re_r_1", evidence={"bank": "account closed"}, **WHO)

    assert journal(admin, "r_1")[-1][5:] == ("gateway_clearing", "merchant_available", 7025)
    assert refund(admin, "r_1", "state", "settled_at", "gateway_ref") == ("returned", settled, "re_r_1")
    balances = admin.execute("select account, balance_minor from ledger.balance").fetchall()
    assert dict(balances) == {"merchant_available": 0, "refund_reserved": 0, "gateway_clearing": 0}


def test_it_is_about_the_movement_that_is_recorded(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    with refused("LG303", admin):
        operators.return_refund(MERCHANT, "r_1", "re_other", evidence={"bank": "account closed"}, **WHO)


def test_it_needs_evidence(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    with refused("LG304", admin) as refusal:
        operators.return_refund(MERCHANT, "r_1", **WHO)
    assert refusal.tells(reason="evidence is needed: what the gateway says, as a JSON object")
