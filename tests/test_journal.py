"""Every transition leaves its entry, and the entries alone can rebuild the refunds and the balances."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    activated,
    added,
    in_state,
    journal,
    moved_by_a_person,
    raised,
    refund,
    refused,
    written,
)

Connection = psycopg.Connection[Any]

AVAILABLE, RESERVED, CLEARING = "merchant_available", "refund_reserved", "gateway_clearing"
ADDED = (None, "pending", AVAILABLE, RESERVED)
CLAIMED = ("pending", "sending", None, None)

# Each way through the states, and the accounts that it touches.
WAYS: dict[str, list[tuple[str | None, str, str | None, str | None]]] = {
    "pending": [ADDED],
    "sending": [ADDED, CLAIMED],
    "released": [ADDED, CLAIMED, ("sending", "pending", None, None)],
    "sent": [ADDED, CLAIMED, ("sending", "sent", RESERVED, CLEARING)],
    "failed": [ADDED, CLAIMED, ("sending", "failed", RESERVED, AVAILABLE)],
    "unknown": [ADDED, CLAIMED, ("sending", "unknown", None, None)],
    "accepted": [ADDED, CLAIMED, ("sending", "accepted", None, None)],
    "review": [ADDED, CLAIMED, ("sending", "review", None, None)],
    "cancelled": [ADDED, CLAIMED, ("sending", "pending", None, None), ("pending", "cancelled", RESERVED, AVAILABLE)],
    "returned": [
        ADDED,
        CLAIMED,
        ("sending", "sent", RESERVED, CLEARING),
        ("sent", "returned", CLEARING, AVAILABLE),
    ],
}


def balances(admin: Connection) -> dict[str, int]:
    return {
        account: minor
        for account, minor in admin.execute("select account, balance_minor from ledger.balance").fetchall()
        if minor
    }


def open_world(ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    """A long mixed story: every state by every way, takeovers, repetitions, refusals, sets, persons."""
    first = activated(ledger, ALICE)
    for state in WAYS:
        in_state(state, f"a_{state}", first, ledger, admin)
    ids = [f"b_{n:02}" for n in range(30)]
    ledger.add_refunds(
        MERCHANT, ids, list(range(1, 31)), ["EUR", "JPY", "KWD"] * 10, gateways=["acme", None, "other"] * 10,
        payment_refs=[None, "pay"] * 15, idempotency_keys=[None if n % 4 else f"old-{n}" for n in range(30)],
    )  # fmt: skip
    ledger.claim_refunds(MERCHANT, first, 12, "b")
    ledger.claim_refunds(MERCHANT, first, 4, "b", reclaim=True)
    ledger.confirm_refunds(MERCHANT, first, ids[:6], [f"re_{i}" for i in ids[:6]])
    ledger.accept_refund(MERCHANT, ids[6], first, "re_6", {"status": "pending"})
    ledger.accept_refund(MERCHANT, ids[7], first, "re_7")
    ledger.mark_unknown(MERCHANT, ids[8], first, "timeout")

    second = activated(rivals, BOB)
    with raised("LG101"):
        ledger.confirm_refund(MERCHANT, ids[9], first, "re_late")
    rivals.claim_refunds(MERCHANT, second, 20, "b_07")
    settled = [ids[5], ids[6], ids[8], ids[9], "b_99"]
    rivals.confirm_refunds(MERCHANT, second, settled, ["re_5", "re_6", "re_8", "re_9", "re_99"])
    rivals.release_refund(MERCHANT, ids[10], second, "not sent")
    rivals.release_refund(MERCHANT, ids[15], second, "not sent")
    rivals.fail_refund(MERCHANT, ids[11], second, "card closed", {"code": 1})
    rivals.fail_refund(MERCHANT, ids[7], second, "bank refused")
    rivals.confirm_refund(MERCHANT, ids[12], second, "re_12", {"amount_minor": 1})
    rivals.confirm_refund(MERCHANT, ids[13], second, "re_13", {"currency": "USD"})
    rivals.mark_unknown(MERCHANT, "a_accepted", second, "nobody knows")

    third = activated(ledger, ALICE)
    for claim in ledger.claim_refunds(MERCHANT, third, 1000):
        if claim.outcome == "claimed":
            ledger.confirm_refund(MERCHANT, claim.refund_id, third, f"re3_{claim.refund_id}")
    ledger.mark_unknown(MERCHANT, "a_unknown", third, "still nobody knows")
    ledger.accept_refund(MERCHANT, "a_sending", third, "re_a", {"status": "pending"})
    moved_by_a_person(admin, ids[12], "sent")
    moved_by_a_person(admin, "a_review", "pending")
    moved_by_a_person(admin, ids[0], "returned")


# Entries


@pytest.mark.parametrize("state", WAYS)
def test_each_way_through_the_states_leaves_its_entries(state: str, ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    in_state(state, "r_1", token, ledger, admin)
    entries = journal(admin, "r_1")
    assert [(e[0], e[1], e[5], e[6]) for e in entries] == WAYS[state]
    assert [e[7] for e in entries] == [7025 if debit else None for _, _, debit, _ in WAYS[state]]
    by_token = [e[2] for e in entries if e[1] not in {"cancelled", "returned"}]
    assert by_token == [None] + [token] * (len(by_token) - 1)
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("pending", {AVAILABLE: -7025, RESERVED: 7025}),
        ("sending", {AVAILABLE: -7025, RESERVED: 7025}),
        ("released", {AVAILABLE: -7025, RESERVED: 7025}),
        ("unknown", {AVAILABLE: -7025, RESERVED: 7025}),
        ("accepted", {AVAILABLE: -7025, RESERVED: 7025}),
        ("review", {AVAILABLE: -7025, RESERVED: 7025}),
        ("sent", {AVAILABLE: -7025, CLEARING: 7025}),
        ("failed", {}),
        ("cancelled", {}),
        ("returned", {}),
    ],
)
def test_the_balances_are_where_the_money_is(
    state: str, expected: dict[str, int], ledger: Ledger, admin: Connection
) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)
    assert balances(admin) == expected


def test_entries_are_numbered_without_a_gap_and_follow_each_other(
    ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    open_world(ledger, rivals, admin)
    entries: dict[str, list[tuple[int, str | None, str]]] = {}
    for refund_id, *entry in admin.execute(
        "select refund_id, number, from_state, to_state from ledger.journal order by refund_id, number"
    ):
        entries.setdefault(refund_id, []).append((entry[0], entry[1], entry[2]))
    for refund_id, story in entries.items():
        assert [number for number, _, _ in story] == list(range(1, len(story) + 1)), refund_id
        assert [before for _, before, _ in story] == [None, *(after for _, _, after in story[:-1])], refund_id
    assert len(entries) == len(WAYS) + 30


def test_times_rise_with_the_numbers(ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    open_world(ledger, rivals, admin)
    assert (
        admin.execute(
            "select j.refund_id from ledger.journal as j join ledger.journal as k on k.merchant_id = j.merchant_id "
            "and k.refund_id = j.refund_id and k.number = j.number + 1 where k.at < j.at"
        ).fetchall()
        == []
    )


def test_the_history_names_the_holder_behind_each_token(ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    in_state("unknown", "r_1", activated(ledger, ALICE), ledger, admin)
    rivals.claim_refund(MERCHANT, "r_1", activated(rivals, BOB))
    assert admin.execute("select to_state, holder from ledger.history order by number").fetchall() == [
        ("pending", None),
        ("sending", ALICE),
        ("unknown", ALICE),
        ("sending", BOB),
    ]


def test_the_first_entry_keeps_what_a_rebuild_needs(ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund(MERCHANT, "r_1", 1, "EUR", "pay", "acme", "key")
    ledger.add_refunds(MERCHANT, ["r_2"], [1], ["EUR"])
    assert admin.execute("select evidence from ledger.journal order by refund_id").fetchall() == [
        ({"payment_ref": "pay", "gateway": "acme", "idempotency_key": "key"},),
        ({"idempotency_key": "m_1/r_2"},),
    ]


# What can be rebuilt


def test_the_journal_rebuilds_the_refunds_after_a_long_story(ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    open_world(ledger, rivals, admin)
    columns = [
        name
        for (name,) in admin.execute(
            "select attname from pg_attribute where attrelid = 'ledger.refund'::regclass and attnum > 0 "
            "and attname <> 'claimed_xid' order by attname"
        ).fetchall()
    ]
    chosen = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns))
    as_they_are, rebuilt = (
        admin.execute(
            psycopg.sql.SQL("select {} from {} order by merchant_id, refund_id").format(
                chosen, psycopg.sql.Identifier("ledger", relation)
            )
        ).fetchall()
        for relation in ("refund", "refund_from_journal")
    )
    assert rebuilt == as_they_are
    assert {row[columns.index("state")] for row in as_they_are} == {*WAYS} - {"released"}
    assert ledger.verify() == []
    assert ledger.verify(MERCHANT) == []


def test_nothing_is_lost_between_the_accounts(ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    open_world(ledger, rivals, admin)
    assert (
        admin.execute(
            "select currency, sum(balance_minor) from ledger.balance group by 1 having sum(balance_minor) <> 0"
        ).fetchall()
        == []
    )
    assert (
        admin.execute(
            "select b.currency from ledger.balance as b left join ("
            "  select currency, sum(amount_minor) as sent from ledger.refund where state = 'sent' group by 1"
            ") as r on r.currency = b.currency where b.account = 'gateway_clearing' and b.balance_minor <> r.sent"
        ).fetchall()
        == []
    )


@pytest.mark.parametrize(
    "entry",
    [
        "'merchant_available', null, 1, 'EUR'",
        "'merchant_available', 'refund_reserved', null, 'EUR'",
        "'merchant_available', 'refund_reserved', 1, null",
        "'merchant_available', 'merchant_available', 1, 'EUR'",
        "'merchant_available', 'refund_reserved', 0, 'EUR'",
        "'merchant_available', 'refund_reserved', -1, 'EUR'",
        "null, null, 1, null",
    ],
)
def test_an_entry_that_does_not_balance_cannot_be_written(entry: str, admin: Connection) -> None:
    with raised("23514"), admin.transaction():
        admin.execute("set local role ledger_fn")
        admin.execute(
            "insert into ledger.journal (merchant_id, refund_id, number, attempts, at, maybe_sent, to_state, "
            "debit, credit, amount_minor, currency) "
            f"values ('m_1', 'r_1', 1, 0, now(), false, 'pending', {entry})".encode()
        )


# Refusals


def test_a_refused_call_leaves_nothing_but_its_refusal(
    ledger: Ledger, rival: Connection, connection: Connection, admin: Connection
) -> None:
    token = activated(ledger)
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    newer = activated(ledger, BOB)
    before = written(admin)
    with raised("LG101") as refusal:
        Ledger(connection, refusals=rival).confirm_refund(MERCHANT, "r_1", token, "re_1")
    after = written(admin)
    assert before.pop("refusal")[0] + 1 == after.pop("refusal")[0]
    assert after == before
    assert admin.execute(
        "select number, code, reason, function, kind, resource, merchant_id, refund_id, token, active, holder, "
        "active_holder, message, detail, database_user from ledger.refusal"
    ).fetchall() == [
        (
            refusal.detail["refusal"], "LG101", "superseded", "confirm_refund", "settle", "settle:m_1", MERCHANT,
            "r_1", token, newer, ALICE, BOB, refusal.message, refusal.detail, "ledger_worker",
        )
    ]  # fmt: skip


def test_a_refusal_takes_the_rest_of_its_transaction_with_it(
    ledger: Ledger, connection: Connection, admin: Connection
) -> None:
    token = activated(ledger)
    added(ledger, "r_1", "r_2")
    ledger.claim_refund(MERCHANT, "r_1", token)
    with refused("LG201", admin), connection.transaction():
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
        ledger.claim_refund(MERCHANT, "r_2", token)
        ledger.claim_refund(MERCHANT, "r_9", token)
    assert refund(admin, "r_1", "state") == "sending"


def test_a_savepoint_keeps_what_was_done_before_the_refusal(
    ledger: Ledger, connection: Connection, admin: Connection
) -> None:
    token = activated(ledger)
    added(ledger, "r_1")
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", token)
        with raised("LG201"), connection.transaction():
            ledger.claim_refund(MERCHANT, "r_9", token)
    assert journal(admin, "r_1")[-1][1] == "sending"


def test_a_refusal_is_counted_even_though_it_rolls_back(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    before = admin.execute("select last_value, is_called from ledger.refusal_seq").fetchall()
    with raised("LG201"):
        ledger.claim_refund(MERCHANT, "r_9", token)
    after = admin.execute("select last_value, is_called from ledger.refusal_seq").fetchall()
    assert (before, after) == ([(1, False)], [(1, True)])
