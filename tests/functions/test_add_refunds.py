from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import RowOutcome
from tests.story import MERCHANT, activated, added, in_state, journal, refund, refused, unchanged

Connection = psycopg.Connection[Any]

NONE = cast("list[str]", None)


def outcomes(rows: list[RowOutcome]) -> list[tuple[str, str, str | None]]:
    return [(row.refund_id, row.outcome, row.reason) for row in rows]


# What it does


def test_rows_come_back_in_the_order_given(ledger: Ledger, admin: Connection) -> None:
    rows = ledger.add_refunds(MERCHANT, ["r_3", "r_1", "r_2"], [3, 1, 2], ["EUR", "JPY", "USD"])
    assert rows == [
        RowOutcome(1, "r_3", "added", None, "pending", 3, "EUR", None),
        RowOutcome(2, "r_1", "added", None, "pending", 1, "JPY", None),
        RowOutcome(3, "r_2", "added", None, "pending", 2, "USD", None),
    ]
    assert journal(admin, "r_2") == [(None, "pending", None, 0, False, "merchant_available", "refund_reserved", 2)]


def test_what_is_written_is_what_the_single_call_writes(ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", "pay", "acme", "key_1")
    ledger.add_refunds(MERCHANT, ["r_2"], [7025], ["EUR"], ["pay"], ["acme"], ["key_2"])
    refunds = admin.execute(
        "select to_jsonb(r) - '{refund_id,idempotency_key,added_at,changed_at}'::text[] from ledger.refund as r"
    ).fetchall()
    entries = admin.execute(
        "select to_jsonb(j) - '{refund_id,at,evidence}'::text[], j.evidence - 'idempotency_key' from ledger.journal j"
    ).fetchall()
    assert refunds[0] == refunds[1]
    assert entries[0] == entries[1]
    assert ledger.verify() == []


def test_optional_arrays_may_have_nulls(ledger: Ledger, admin: Connection) -> None:
    ledger.add_refunds(MERCHANT, ["r_1", "r_2"], [1, 2], ["EUR"] * 2, ["pay", None], [None, "acme"], [None, "key_2"])
    assert refund(admin, "r_1", "payment_ref", "gateway", "idempotency_key") == ("pay", None, "m_1/r_1")
    assert refund(admin, "r_2", "payment_ref", "gateway", "idempotency_key") == (None, "acme", "key_2")


def test_no_rows_are_nothing_to_do(ledger: Ledger, admin: Connection) -> None:
    with unchanged(admin):
        assert ledger.add_refunds(MERCHANT, [], [], []) == []


def test_the_same_again_changes_nothing(ledger: Ledger, admin: Connection) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    added(ledger, "r_2")
    with unchanged(admin):
        rows = ledger.add_refunds(MERCHANT, ["r_1", "r_2"], [7025, 7025], ["EUR", "EUR"])
    assert [(row.outcome, row.state, row.gateway_ref) for row in rows] == [
        ("already", "sent", "re_r_1"),
        ("already", "pending", None),
    ]


def test_a_row_with_other_content_is_refused_and_the_others_are_added(ledger: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    ledger.add_refund(MERCHANT, "r_9", 1, "EUR", idempotency_key="taken")
    rows = ledger.add_refunds(
        MERCHANT, ["r_1", "r_2", "r_3"], [7026, 2, 3], ["EUR"] * 3, idempotency_keys=[None, "taken", None]
    )
    assert outcomes(rows) == [
        ("r_1", "LG301", "amount_minor"),
        ("r_2", "LG301", "idempotency_key"),
        ("r_3", "added", None),
    ]
    assert [row.state for row in rows] == ["pending", None, "pending"]
    assert refund(admin, "r_1", "amount_minor") == 7025
    assert admin.execute("select count(*) from ledger.refund where refund_id = 'r_2'").fetchall() == [(0,)]


def test_a_refused_row_leaves_a_record(ledger: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    ledger.add_refunds(MERCHANT, ["r_0", "r_1"], [1, 7026], ["EUR"] * 2)
    assert admin.execute(
        "select code, reason, function, resource, merchant_id, refund_id, detail ->> 'position', number is not null "
        "from ledger.refusal"
    ).fetchall() == [("LG301", "amount_minor", "add_refunds", "settle:m_1", MERCHANT, "r_1", "2", True)]


def test_an_id_twice_in_one_call_is_added_once(ledger: Ledger, admin: Connection) -> None:
    rows = ledger.add_refunds(MERCHANT, ["r_1", "r_1", "r_1"], [5, 5, 6], ["EUR"] * 3)
    assert outcomes(rows) == [("r_1", "added", None), ("r_1", "already", None), ("r_1", "LG301", "amount_minor")]
    assert len(journal(admin, "r_1")) == 1


def test_a_key_twice_in_one_call_belongs_to_one_refund(ledger: Ledger, admin: Connection) -> None:
    rows = ledger.add_refunds(MERCHANT, ["r_1", "r_2"], [5, 5], ["EUR"] * 2, idempotency_keys=["k", "k"])
    assert outcomes(rows) == [("r_1", "added", None), ("r_2", "LG301", "idempotency_key")]
    assert ledger.verify() == []


def test_a_thousand_rows_are_one_call(ledger: Ledger, admin: Connection) -> None:
    ids = [f"r_{n:04}" for n in range(1000)]
    rows = ledger.add_refunds(MERCHANT, ids, list(range(1, 1001)), ["EUR"] * 1000)
    assert [row.refund_id for row in rows] == ids
    assert {row.outcome for row in rows} == {"added"}
    assert admin.execute("select count(*), sum(amount_minor) from ledger.journal").fetchall() == [(1000, 500500)]


# What it refuses


@pytest.mark.parametrize(
    ("refund_ids", "amounts_minor", "currencies"),
    [
        (None, [1], ["EUR"]),
        (["r_1"], None, ["EUR"]),
        (["r_1"], [1], None),
    ],
)
def test_a_null_array_is_refused(
    refund_ids: Any, amounts_minor: Any, currencies: Any, connection: Connection, admin: Connection
) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute(
            "select * from ledger.add_refunds('m_1', %s::text[], %s::bigint[], %s::text[])",
            [refund_ids, amounts_minor, currencies],
        )
    assert refusal.tells(function="add_refunds", merchant_id=MERCHANT, reason="an array is null")
    assert refusal.message == "add_refunds of m_1 refused: an array is null; nothing was changed"
    assert refusal.hint == "Mend the call. docs/errors.md, LG304, lists the bounds."


@pytest.mark.parametrize(
    "arrays",
    [
        (["r_1"], [1, 2], ["EUR"]),
        (["r_1"], [1], []),
        (["r_1"], [1], ["EUR"], ["a", "b"]),
        (["r_1"], [1], ["EUR"], None, []),
        (["r_1"], [1], ["EUR"], None, None, ["a", "b"]),
    ],
)
def test_arrays_of_unequal_length_are_refused(arrays: Any, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.add_refunds(MERCHANT, *arrays)
    assert refusal.detail["reason"].startswith("the arrays are of unequal length: 1, ")


def test_more_than_a_thousand_rows_are_refused(ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.add_refunds(MERCHANT, ["r"] * 1001, [1] * 1001, ["EUR"] * 1001)
    assert refusal.detail["reason"] == "1001 rows are too many; at most 1000 a call"


@pytest.mark.parametrize("merchant_id", [None, "", "a/b", "m" * 101])
def test_a_malformed_merchant_id_is_refused(merchant_id: Any, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.add_refunds(merchant_id, ["r_1"], [1], ["EUR"])
    assert refusal.tells(merchant_id=merchant_id, position=1)


@pytest.mark.parametrize(
    "bad",
    [
        {"refund_ids": None},
        {"refund_ids": ""},
        {"refund_ids": "r" * 151},
        {"payment_refs": ""},
        {"gateways": "g" * 101},
        {"idempotency_keys": "k" * 256},
    ],
)
def test_one_malformed_row_refuses_them_all_and_is_named(
    bad: dict[str, Any], ledger: Ledger, admin: Connection
) -> None:
    arrays: dict[str, list[Any]] = {
        "refund_ids": ["r_1", "r_2", "r_3"],
        "amounts_minor": [1, 2, 3],
        "currencies": ["EUR"] * 3,
        "payment_refs": [None] * 3,
        "gateways": [None] * 3,
        "idempotency_keys": [None] * 3,
    }
    for name, value in bad.items():
        arrays[name][1] = value
    with refused("LG304", admin) as refusal:
        ledger.add_refunds(MERCHANT, **arrays)
    assert refusal.tells(function="add_refunds", merchant_id=MERCHANT, refund_id=arrays["refund_ids"][1], position=2)


@pytest.mark.parametrize(("amount_minor", "currency"), [(0, "EUR"), (-1, "EUR"), (None, "EUR"), (1, "eur"), (1, None)])
def test_one_bad_amount_refuses_them_all_and_is_named(
    amount_minor: Any, currency: Any, ledger: Ledger, admin: Connection
) -> None:
    with refused("LG302", admin) as refusal:
        ledger.add_refunds(MERCHANT, ["r_1", "r_2"], [1, amount_minor], ["EUR", currency])
    assert refusal.tells(
        merchant_id=MERCHANT, refund_id="r_2", position=2, amount_minor=amount_minor, currency=currency
    )
    assert refusal.message.startswith("add_refunds of m_1 r_2 refused: the ")
    assert "ledger.currency" in refusal.hint


# Which refusal comes first


def test_the_first_bad_row_is_the_one_named(ledger: Ledger, admin: Connection) -> None:
    with refused("LG302", admin) as refusal:
        ledger.add_refunds(MERCHANT, ["r_1", "r_2", "r_3"], [1, 0, -1], ["EUR"] * 3)
    assert refusal.detail["position"] == 2


def test_a_malformed_id_is_told_before_a_bad_amount_of_an_earlier_row(ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.add_refunds(MERCHANT, ["r_1", ""], [0, 1], ["EUR"] * 2)
    assert refusal.detail["position"] == 2


def test_a_bad_amount_is_told_before_a_conflict(ledger: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    with refused("LG302", admin):
        ledger.add_refunds(MERCHANT, ["r_1", "r_2"], [7026, 0], ["EUR"] * 2)
