from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Added
from tests.story import MERCHANT, activated, added, in_state, journal, raised, refund, refused, unchanged

Connection = psycopg.Connection[Any]

RECORDED: dict[str, Any] = {
    "merchant_id": MERCHANT,
    "refund_id": "r_1",
    "amount_minor": 7025,
    "currency": "EUR",
    "payment_ref": "pay_1",
    "gateway": "acme",
    "idempotency_key": "key_1",
}


# What it does


def test_a_refund_is_added_and_its_money_reserved(ledger: Ledger, admin: Connection) -> None:
    assert ledger.add_refund(**RECORDED) == Added(
        MERCHANT, "r_1", "added", "pending", 7025, "EUR", "pay_1", "acme", "key_1"
    )
    assert refund(admin, "r_1", "state", "fence", "attempts", "maybe_sent", "settled_at", "first_claimed_at") == (
        "pending", 0, 0, False, None, None,
    )  # fmt: skip
    assert journal(admin, "r_1") == [(None, "pending", None, 0, False, "merchant_available", "refund_reserved", 7025)]
    assert admin.execute("select account, balance_minor from ledger.balance order by 1").fetchall() == [
        ("merchant_available", -7025),
        ("refund_reserved", 7025),
    ]


def test_the_key_is_made_of_both_ids_unless_one_is_brought(ledger: Ledger) -> None:
    assert ledger.add_refund(MERCHANT, "r_1", 1, "EUR").idempotency_key == "m_1/r_1"
    assert ledger.add_refund(MERCHANT, "r_2", 1, "EUR", idempotency_key="old-7").idempotency_key == "old-7"


def test_the_same_again_is_a_no_op_that_says_so(ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(**RECORDED)
    with unchanged(admin):
        assert ledger.add_refund(**RECORDED).outcome == "already"


def test_the_same_again_shows_how_far_the_refund_has_come(ledger: Ledger, admin: Connection) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    with unchanged(admin):
        again = ledger.add_refund(MERCHANT, "r_1", 7025, "EUR")
    assert (again.outcome, again.state) == ("already", "sent")


def test_one_id_may_be_used_by_two_merchants(ledger: Ledger) -> None:
    ledger.add_refund("m_1", "r_1", 1, "EUR")
    assert ledger.add_refund("m_2", "r_1", 2, "USD").outcome == "added"


def test_no_token_is_needed(ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(**RECORDED)
    assert admin.execute("select count(*) from ledger.fence").fetchall() == [(0,)]


@pytest.mark.parametrize(("currency", "amount_minor"), [("JPY", 58), ("KWD", 1), ("EUR", 2**63 - 1)])
def test_amounts_are_whole_numbers_of_the_minor_unit(currency: str, amount_minor: int, ledger: Ledger) -> None:
    assert ledger.add_refund(MERCHANT, "r_1", amount_minor, currency).amount_minor == amount_minor


@pytest.mark.parametrize(
    ("merchant_id", "refund_id"), [("m" * 100, "r" * 150), ("m 1", "a/b c"), ("händler", "gutschrift-ß"), ("m", ":")]
)
def test_ids_up_to_their_bounds_are_admitted(merchant_id: str, refund_id: str, ledger: Ledger) -> None:
    assert ledger.add_refund(merchant_id, refund_id, 1, "EUR").outcome == "added"


def test_actor_and_reason_are_kept_with_the_entry(ledger: Ledger, admin: Connection) -> None:
    connection = cast("Connection", ledger.connection)
    with connection.transaction():
        connection.execute("set local ledger.actor = 'carol'; set local ledger.reason = 'goodwill'")
        ledger.add_refund(**RECORDED)
    assert admin.execute("select actor, reason, database_user from ledger.journal").fetchall() == [
        ("carol", "goodwill", "ledger_worker")
    ]


# What it refuses


@pytest.mark.parametrize("merchant_id", [None, "", " ", "m" * 101, "a/b", "a{b", "a}b", "a\tb", "a\nb", " m", "m "])
def test_a_malformed_merchant_id_is_refused(merchant_id: Any, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.add_refund(merchant_id, "r_1", 1, "EUR")
    assert refusal.tells(
        function="add_refund", merchant_id=merchant_id, refund_id="r_1",
        reason="a merchant id is printable, 1 to 100 characters, without slash, braces or outer blanks",
    )  # fmt: skip


@pytest.mark.parametrize("refund_id", [None, "", " ", "r" * 151, "a{b", "a}b", "a\x7fb", "a\r", " r", "r "])
def test_a_malformed_refund_id_is_refused(refund_id: Any, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.add_refund(MERCHANT, refund_id, 1, "EUR")
    assert refusal.tells(
        merchant_id=MERCHANT, refund_id=refund_id,
        reason="a refund id is printable, 1 to 150 characters, without braces or outer blanks",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("idempotency_key", "", "an idempotency key is printable, 1 to 255 characters"),
        ("idempotency_key", "k" * 256, "an idempotency key is printable, 1 to 255 characters"),
        ("idempotency_key", "a\nb", "an idempotency key is printable, 1 to 255 characters"),
        ("payment_ref", "", "a payment reference is printable, 1 to 255 characters, or null"),
        ("payment_ref", "p" * 256, "a payment reference is printable, 1 to 255 characters, or null"),
        ("gateway", "", "a gateway is printable, 1 to 100 characters, or null"),
        ("gateway", "g" * 101, "a gateway is printable, 1 to 100 characters, or null"),
    ],
)
def test_a_malformed_key_reference_or_gateway_is_refused(
    column: str, value: str, reason: str, ledger: Ledger, admin: Connection
) -> None:
    with refused("LG304", admin) as refusal:
        ledger.add_refund(**{**RECORDED, column: value})
    assert refusal.tells(refund_id="r_1", reason=reason)
    assert refusal.message == f"add_refund of m_1 r_1 refused: {reason}; nothing was changed"
    assert refusal.hint == "Mend the call. docs/errors.md, LG304, lists the bounds."


@pytest.mark.parametrize("amount_minor", [0, -1, None, -(2**63)])
def test_an_amount_that_is_not_positive_is_refused(amount_minor: Any, ledger: Ledger, admin: Connection) -> None:
    with refused("LG302", admin) as refusal:
        ledger.add_refund(MERCHANT, "r_1", amount_minor, "EUR")
    told = "null" if amount_minor is None else amount_minor
    assert refusal.tells(merchant_id=MERCHANT, refund_id="r_1", amount_minor=amount_minor, currency="EUR")
    assert refusal.message == (f"add_refund of m_1 r_1 refused: the amount {told} is not positive; nothing was changed")
    assert refusal.hint.startswith("Amounts are whole numbers of the minor unit, above zero")


@pytest.mark.parametrize("currency", [None, "", "eur", "EURO", "XXX", "EUR ", "€"])
def test_an_unknown_currency_is_refused(currency: Any, ledger: Ledger, admin: Connection) -> None:
    with refused("LG302", admin) as refusal:
        ledger.add_refund(MERCHANT, "r_1", 1, currency)
    assert refusal.tells(
        currency=currency, reason=f"the currency {'null' if currency is None else currency} is not known"
    )
    assert "ledger.currency" in refusal.hint


@pytest.mark.parametrize("amount", ["'NaN'::numeric", "'Infinity'::float8", "70.25", "1e3"])
def test_an_amount_that_is_no_whole_number_finds_no_function(
    amount: str, connection: Connection, admin: Connection
) -> None:
    with unchanged(admin), raised("42883"):
        connection.execute(f"select ledger.add_refund('m_1', 'r_1', {amount}, 'EUR')".encode())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("amount_minor", 7026),
        ("currency", "USD"),
        ("payment_ref", "pay_2"),
        ("payment_ref", None),
        ("gateway", "other"),
        ("gateway", None),
        ("idempotency_key", "key_2"),
        ("idempotency_key", None),
    ],
)
def test_the_same_id_with_other_content_is_refused(column: str, value: Any, ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(**RECORDED)
    with refused("LG301", admin) as refusal:
        ledger.add_refund(**{**RECORDED, column: value})
    assert refusal.tells(merchant_id=MERCHANT, refund_id="r_1", same="refund id", differs=column)
    assert refusal.detail["recorded"] == {name: RECORDED[name] for name in list(RECORDED)[2:]}
    assert refusal.message == (
        f"add_refund of m_1 r_1 refused: the same refund id exists with other content ({column}); nothing was changed"
    )
    assert refusal.hint.startswith("Stop and look which of the two is right.")


def test_all_that_differs_is_named(ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(**RECORDED)
    with refused("LG301", admin) as refusal:
        ledger.add_refund(MERCHANT, "r_1", 1, "USD")
    assert refusal.detail["differs"] == "amount_minor, currency, payment_ref, gateway, idempotency_key"


@pytest.mark.parametrize("merchant_id", ["m_1", "m_2"])
def test_another_refunds_key_is_refused(merchant_id: str, ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(**RECORDED)
    with refused("LG301", admin) as refusal:
        ledger.add_refund(merchant_id, "r_2", 7025, "EUR", idempotency_key="key_1")
    assert refusal.tells(
        merchant_id=merchant_id, refund_id="r_2", same="idempotency key", differs="refund", idempotency_key="key_1"
    )


def test_a_default_key_that_somebody_brought_is_refused(ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(MERCHANT, "r_1", 1, "EUR", idempotency_key="m_1/r_2")
    with refused("LG301", admin) as refusal:
        ledger.add_refund(MERCHANT, "r_2", 1, "EUR")
    assert refusal.tells(same="idempotency key", idempotency_key="m_1/r_2")


# Which refusal comes first


def test_a_malformed_id_is_told_before_a_bad_amount(ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        ledger.add_refund(MERCHANT, "", 0, "eur")


def test_a_bad_amount_is_told_before_a_conflict(ledger: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    with refused("LG302", admin):
        ledger.add_refund(MERCHANT, "r_1", 0, "EUR")
