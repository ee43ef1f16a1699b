"""What the database itself has to tell of: names, labels and values, from indexes alone."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.story import ALICE, BOB, MERCHANT, activated, added, as_ledger_fn, in_state, on_a_new_timeline, raised

Connection = psycopg.Connection[Any]
STATES = ("pending", "sending", "unknown", "accepted", "review")


def metric(connection: Connection, name: str, **labels: str) -> dict[tuple[str, ...], float]:
    """The values of a metric that have these labels, by their other labels' values."""
    rows = connection.execute(
        "select labels, value from ledger.metrics where name = %s and labels @> %s",
        [name, psycopg.types.json.Jsonb(labels)],
    ).fetchall()
    return {tuple(v for k, v in sorted(found.items()) if k not in labels): value for found, value in rows}


@pytest.fixture
def token(ledger: Ledger) -> int:
    return activated(ledger)


def long_ago(admin: Connection, table: str, minutes: int = 6) -> None:
    """What is written in a table becomes so many minutes older."""
    admin.execute(f"grant update on ledger.{table} to ledger_fn")
    column = "changed_at" if table == "refund" else "at"
    as_ledger_fn(admin, f"update ledger.{table} set {column} = {column} - make_interval(mins => {minutes})")  # type: ignore[arg-type]


def test_open_refunds_are_counted_by_state_with_their_sum_and_the_oldests_age(
    ledger: Ledger, admin: Connection, token: int
) -> None:
    for state in STATES:
        in_state(state, f"r_{state}", token, ledger, admin)
    in_state("unknown", "r_another", token, ledger, admin)
    in_state("sent", "r_sent", token, ledger, admin)
    long_ago(admin, "refund", minutes=60)
    added(ledger, "r_young")
    counted = {(state,): 1 for state in STATES} | {("pending",): 2, ("unknown",): 2}
    assert metric(admin, "ledger_refunds_open") == counted
    assert metric(admin, "ledger_refunds_open_minor", currency="EUR")["unknown",] == 2 * 7025
    ages = metric(admin, "ledger_refunds_oldest_seconds")
    assert all(3600 <= age < 3700 for age in ages.values())


def test_a_state_in_which_nothing_is_open_says_zero_so_that_its_alarm_ends(admin: Connection) -> None:
    assert metric(admin, "ledger_refunds_open") == {(state,): 0 for state in STATES}
    assert metric(admin, "ledger_refunds_oldest_seconds") == {(state,): 0 for state in STATES}


def test_a_recorded_stale_write_is_recent_for_five_minutes(dsn: str, admin: Connection, token: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn, autocommit=True) as second:
        both = Ledger(connection, refusals=second)
        activated(both, BOB)
        with raised("LG101"):
            both.claim_refunds(MERCHANT, token, 1)
    assert metric(admin, "ledger_refusals_recent") == {("LG101", "settle", "enforce", "superseded"): 1}
    long_ago(admin, "refusal")
    assert metric(admin, "ledger_refusals_recent") == {}


def test_what_a_caller_wrote_makes_no_label(ledger: Ledger, admin: Connection) -> None:
    ledger.record_refusal("LG304", "no", {"resource": "r_815:x", "reason": "r_815", "refund_id": "r_815"})
    assert metric(admin, "ledger_refusals_recent") == {("LG304", "", "enforce", ""): 1}


def test_refusals_and_tokens_are_counted_whether_or_not_anyone_recorded_them(
    ledger: Ledger, admin: Connection
) -> None:
    assert metric(admin, "ledger_refusals_total") == metric(admin, "ledger_tokens_drawn_total") == {(): 0}
    for _ in range(3):
        with raised("LG201"):
            ledger.claim_refund(MERCHANT, "r_nobody", activated(ledger))
    assert metric(admin, "ledger_refusals_total") == metric(admin, "ledger_tokens_drawn_total") == {(): 3}


def test_the_resource_that_was_raised_most_often_stands_out_without_its_name(ledger: Ledger, admin: Connection) -> None:
    for holder in (ALICE, BOB, ALICE, BOB):
        activated(ledger, holder)
    for merchant in range(20):
        activated(ledger, ALICE, f"settle:m_{merchant + 100}")
    assert metric(admin, "ledger_activations_recent_max") == {("settle",): 4}
    assert metric(admin, "ledger_events_recent") == {("activated", "settle"): 24}
    long_ago(admin, "event")
    assert metric(admin, "ledger_activations_recent_max") == {}


def test_a_pause_shows_until_it_is_resumed(operators: Ledger, admin: Connection) -> None:
    operators.pause("settle:m_1", "carol", "looking")
    operators.pause("settle", "carol", "looking")
    assert metric(admin, "ledger_paused") == {("settle",): 2}
    operators.resume("settle:m_1", "carol", "done")
    operators.resume("settle", "carol", "done")
    assert metric(admin, "ledger_paused") == {}


def test_a_server_that_was_promoted_is_unknown_until_it_is_recovered(operators: Ledger, admin: Connection) -> None:
    assert metric(admin, "ledger_server_known") == {(): 1}
    on_a_new_timeline(admin)
    assert metric(admin, "ledger_server_known") == {(): 0}
    operators.recover_failover(actor="carol", reason="db-2 promoted")
    assert metric(admin, "ledger_server_known") == {(): 1}
    assert metric(admin, "ledger_events_recent") == {("recovered", ""): 1}


def test_a_reader_may_look_and_no_label_names_a_merchant(
    connect: Any, reader_dsn: str, ledger: Ledger, admin: Connection, token: int
) -> None:
    for state in STATES:
        in_state(state, f"r_{state}", token, ledger, admin)
    seen = connect(reader_dsn).execute("select name, labels::text from ledger.metrics").fetchall()
    assert {name for name, _ in seen} >= {"ledger_refunds_open", "ledger_server_known"}
    assert not any(MERCHANT in labels or "r_" in labels or ALICE in labels for _, labels in seen)


def test_no_table_that_grows_is_read_whole(ledger: Ledger, admin: Connection, token: int) -> None:
    as_ledger_fn(
        admin,
        """
        insert into ledger.refund (
            merchant_id, refund_id, amount_minor, currency, idempotency_key, added_at, changed_at, settled_at, state,
            gateway_ref
        )
        select 'm_9', 'r_' || n, 1, 'EUR', 'm_9/r_' || n, now(), now(), now(), 'sent', 're_' || n
        from generate_series(1, 5000) as n
        """,
    )
    as_ledger_fn(
        admin,
        "insert into ledger.event (at, event, kind, resource, token)"
        " select now() - interval '1 day', 'activated', 'settle', 'settle:m_9', n from generate_series(1, 5000) as n",
    )
    as_ledger_fn(
        admin,
        "insert into ledger.refusal (at, code) select now() - interval '1 day', 'LG101' from generate_series(1, 5000)",
    )
    added(ledger, "r_1", "r_2")
    admin.execute("analyze ledger.refund, ledger.event, ledger.refusal")
    plan = "\n".join(line for (line,) in admin.execute("explain select * from ledger.metrics").fetchall())
    assert "Index Scan using refund_open" in plan or "Bitmap Index Scan on refund_open" in plan
    assert "refusal_by_time" in plan
    assert "event_by_time" in plan
    for table in ("refund", "event", "refusal", "journal", "draw", "fence"):
        assert f"Seq Scan on {table} " not in plan
