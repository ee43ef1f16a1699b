from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from ledger.client import Ledger
from ledger.errors import Refused
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, UNDRAWN, Connection, activated, added, raised, refused

MALFORMED_CODES = [None, "", "LG", "LG1", "LG401", "LG1011", "lg101", "40001", "55P03"]
MALFORMED_DETAILS = [None, "null", "[]", '"text"', "1"]


def recorded(admin: Connection, *columns: str) -> list[tuple[Any, ...]]:
    return admin.execute(f"select {', '.join(columns)} from ledger.refusal order by refusal_id".encode()).fetchall()


def test_a_refusal_is_kept_as_the_caller_was_told_it(
    connection: Connection, rival: Connection, admin: Connection
) -> None:
    rival.execute("set application_name = 'settle-2'")
    ledger = Ledger(connection, refusals=rival)
    old = activated(ledger)
    active = activated(ledger, BOB)
    with raised("LG101") as refusal:
        ledger.activate_token(RESOURCE, old, ALICE)

    columns = (
        "code", "reason", "function", "kind", "resource", "merchant_id", "refund_id", "token", "active", "holder",
        "active_holder", "mode", "table_name", "number", "message", "detail", "database_user", "application_name",
        "client_address",
    )  # fmt: skip
    assert recorded(admin, *columns) == [
        (
            "LG101", "superseded", "activate_token", "settle", RESOURCE, None, None, old, active, ALICE,
            BOB, "enforce", None, refusal.detail["refusal"], refusal.message, refusal.detail, "ledger_worker",
            "settle-2", None,
        )
    ]  # fmt: skip


def test_a_refunds_refusal_is_found_by_the_refund(connection: Connection, rival: Connection, admin: Connection) -> None:
    ledger = Ledger(connection, refusals=rival)
    token = activated(ledger)
    with raised("LG201"):
        ledger.claim_refund(MERCHANT, "r_404", token)

    assert recorded(admin, "code", "kind", "resource", "merchant_id", "refund_id", "token") == [
        ("LG201", "settle", RESOURCE, MERCHANT, "r_404", token)
    ]


def test_a_record_outlives_the_transaction_that_was_refused(
    connection: Connection, rival: Connection, admin: Connection
) -> None:
    ledger = Ledger(connection, refusals=rival)
    with pytest.raises(Refused), connection.transaction():
        added(ledger, "r_1")
        ledger.claim_refund(MERCHANT, "r_1", UNDRAWN)

    assert recorded(admin, "code", "refund_id") == [("LG102", "r_1")]
    assert admin.execute("select from ledger.refund").fetchall() == []


def test_one_refusal_is_recorded_once(ledger: Ledger, admin: Connection) -> None:
    first = ledger.record_refusal("LG101", "told", {"refusal": 7, "token": 1})
    again = ledger.record_refusal("LG101", "told again", {"refusal": 7, "token": 1})
    other = ledger.record_refusal("LG101", "told", {"refusal": 8, "token": 1})

    assert first == again != other
    assert recorded(admin, "number", "message") == [(7, "told"), (8, "told")]


def test_refusals_without_a_number_are_all_kept(ledger: Ledger, admin: Connection) -> None:
    ids = [ledger.record_refusal("LG103", "told", {}) for _ in range(2)]

    assert len(set(ids)) == 2
    assert recorded(admin, "number", "resource", "kind", "detail") == [(None, None, None, {})] * 2


def test_the_person_who_acted_is_kept(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    connection.execute("set ledger.actor = 'dana'")
    ledger.record_refusal("LG101", "told", {})

    assert recorded(admin, "actor") == [("dana",)]


@pytest.mark.parametrize(
    "detail",
    [
        {"token": "7", "active": 1.5, "refusal": 10**30},
        {"token": {"a": 1}, "active": [1], "refusal": None},
        {"token": True, "active": -(10**20), "refusal": "x"},
    ],
)
def test_numbers_that_are_none_stay_in_the_detail_only(
    ledger: Ledger, admin: Connection, detail: dict[str, Any]
) -> None:
    ledger.record_refusal("LG101", "told", detail)

    assert recorded(admin, "number", "token", "active") == [(None, None, None)]
    assert json.loads(json.dumps(recorded(admin, "detail")[0][0])) == detail


def test_ids_of_any_length_are_recorded(ledger: Ledger, admin: Connection) -> None:
    endless = secrets.token_hex(5_000)
    ledger.record_refusal("LG102", "told", {"merchant_id": endless, "refund_id": endless, "resource": endless})

    assert recorded(admin, "detail ->> 'merchant_id'", "length(message)") == [(endless, 4)]


def test_a_row_with_an_endless_id_does_not_stop_the_set(ledger: Ledger, admin: Connection) -> None:
    endless = secrets.token_hex(5_000)
    (row,) = ledger.confirm_refunds(MERCHANT, activated(ledger), [endless], ["re_1"])

    assert (row.outcome, row.refund_id) == ("LG201", endless)
    assert recorded(admin, "code", "detail ->> 'refund_id'") == [("LG201", endless)]


def test_a_message_is_kept_up_to_4000_characters(ledger: Ledger, admin: Connection) -> None:
    ledger.record_refusal("LG304", "x" * 5_000, {})

    assert recorded(admin, "length(message)") == [(4_000,)]


@pytest.mark.parametrize("code", MALFORMED_CODES)
def test_a_code_of_somebody_elses_is_refused(connection: Connection, admin: Connection, code: str | None) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.record_refusal(%s, 'told', '{}')", [code])

    assert refusal.tells(function="record_refusal", code=code, reason="code is a SQLSTATE of the ledger, like LG101")


@pytest.mark.parametrize("detail", MALFORMED_DETAILS)
def test_a_detail_that_is_no_object_is_refused(connection: Connection, admin: Connection, detail: str | None) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.record_refusal('LG101', 'told', %s::jsonb)", [detail])

    assert refusal.tells(reason="detail is a JSON object of at most 1 MiB")


def test_a_detail_of_more_than_a_mebibyte_is_refused(ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        ledger.record_refusal("LG101", "told", {"x": "x" * 1_048_576})


def test_the_code_is_looked_at_before_the_detail(connection: Connection) -> None:
    with raised("LG304") as refusal:
        connection.execute("select ledger.record_refusal('', 'told', null)")

    assert refusal.message == (
        "record_refusal refused: code is a SQLSTATE of the ledger, like LG101; nothing was changed"
    )


def test_a_refusal_can_be_recorded_without_a_message(connection: Connection, admin: Connection) -> None:
    connection.execute("select ledger.record_refusal('LG101', null, '{}')")

    assert recorded(admin, "message") == [(None,)]
