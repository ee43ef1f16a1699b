"""What tests of the SQL tell their stories with: a merchant, holders, refunds in every state, and refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
import pytest

from ledger.client import Ledger
from ledger.errors import LedgerError

Connection = psycopg.Connection[Any]

MERCHANT = "m_1"
RESOURCE = "settle:m_1"
ALICE = "alice/1/aaaaaaaaaaaaaaaa"
BOB = "bob/2/bbbbbbbbbbbbbbbb"
UNDRAWN = 9 * 10**18

TABLES = ("refund", "journal", "fence", "draw", "kind", "event", "refusal", "server", "currency", "transition")


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


def as_ledger_fn(admin: Connection, statement: LiteralString, arguments: Any = None) -> None:
    """Write past the functions, as only a superuser can: as the role that the guard lets through."""
    with admin.transaction():
        admin.execute("set local role ledger_fn")
        admin.execute(statement, arguments)


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
    """Whether a connection waits for a lock that another one holds."""
    return lambda: admin.execute(
        "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'", [waiter.info.backend_pid]
    ).fetchone()
