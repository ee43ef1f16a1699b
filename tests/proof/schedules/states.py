"""The real functions on a real server, from any state of the ledger: each call is made once and remembered.

A state is all that the functions read of one merchant, and of the sequence. It is put back under a new merchant, by
`ledger_fn` and past no trigger, so nothing is ever deleted and each call runs as its role, in a transaction of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql

from ledger import calls
from ledger.calls import Call
from ledger.errors import LedgerError, from_exception

PLACEHOLDER = "m0000000"
"""The merchant of every call; the server sees another name each time. As long as theirs, so that lengths agree."""

TABLES = ("refund", "journal", "fence", "draw", "event")
KEYS = {"refund": "merchant_id", "journal": "merchant_id", "fence": "resource", "draw": "resource", "event": "resource"}
MOMENTS = {"at", "added_at", "changed_at", "settled_at", "first_claimed_at", "activated_at", "drawn_at"}
PERSON = re.compile(r"person/\d+/[0-9a-f]+")

Rows = tuple[Any, ...]
Answer = Rows | LedgerError


@dataclass(frozen=True)
class State:
    """A state of the ledger: its rows as JSON, put back word for word, and what makes it differ from others."""

    number: int
    document: str

    @cached_property
    def rows(self) -> dict[str, Any]:
        """The rows of each table."""
        return json.loads(self.document)  # type: ignore[no-any-return]

    @cached_property
    def refunds(self) -> dict[str, dict[str, Any]]:
        """The refunds by their id."""
        return {row["refund_id"]: row for row in self.rows["refund"]}

    @cached_property
    def journals(self) -> dict[str, list[dict[str, Any]]]:
        """The journal's entries by their refund."""
        found: dict[str, list[dict[str, Any]]] = {refund_id: [] for refund_id in self.refunds}
        for entry in self.rows["journal"]:
            found.setdefault(entry["refund_id"], []).append(entry)
        return found

    @cached_property
    def active(self) -> int:
        """The fence's active token; 0 where there is no fence yet."""
        return max((row["active"] for row in self.rows["fence"]), default=0)

    @cached_property
    def barrier(self) -> int:
        """The fence's barrier; 0 where there is no fence yet."""
        return max((row["barrier"] for row in self.rows["fence"]), default=0)


class Undocumented(LedgerError):
    """An error that the ledger doesn't document."""


@dataclass(frozen=True)
class Effect:
    """What a call answered, and the state that it left."""

    answer: Answer
    after: State


class Server:
    """One database, as `ledger_worker`, as `ledger_operator` and as the superuser who puts states back.

    One at a time: the sequence of the tokens is the whole database's.
    """

    def __init__(self, conninfo: str) -> None:
        self._admin = self._connect(conninfo, None)
        self._admin.execute("set plan_cache_mode = force_custom_plan")  # or verify would read all merchants
        self._as = {role: self._connect(conninfo, role) for role in ("ledger_worker", "ledger_operator")}
        self._states: list[State] = []
        self._numbers: dict[str, int] = {}
        self._effects: dict[tuple[int, str, str, str], Effect] = {}
        self._findings: dict[int, tuple[str, ...]] = {}
        self._loaded: State | None = None
        self._merchant = ""
        self._count = 0
        self.calls = 0
        self._prepare()

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._admin, *self._as.values()):
            connection.close()

    @property
    def seen(self) -> int:
        """How many states were seen."""
        return len(self._states)

    def state(self, number: int) -> State:
        """The state of that number."""
        return self._states[number]

    def start(self, refunds: Sequence[str]) -> State:
        """The state in which these refunds of 70.25 EUR are pending, and nothing was ever drawn."""
        self._count = self._greatest_merchant()
        self._new_merchant()
        self._admin.execute("select setval('ledger.token_seq', 1, false)")
        for refund_id in refunds:
            self._send("ledger_worker", calls.add_refund(PLACEHOLDER, refund_id, 7025, "EUR"))
        return self.look()

    def effect(self, state: State, role: str, call: Call[Any]) -> Effect:
        """What a call does in a state: made on the server the first time, remembered from then on."""
        key = (state.number, role, call.name, repr(sorted(call.arguments.items())))
        effect = self._effects.get(key)
        if effect is None:
            if self._loaded is not state:
                self._put_back(state)
            effect = self._effects[key] = self.make(role, call)
        return effect

    def place(self, state: State) -> None:
        """Bring the server into a state, under a new merchant."""
        self._put_back(state)
        self._loaded = state

    def look(self) -> State:
        """The state that the server is in."""
        self._loaded = self._look()
        return self._loaded

    def arguments(self, call: Call[Any]) -> dict[str, Any]:
        """A call's arguments, with the merchant that the server sees now."""
        return {name: self._named(value) for name, value in call.arguments.items()}

    def lasting(self, row: Any) -> Any:
        """A record without what is different each time: the merchant's name, and moments."""
        if not hasattr(row, "__dataclass_fields__"):
            return row
        changes: dict[str, Any] = {}
        for field in fields(row):
            value = getattr(row, field.name)
            if isinstance(value, datetime):
                changes[field.name] = None
            elif isinstance(value, str) and self._merchant in value:
                changes[field.name] = value.replace(self._merchant, PLACEHOLDER)
        return replace(row, **changes)

    def blockers(self, pid: int) -> list[int]:
        """The sessions for which one waits."""
        row = self._admin.execute("select pg_blocking_pids(%s)", [pid], prepare=True).fetchone()
        return list(row[0]) if row else []

    def make(self, role: str, call: Call[Any]) -> Effect:
        """Make a call in the state that the server is in."""
        self.calls += 1
        return Effect(self._send(role, call), self.look())

    def _send(self, role: str, call: Call[Any]) -> Answer:
        try:
            with self._as[role].cursor(row_factory=call.row) as cursor:
                rows = cursor.execute(call.statement.encode(), self.arguments(call)).fetchall()
        except psycopg.Error as error:
            refusal = from_exception(error)
            return (
                Undocumented(f"{error.sqlstate} {error.diag.message_primary}") if refusal is None else _lasting(refusal)
            )
        return tuple(self.lasting(row) for row in rows)

    def _named(self, value: Any) -> Any:
        return value.replace(PLACEHOLDER, self._merchant) if isinstance(value, str) else value

    def _new_merchant(self) -> None:
        self._count += 1
        self._merchant = f"m{self._count:07}"

    def _put_back(self, state: State) -> None:
        self._new_merchant()
        self._admin.execute(
            "select pg_temp.put_back(%s)", [state.document.replace(PLACEHOLDER, self._merchant)], prepare=True
        )

    def _look(self) -> State:
        row = self._admin.execute("select pg_temp.as_it_is(%s)", [self._merchant], prepare=True).fetchone()
        assert row is not None
        document = row[0].replace(self._merchant, PLACEHOLDER)
        essence = _essence(document)
        number = self._numbers.get(essence)
        if number is None:
            number = self._numbers[essence] = len(self._states)
            self._states.append(State(number, document))
        return self._states[number]

    def findings(self, state: State) -> tuple[str, ...]:
        """What verify() finds wrong in a state."""
        if state.number not in self._findings:
            if self._loaded is not state:
                self.place(state)
            self._findings[state.number] = self._verify()
        return self._findings[state.number]

    def _verify(self) -> tuple[str, ...]:
        rows = self._admin.execute(
            'select "check", finding from ledger.verify(%s) where coalesce(resource, %s) = %s and "check" <> %s',
            [self._merchant, f"settle:{self._merchant}", f"settle:{self._merchant}", "trigger_is_on"],
            prepare=True,
        ).fetchall()
        return tuple(f"{check}: {finding.replace(self._merchant, PLACEHOLDER)}" for check, finding in rows)

    def _greatest_merchant(self) -> int:
        row = self._admin.execute(
            "select max(merchant_id) from ledger.refund where merchant_id ~ '^m[0-9]{7}$'"
        ).fetchone()
        return int(row[0][1:]) if row and row[0] else 0

    def _prepare(self) -> None:
        """Two functions of this session alone: nothing of them stays in the database."""
        parts = ", ".join(
            f"'{table}', (select coalesce(jsonb_agg(to_jsonb(t) order by t::text), '[]') from ledger.{table} as t "
            f"where t.{key} = {'merchant' if key == 'merchant_id' else quoted})"
            for table, key in KEYS.items()
            for quoted in ["'settle:' || merchant"]
        )
        self._admin.execute(
            f"create function pg_temp.as_it_is(merchant text) returns text language sql as $$ "
            f"select jsonb_build_object({parts}, 'drawn', "
            f"(select jsonb_build_array(s.last_value, s.is_called) from ledger.token_seq as s))::text $$".encode()
        )
        writes = " ".join(
            f"insert into ledger.{table} ({columns}) select {columns} "
            f"from jsonb_populate_recordset(null::ledger.{table}, whole -> '{table}');"
            for table in TABLES
            for columns in [self._columns(table)]
        )
        self._admin.execute(
            f"create function pg_temp.put_back(document text) returns void language plpgsql as $$ "
            f"declare whole jsonb := document::jsonb; begin "
            f"perform set_config('role', 'ledger_fn', true); {writes} "
            f"perform setval('ledger.token_seq', (whole -> 'drawn' ->> 0)::bigint, (whole -> 'drawn' ->> 1)::boolean); "
            f"end $$".encode()
        )

    def _columns(self, table: str) -> str:
        cursor = self._admin.execute(sql.SQL("select * from ledger.{} limit 0").format(sql.Identifier(table)))
        return ", ".join(column.name for column in cursor.description or () if column.name != "event_id")

    @staticmethod
    def _connect(conninfo: str, role: str | None) -> psycopg.Connection[Any]:
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=0)
        if role is not None:
            connection.execute(sql.SQL("set session authorization {}").format(sql.Identifier(role)))
        connection.execute("set client_min_messages = error")
        return connection


def _essence(document: str) -> str:
    """What makes a state differ from others: not when a thing happened, nor by which transaction or process."""
    rows = json.loads(PERSON.sub("person", document))
    for table in TABLES:
        for row in rows[table]:
            row.pop("event_id", None)
            for name in MOMENTS | {"claimed_xid"}:
                if name in row:
                    row[name] = row[name] is not None
        rows[table].sort(key=lambda row: json.dumps(row, sort_keys=True))
    return json.dumps(rows, sort_keys=True)


def _lasting(refusal: LedgerError) -> LedgerError:
    """A refusal without what is different each time."""
    kept: dict[str, Any] = {
        name: refusal.detail[name] for name in ("reason", "recorded", "active", "token") if name in refusal.detail
    }
    return type(refusal)(type(refusal).__name__, kept)
