"""The set-based functions whatever the planner knows: never more rows than asked, by the index, linear, HOT."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.story import MERCHANT, activated

Connection = psycopg.Connection[Any]

KNOWLEDGE = ["fresh", "analyzed", "stale after growth", "stale after settling", "another merchant's"]


@pytest.fixture
def token(ledger: Ledger) -> int:
    return activated(ledger)


def numbered(first: int, last: int, prefix: str = "r_") -> list[str]:
    return [f"{prefix}{n:06}" for n in range(first, last)]


def many(ledger: Ledger, ids: list[str], merchant_id: str = MERCHANT) -> None:
    for start in range(0, len(ids), 1000):
        some = ids[start : start + 1000]
        ledger.add_refunds(merchant_id, some, [1] * len(some), ["EUR"] * len(some))


def settle(ledger: Ledger, token: int, count: int) -> None:
    claims = ledger.claim_refunds(MERCHANT, token, count)
    ids = [claim.refund_id for claim in claims]
    ledger.confirm_refunds(MERCHANT, token, ids, [f"re_{i}" for i in ids])


def known(knowledge: str, ledger: Ledger, token: int, admin: Connection) -> None:
    """2,000 open refunds of m_1, and a planner that knows this much of them."""
    if knowledge == "another merchant's":
        many(ledger, numbered(0, 3000), "m_2")
        admin.execute("analyze ledger.refund")
    if knowledge == "stale after growth":
        many(ledger, numbered(900_000, 900_003))
        admin.execute("analyze ledger.refund")
    if knowledge == "stale after settling":
        many(ledger, numbered(100_000, 103_000))
        admin.execute("analyze ledger.refund, ledger.journal")
        for _ in range(3):
            settle(ledger, token, 1000)
    many(ledger, numbered(0, 2000))
    if knowledge == "analyzed":
        admin.execute("analyze ledger.refund, ledger.journal")


@dataclass
class Reads:
    """What a block read: whole tables, and rows of the table of refunds."""

    tables: int = 0
    rows: int = 0


@contextmanager
def reading(connection: Connection) -> Iterator[Reads]:
    """Count what the block reads, in a transaction of its own."""

    def counted() -> tuple[int, int]:
        row: tuple[int, int] = connection.execute(
            "select coalesce(sum(seq_scan), 0), coalesce(sum(idx_tup_fetch) filter (where relname = 'refund'), 0) "
            "from pg_stat_xact_user_tables "
            "where schemaname = 'ledger' and relname in ('refund', 'journal', 'event', 'draw', 'refusal')"
        ).fetchall()[0]
        return row

    reads = Reads()
    with connection.transaction():
        tables, rows = counted()
        yield reads
        tables_after, rows_after = counted()
        reads.tables, reads.rows = tables_after - tables, rows_after - rows


# Never more than asked


def test_an_empty_table_gives_nothing(ledger: Ledger, token: int) -> None:
    assert ledger.claim_refunds(MERCHANT, token, 7) == []


@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_never_more_rows_are_claimed_than_asked(knowledge: str, ledger: Ledger, token: int, admin: Connection) -> None:
    known(knowledge, ledger, token, admin)
    for asked in (1, 7, 500):
        before = admin.execute("select count(*) from ledger.refund where state = 'sending'").fetchall()[0][0]
        claims = ledger.claim_refunds(MERCHANT, token, asked)
        after = admin.execute("select count(*) from ledger.refund where state = 'sending'").fetchall()[0][0]
        assert len(claims) == after - before == asked
        assert [c.refund_id for c in claims] == sorted({c.refund_id for c in claims})


@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_the_cursor_passes_by_what_it_passed(knowledge: str, ledger: Ledger, token: int, admin: Connection) -> None:
    known(knowledge, ledger, token, admin)
    claims = ledger.claim_refunds(MERCHANT, token, 3, "r_001500")
    assert [claim.refund_id for claim in claims] == ["r_001501", "r_001502", "r_001503"]


# By the index


@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_a_claim_reads_about_as_many_rows_as_it_takes(
    knowledge: str, ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    known(knowledge, ledger, token, admin)
    with reading(connection) as reads:
        ledger.claim_refunds(MERCHANT, token, 20)
    assert reads.tables == 0
    assert 20 <= reads.rows <= 40


@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_a_confirm_reads_about_as_many_rows_as_it_writes(
    knowledge: str, ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    known(knowledge, ledger, token, admin)
    ids = [claim.refund_id for claim in ledger.claim_refunds(MERCHANT, token, 20)]
    with reading(connection) as reads:
        ledger.confirm_refunds(MERCHANT, token, ids, ids)
    assert reads.tables == 0
    assert 40 <= reads.rows <= 60  # once to lock them, once to judge


@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_adding_reads_no_more_than_it_was_given(
    knowledge: str, ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    known(knowledge, ledger, token, admin)
    with reading(connection) as reads:
        many(ledger, numbered(1990, 2010))
    assert reads.tables == 0
    assert 30 <= reads.rows <= 60  # half of them are there before, all of them after


def test_a_claim_does_not_wade_through_what_is_settled(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    many(ledger, numbered(0, 2000))
    settle(ledger, token, 1000)
    settle(ledger, token, 900)
    admin.execute("vacuum ledger.refund")
    with reading(connection) as reads:
        assert len(ledger.claim_refunds(MERCHANT, token, 20)) == 20
    assert reads.rows <= 40


@pytest.mark.parametrize("analyzed", [False, True])
def test_the_single_calls_find_their_row_by_its_key(
    analyzed: bool, ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    many(ledger, numbered(0, 2000))
    if analyzed:
        admin.execute("analyze ledger.refund, ledger.journal")
    ledger.claim_refund(MERCHANT, "r_000007", token)
    with reading(connection) as reads:
        ledger.claim_refund(MERCHANT, "r_000008", token)
        ledger.confirm_refund(MERCHANT, "r_000007", token, "re_7")
        ledger.add_refund(MERCHANT, "r_000009", 1, "EUR")
    assert reads.tables == 0
    assert reads.rows <= 10


def test_what_is_settled_costs_a_claim_nothing(ledger: Ledger, connection: Connection, token: int) -> None:
    many(ledger, numbered(0, 1000))
    settle(ledger, token, 1000)
    many(ledger, numbered(2000, 2010))
    with reading(connection) as reads:
        assert len(ledger.claim_refunds(MERCHANT, token, 5)) == 5
    assert reads.rows <= 20


def test_the_callers_own_planner_settings_stay_as_they_are(ledger: Ledger, connection: Connection, token: int) -> None:
    names = ("jit", "plan_cache_mode", "enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan")
    with connection.transaction():
        before = [connection.execute("select current_setting(%s)", [name]).fetchall() for name in names]
        many(ledger, numbered(0, 5))
        ledger.confirm_refunds(MERCHANT, token, ["r_000001"], ["re"])
        ledger.claim_refunds(MERCHANT, token, 5)
        assert [connection.execute("select current_setting(%s)", [name]).fetchall() for name in names] == before


def test_who_forbids_plans_forbids_compiling_too(admin: Connection) -> None:
    """A forbidden plan that can't be avoided, of a table with one row, is priced so high that JIT would set in."""
    configured = admin.execute(
        "select proname, proconfig from pg_proc where pronamespace = 'ledger'::regnamespace "
        "and 'enable_seqscan=off' = any(proconfig)"
    ).fetchall()
    one_refund = {
        "add",
        "claim",
        "confirm",
        "accept",
        "fail",
        "release",
        "cancel",
        "review",
        "resolve",
        "requeue",
        "return",
    }
    batches = {"add_refunds", "claim_refunds", "confirm_refunds", "archive_refunds"}
    assert {name for name, _ in configured} == batches | {f"{verb}_refund" for verb in one_refund} | {"mark_unknown"}
    assert all("jit=off" in settings for _, settings in configured)


def test_the_guards_in_plain_sql_become_part_of_the_query_that_asks_them(admin: Connection) -> None:
    """One that says immutable and isn't, say of a time less an interval, is called row by row: 3 µs in place of 0.1."""
    guards = admin.execute(
        "select proname, array(select format_type(t, null) from unnest(proargtypes) as t) from pg_proc "
        "where pronamespace = 'ledger'::regnamespace and prolang = (select oid from pg_language where lanname = 'sql')"
    ).fetchall()
    assert "claim_outcome" in dict(guards)
    for name, types in guards:
        given = ", ".join(f"null::{type_}" for type_ in types)
        names = ", ".join(f"a{n}" for n in range(len(types)))
        plan = admin.execute(
            f"explain (verbose, costs off) select ledger.{name}({names}) "  # type: ignore[arg-type]
            f"from (select {given} from generate_series(1, 2) offset 0) as one ({names})"
        ).fetchall()
        assert f"{name}(" not in str(plan), f"{name} isn't inlined"


# Linear


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_a_thousand_rows_cost_about_ten_times_a_hundred(ledger: Ledger, connection: Connection, token: int) -> None:
    """Quadratic would be a hundred times. The best of three, all rolled back; ten times is what linear means."""
    cost: dict[tuple[str, int], float] = {}
    for size in (100, 1000):
        ids = numbered(0, size, f"s{size}_")
        for _ in range(3):
            with connection.transaction(force_rollback=True):
                took = {"add": seconds(lambda ids=ids: many(ledger, ids))}  # type: ignore[misc]
            many(ledger, ids)
            with connection.transaction(force_rollback=True):
                took["claim"] = seconds(
                    lambda size=size: ledger.claim_refunds(MERCHANT, token, size, f"s{size}_")  # type: ignore[misc]
                )
                # Their claims are of this transaction, so each row is judged and none written.
                took["judge"] = seconds(lambda ids=ids: ledger.confirm_refunds(MERCHANT, token, ids, ids))  # type: ignore[misc]
            for name, time_taken in took.items():
                cost[name, size] = min(cost.get((name, size), 60.0), time_taken)
        ledger.claim_refunds(MERCHANT, token, size, f"s{size}_")
        for _ in range(3):
            with connection.transaction(force_rollback=True):
                taken = seconds(lambda ids=ids: ledger.confirm_refunds(MERCHANT, token, ids, ids))  # type: ignore[misc]
                cost["confirm", size] = min(cost.get(("confirm", size), 60.0), taken)
    growth = {name: cost[name, 1000] / cost[name, 100] for name in ("add", "claim", "judge", "confirm")}
    assert max(growth.values()) < 30, growth


# HOT


def updates(connection: Connection, admin: Connection) -> tuple[int, int]:
    """Of refund, by this connection: all, and those that touched no index."""
    connection.execute("select pg_stat_force_next_flush()")
    connection.execute("select 1")
    ((updated, hot),) = admin.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'ledger' and relname = 'refund'"
    ).fetchall()
    return updated, hot


def test_claims_touch_no_index(ledger: Ledger, connection: Connection, token: int, admin: Connection) -> None:
    many(ledger, numbered(0, 400))
    for refund_id in numbered(0, 400):
        ledger.claim_refund(MERCHANT, refund_id, token)
    updated, hot = updates(connection, admin)
    assert updated == 400
    assert hot / updated >= 0.95


def test_nor_does_a_set_that_needs_room_for_every_row_of_a_page_again(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    many(ledger, numbered(0, 400))
    ledger.claim_refunds(MERCHANT, token, 400)
    updated, hot = updates(connection, admin)
    assert updated == 400
    assert hot / updated >= 0.9
