"""What tests of the SQL tell their stories with: a merchant, holders, refunds in every state, and refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, LiteralString, TypeVar

import psycopg
import pytest

from ledger.client import Ledger
from ledger.errors import LedgerError

Connection = psycopg.Connection[Any]
T = TypeVar("T")

MERCHANT = "m_1"
RESOURCE = "settle:m_1"
ALICE = "alice/1/aaaaaaaaaaaaaaaa"
BOB = "bob/2/bbbbbbbbbbbbbbbb"
UNDRAWN = 9 * 10**18

LONG_WAYS = {
    "claim_or_refuse", "confirm_or_refuse", "wait_at_gate", "check_server", "check_paused", "limit_transaction",
}  # fmt: skip

TABLES = (
    "refund", "journal", "fence", "draw", "kind", "event", "refusal", "server", "currency", "transition",
    "pause", "protected_table", "exemption", "work", "archived_refund", "archived_journal", "carried_balance",
)  # fmt: skip


@dataclass(slots=True)
class Refusal:
    """A refusal as the caller was told it; filled in when the block that expected it ends."""

    code: str
    message: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    hint: str = ""

    def tells(self, **facts: object) -> bool:
        """Whether DETAIL has these facts."""
        return {name: self.detail.get(name) for name in facts} == facts


@contextmanager
def raised(code: str) -> Iterator[Refusal]:
    """The block ends in this SQLSTATE, whether it went through the client or through psycopg alone."""
    refusal = Refusal(code)
    with pytest.raises((psycopg.Error, LedgerError)) as caught:
        yield refusal
    error: BaseException | None = caught.value
    if not isinstance(error, psycopg.Error):
        error = error.__cause__ if error else None
    assert isinstance(error, psycopg.Error)
    assert error.sqlstate == code, error
    refusal.message = error.diag.message_primary or ""
    refusal.hint = error.diag.message_hint or ""
    text = error.diag.message_detail or ""
    refusal.detail = json.loads(text) if text.startswith("{") else {}


def written(admin: Connection) -> dict[str, Any]:
    """All that is written down, as something to compare."""
    rows = admin.execute(
        " union all ".join(
            f"select '{t}', count(*), sum(hashtextextended(t::text, 0)) from ledger.{t} t" for t in TABLES
        )
    ).fetchall()
    return {name: (count, content) for name, count, content in rows}


@contextmanager
def unchanged(admin: Connection) -> Iterator[None]:
    """The block leaves every table as it was."""
    before = written(admin)
    yield
    assert written(admin) == before


@contextmanager
def refused(code: str, admin: Connection) -> Iterator[Refusal]:
    """The block ends in this SQLSTATE, and nothing was changed."""
    with unchanged(admin), raised(code) as refusal:
        yield refusal


def drawn(ledger: Ledger, resource: str = RESOURCE) -> int:
    """A number, not activated."""
    return ledger.draw_token(resource)


def activated(ledger: Ledger, holder: str = ALICE, resource: str = RESOURCE) -> int:
    """A number, drawn and activated."""
    token = ledger.draw_token(resource)
    ledger.activate_token(resource, token, holder)
    return token


def added(ledger: Ledger, *refund_ids: str, merchant_id: str = MERCHANT, amount_minor: int = 7025) -> None:
    """Refunds of 70.25 EUR each, pending."""
    for refund_id in refund_ids:
        ledger.add_refund(merchant_id, refund_id, amount_minor, "EUR")


def in_state(state: str, refund_id: str, token: int, ledger: Ledger, admin: Connection) -> None:
    """A refund that reached a state under a token; `released` is pending again. Its reference is re_<refund_id>."""
    added(ledger, refund_id)
    if state == "pending":
        return
    ledger.claim_refund(MERCHANT, refund_id, token)
    ref = f"re_{refund_id}"
    if state in {"sent", "returned"}:
        ledger.confirm_refund(MERCHANT, refund_id, token, ref)
    elif state == "failed":
        ledger.fail_refund(MERCHANT, refund_id, token, "card closed")
    elif state == "unknown":
        ledger.mark_unknown(MERCHANT, refund_id, token, "timeout")
    elif state == "accepted":
        ledger.accept_refund(MERCHANT, refund_id, token, ref)
    elif state == "review":
        ledger.confirm_refund(MERCHANT, refund_id, token, ref, {"amount_minor": 1})
    elif state in {"released", "cancelled"}:
        ledger.release_refund(MERCHANT, refund_id, token, "not sent")
    if state in {"returned", "cancelled"}:
        moved_by_a_person(admin, refund_id, state)


def moved_by_a_person(admin: Connection, refund_id: str, to_state: str) -> None:
    """A move that needs no token, with its entry."""
    as_ledger_fn(
        admin,
        """
        with entry as (
            insert into ledger.journal (
                merchant_id, refund_id, number, attempts, at, maybe_sent, from_state, to_state,
                debit, credit, amount_minor, currency, actor, reason
            )
            select
                r.merchant_id, r.refund_id, r.journal_number + 1, r.attempts, now(), r.maybe_sent, r.state, t.to_state,
                t.debit, t.credit, case when t.debit is not null then r.amount_minor end,
                case when t.debit is not null then r.currency end, 'carol', 'asked for'
            from ledger.refund as r
            join ledger.transition as t on t.from_state = r.state and t.person
            where r.merchant_id = %(merchant_id)s and r.refund_id = %(refund_id)s and t.to_state = %(to_state)s
            returning merchant_id, refund_id, number, to_state
        )
        update ledger.refund as r
        set state = e.to_state,
            journal_number = e.number,
            changed_at = now(),
            first_claimed_at = case when e.to_state <> 'pending' then r.first_claimed_at else now() end,
            settled_at = case
                when e.to_state in ('sent', 'failed', 'cancelled', 'returned') then coalesce(r.settled_at, now())
            end
        from entry as e
        where r.merchant_id = e.merchant_id and r.refund_id = e.refund_id
        """,
        {"merchant_id": MERCHANT, "refund_id": refund_id, "to_state": to_state},
    )


def refund(admin: Connection, refund_id: str, *columns: LiteralString) -> Any:
    """A refund's columns: one value, or a tuple of several."""
    row = admin.execute(
        psycopg.sql.SQL("select {} from ledger.refund where merchant_id = %s and refund_id = %s").format(
            psycopg.sql.SQL(", ").join(psycopg.sql.Identifier(c) for c in columns)
        ),
        [MERCHANT, refund_id],
    ).fetchone()
    assert row is not None, refund_id
    return row[0] if len(columns) == 1 else row


def journal(admin: Connection, refund_id: str) -> list[tuple[Any, ...]]:
    """A refund's entries: from, to, token, attempts, maybe_sent, debit, credit, amount."""
    return admin.execute(
        "select from_state, to_state, token, attempts, maybe_sent, debit, credit, amount_minor from ledger.journal "
        "where merchant_id = %s and refund_id = %s order by number",
        [MERCHANT, refund_id],
    ).fetchall()


def balanced(ledger: Ledger) -> bool:
    """Nothing is wrong with what is written down; the triggers are others' to look at."""
    return [finding for finding in ledger.verify() if finding.check != "trigger_is_on"] == []


def as_ledger_fn(admin: Connection, statement: LiteralString, arguments: Any = None) -> None:
    """Write past the functions, as only a superuser can: as the role that the guard lets through."""
    with admin.transaction():
        admin.execute("set local role ledger_fn")
        admin.execute(statement, arguments)


class without_guards:  # noqa: N801 -- reads as a sentence
    """As nobody should: a table without its guards."""

    def __init__(self, admin: Connection, *tables: str) -> None:
        self.admin, self.tables = admin, tables

    def __enter__(self) -> None:
        self.switch("disable trigger user")

    def __exit__(self, *_: object) -> None:
        for table in self.tables:
            for (name,) in self.admin.execute(
                "select tgname from pg_trigger where tgrelid = ('ledger.' || %s)::regclass", [table]
            ).fetchall():
                self.admin.execute(f"alter table ledger.{table} enable always trigger {name}".encode())

    def switch(self, how: str) -> None:
        for table in self.tables:
            self.admin.execute(f"alter table ledger.{table} {how}".encode())


def long_ways(admin: Connection, statement: LiteralString, *arguments: object) -> set[str]:
    """The guards for what isn't plain that one statement calls; it is committed."""
    with admin.transaction():
        admin.execute("set local track_functions = 'all'")
        admin.execute(statement, arguments)
        called = admin.execute(
            "select p.proname from pg_proc as p where p.pronamespace = 'ledger'::regnamespace "
            "and pg_stat_get_xact_function_calls(p.oid) > 0"
        ).fetchall()
    return {name for (name,) in called} & LONG_WAYS


def on_a_new_timeline(admin: Connection) -> None:
    """From now on the server isn't the one that handed the tokens out."""
    as_ledger_fn(admin, "update ledger.server set timeline = 'FFFFFFFF'")


def until(condition: Callable[[], object], within: float = 5.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)


def is_waiting(admin: Connection, waiter: Connection) -> Callable[[], object]:
    """Whether a connection waits for a lock that another one holds; through a pooler, whether any does."""
    return lambda: admin.execute(
        "with session as (select * from pg_stat_activity where datname = current_database())"
        " select pid from session where wait_event_type = 'Lock'"
        " and (pid = %(pid)s or not exists (select from session where pid = %(pid)s))",
        {"pid": waiter.info.backend_pid},
    ).fetchone()


def in_background(call: Callable[[], T]) -> Future[T]:
    """Make a call that has to wait, in a thread of its own."""
    with_one_thread = ThreadPoolExecutor(max_workers=1)
    future = with_one_thread.submit(call)
    with_one_thread.shutdown(wait=False)
    return future


def limited(operators: Ledger, kind: str = "settle", *, idle: float = 0.3, lock: float = 0.2) -> None:
    """Limits, in seconds, that a test can wait for."""
    operators.set_kind(
        kind,
        idle_limit=timedelta(seconds=idle),
        lock_limit=timedelta(seconds=lock),
        actor="tests",
        reason="short limits",
    )
