"""A database of its own, the sessions that call, and the record of what they called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from ledger import dev, schema
from ledger.calls import TYPES

TEMPLATE = "properties"
ROLES = ("ledger_worker", "ledger_worker", "ledger_operator")

# Postgres's own: a lock's limit and a lost race under a snapshot, which docs/errors.md names; a right that is missing.
OF_POSTGRES = {"55P03", "40001", "42501"}

TABLES = (
    "refund", "journal", "fence", "draw", "kind", "event", "refusal", "server", "protected_table", "exemption", "pause",
    "work", "archived_refund", "archived_journal", "carried_balance",
)  # fmt: skip


@dataclass(slots=True)
class Session:
    """A connection, and whether it is inside a transaction."""

    number: int
    role: str
    connection: psycopg.Connection[Any]
    is_inside: bool = False
    savepoints: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call got: rows, or a SQLSTATE."""

    rows: Sequence[Mapping[str, Any]] = ()
    code: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The committed state of a database, as far as rules look at it."""

    refunds: Mapping[tuple[str, str], Mapping[str, Any]]
    journal: Sequence[Mapping[str, Any]]
    fences: Mapping[str, tuple[int, int]]
    refusals: int
    digest: Sequence[Any]


@dataclass
class World:
    """What a machine acts in. `script` replays in psql what was called, session by session."""

    database: str
    sessions: Sequence[Session]
    admin: psycopg.Connection[Any]
    functions: Mapping[str, Sequence[str]]
    script: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    active: Mapping[str, int] = field(default_factory=dict)

    def call(self, session: Session, function: str, given: Mapping[str, Any]) -> Answer:
        """Call a function of the ledger by the names of its parameters."""
        named = ", ".join(f"{name} => %({name})s::{TYPES[name]}" for name in given)
        return self.execute(session, f"select * from ledger.{function}({named})", given)

    def execute(self, session: Session, statement: str, given: Mapping[str, Any] | None = None) -> Answer:
        """Run a statement. What fails inside a transaction takes it back, to its savepoint if it has one."""
        self.script.append(f"-- session {session.number}, {session.role}\n{_as_psql(statement, given or {})};")
        try:
            cursor = session.connection.execute(statement, given or None)
            names = [column.name for column in cursor.description or ()]
            return Answer([dict(zip(names, row, strict=True)) for row in (cursor.fetchall() if names else ())])
        except psycopg.Error as refusal:
            self._take_back(session)
            self.script.append(f"-- {refusal.sqlstate}: {str(refusal).splitlines()[0]}")
            return Answer(code=refusal.sqlstate or type(refusal).__name__, message=str(refusal))

    def _take_back(self, session: Session) -> None:
        if session.is_inside and session.savepoints:
            self.execute(session, "rollback to savepoint s")
        elif session.is_inside:
            self.execute(session, "rollback")
            session.is_inside = False

    def state(self, before: State | None = None) -> State:
        """What is committed now; `before` itself where nothing has changed but the count of refusals."""
        *digest, (_, refusals) = self.admin.execute(_DIGEST).fetchall()
        if before is not None and digest == before.digest:
            return replace(before, refusals=int(refusals))
        fences = self.find("select resource, active, barrier from ledger.fence")
        # After a recovery the active number is one that nobody drew, and so nobody here holds it.
        self.active = {row["resource"]: row["active"] for row in fences if row["active"] in self.tokens}
        return State(
            {(row["merchant_id"], row["refund_id"]): row for row in self.find("select * from ledger.refund")},
            self.find("select * from ledger.journal order by merchant_id, refund_id, number"),
            {row["resource"]: (row["active"], row["barrier"]) for row in fences},
            int(refusals),
            digest,
        )

    def find(self, statement: str) -> list[dict[str, Any]]:
        """Look, as the superuser."""
        cursor = self.admin.execute(sql.SQL(statement))  # type: ignore[arg-type]
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def past_the_guard(self, changes: Mapping[str, str]) -> None:
        """Change tables as no function would: to bring about what only time or a failover does."""
        with self.admin.transaction():
            for table, change in changes.items():
                for statement in (
                    f"alter table ledger.{table} disable trigger {table}_is_guarded",
                    f"update ledger.{table} set {change}",
                    f"alter table ledger.{table} enable always trigger {table}_is_guarded",
                ):
                    self.script.append(f"-- as a superuser\n{statement};")
                    self.admin.execute(sql.SQL(statement))  # type: ignore[arg-type]


_DIGEST = (
    " union all ".join(
        f"select '{table}', coalesce(md5(string_agg(t::text, '|' order by t::text)), '') from ledger.{table} as t"
        for table in TABLES
    )
    + " union all select 'refusal_seq', (last_value - (not is_called)::int)::text from ledger.refusal_seq"
)


def prepare(servers: dev.Servers) -> None:
    """Make the template anew: the schema, and a table that is protected by one resource."""
    with psycopg.connect(servers.dsn("postgres", "postgres"), autocommit=True) as maker:
        maker.execute(sql.SQL("drop database if exists {}").format(sql.Identifier(TEMPLATE)))
    servers.prepare(TEMPLATE)
    schema.upgrade(servers.dsn("ledger_admin", TEMPLATE))
    with psycopg.connect(servers.dsn("postgres", TEMPLATE), autocommit=True) as admin:
        admin.execute("create schema app authorization ledger_worker")
        admin.execute("set role ledger_worker")
        admin.execute("create table app.thing (id integer primary key, owner text not null, amount integer not null)")
        admin.execute("insert into app.thing select i, 'a', 0 from generate_series(1, 3) as i")
        admin.execute("select ledger.protect_table('app.thing', resource => 'job:a')")
        admin.execute("reset role")
        admin.execute("grant usage on schema app to ledger_operator; grant all on app.thing to ledger_operator")


@contextmanager
def world(servers: dev.Servers, name: str, *broken: str) -> Iterator[World]:
    """A fresh database with its sessions; `broken` statements plant a fault in it first."""
    with psycopg.connect(servers.dsn("postgres", "postgres"), autocommit=True) as maker:
        database = sql.Identifier(name)
        maker.execute(sql.SQL("drop database if exists {} with (force)").format(database))
        maker.execute(
            sql.SQL("create database {} template {} strategy file_copy").format(database, sql.Identifier(TEMPLATE))
        )
    admin = psycopg.connect(servers.dsn("postgres", name), autocommit=True)
    for statement in broken:
        admin.execute(sql.SQL(statement))  # type: ignore[arg-type]
    sessions = [
        # Nobody here ever gives a lock back while another one waits for it.
        Session(number, role, psycopg.connect(servers.dsn(role, name), autocommit=True, options="-c lock_timeout=5ms"))
        for number, role in enumerate(ROLES, 1)
    ]
    functions = {
        function: names
        for function, names in admin.execute(
            "select p.proname, coalesce(p.proargnames[1:p.pronargs], '{}') from pg_proc as p "
            "where p.pronamespace = 'ledger'::regnamespace"
        )
        if function in PUBLIC
    }
    try:
        yield World(name, sessions, admin, functions)
    finally:
        for connection in (admin, *(session.connection for session in sessions)):
            connection.close()


PUBLIC = frozenset(path.stem for path in (schema.SQL / "functions").glob("*.sql"))


def _as_psql(statement: str, given: Mapping[str, Any]) -> str:
    for name, value in given.items():
        statement = statement.replace(f"%({name})s", _literal(value))
    return statement


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int):
        return f"({value})" if not isinstance(value, bool) else str(value).lower()
    if isinstance(value, list):
        return f"array[{', '.join(_literal(one) for one in value)}]"
    text = json.dumps(value.obj) if isinstance(value, Jsonb) else str(value)
    return "'" + text.replace("'", "''") + "'"
