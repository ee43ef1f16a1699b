"""Other people's tables, and ways to write to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

from ledger.client import Ledger
from tests.story import ALICE, Connection, Refusal, activated, raised

KIND = "charges"
ORG_1 = "charges:org_1"
ORG_2 = "charges:org_2"
ALL = "charges:*"
REPORT = "report:daily"


def contents(admin: Connection, table: str = "charge") -> list[Any]:
    """A table's rows, in an order."""
    return admin.execute(f"select t::text from {table} as t order by 1").fetchall()


@contextmanager
def presenting(connection: Connection, tokens: dict[str, int]) -> Iterator[None]:
    """A transaction that presented these tokens."""
    with connection.transaction():
        for resource, token in tokens.items():
            connection.execute("select ledger.present_token(%s, %s)", [resource, token])
        yield


@contextmanager
def forging(connection: Connection, tokens: object) -> Iterator[None]:
    """A transaction that says, by itself, which tokens it presented, and looks as if it had."""
    with connection.transaction():
        connection.execute("set local idle_in_transaction_session_timeout = '5s'")
        text = tokens if isinstance(tokens, str) else json.dumps(tokens)
        connection.execute("select set_config('ledger.tokens', %s, true)", [text])
        yield


@contextmanager
def write_refused(code: str, admin: Connection, table: str = "charge") -> Iterator[Refusal]:
    """The block ends in this SQLSTATE, and the table is as it was."""
    before = contents(admin, table)
    with raised(code) as refusal:
        yield refusal
    assert contents(admin, table) == before


def tokens(ledger: Ledger, *resources: str, holder: str = ALICE) -> dict[str, int]:
    """An active token for each resource."""
    return {resource: activated(ledger, holder, resource) for resource in resources}


def would_be(admin: Connection) -> list[tuple[Any, ...]]:
    """What shadow mode recorded: resource, code and reason, in order."""
    return admin.execute(
        "select resource, code, reason from ledger.refusal where mode = 'shadow' order by refusal_id"
    ).fetchall()


def mode(operators: Ledger, to: str, kind: str = KIND) -> None:
    """A kind is checked this way from now on."""
    operators.set_mode(kind, to, actor="tests", reason="trying it out", forced=True)


def execute_all(connection: Connection, *statements: LiteralString) -> None:
    for statement in statements:
        connection.execute(statement)
