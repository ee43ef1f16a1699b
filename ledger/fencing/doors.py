"""How a statement gets into the transaction that is open on somebody's `db`, and what an ORM has kept back."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any, Protocol, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ledger.calls import Call

LIMITS = "current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_timeout', true)"


class Door(Protocol):
    """How a statement gets into the transaction that is open on a `db`. An asyncio one returns awaitables."""

    is_async: bool

    def fetch(self, call: Call[Any]) -> Any:
        """The row that a call, with the limits beside it, returns. Raises ValueError without a transaction."""
        ...

    def flush(self) -> Any:
        """Send what an ORM has kept back."""
        ...


def comes_from(thing: object, libraries: set[str]) -> bool:
    """Whether a thing's class is, or inherits from, one of these libraries'."""
    return any(base.__module__.partition(".")[0] in libraries for base in type(thing).__mro__)


def door_of(db: object) -> Door:
    """The door that fits. Raises TypeError for a `db` of another kind."""
    if isinstance(db, psycopg.Connection):
        return _Psycopg(db)
    if isinstance(db, psycopg.AsyncConnection):
        return _AsyncPsycopg(db)
    if isinstance(db, str):
        return _Django(db)
    if comes_from(db, {"sqlalchemy"}):
        return _AsyncSqlAlchemy(db) if hasattr(db, "run_sync") else _SqlAlchemy(db)
    raise TypeError(
        f"a fenced block can't be made on {type(db).__name__}. Give a psycopg connection, a SQLAlchemy Session or"
        " Connection (or AsyncSession, AsyncConnection), or the alias of a Django database"
    )


def _with_limits(call: Call[Any]) -> str:
    return f"{call.statement}, {LIMITS}"


def _refuse_autocommit(is_autocommit: bool, how: str) -> None:
    if is_autocommit:
        raise ValueError(
            "no transaction is open: in autocommit the token would be forgotten with the statement that presents it."
            f" Nothing was changed. Open one first: {how}"
        )


class _Psycopg:
    is_async = False

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def fetch(self, call: Call[Any]) -> Any:
        _refuse_autocommit(_is_autocommit(self._connection), "with connection.transaction(): ...")
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(cast("Any", _with_limits(call)), call.arguments).fetchone()

    def flush(self) -> None:
        """psycopg keeps nothing back."""


class _AsyncPsycopg:
    is_async = True

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def fetch(self, call: Call[Any]) -> Any:
        _refuse_autocommit(_is_autocommit(self._connection), "async with connection.transaction(): ...")
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(cast("Any", _with_limits(call)), call.arguments)
            return await cursor.fetchone()

    async def flush(self) -> None:
        """psycopg keeps nothing back."""


def _is_autocommit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


class _SqlAlchemy:
    """A Session, a scoped one, or a Connection."""

    is_async = False

    def __init__(self, db: Any) -> None:
        self._db = db

    def fetch(self, call: Call[Any]) -> Any:
        return _fetch_by_sqlalchemy(self._db, call)

    def flush(self) -> None:
        if hasattr(self._db, "flush"):
            self._db.flush()


class _AsyncSqlAlchemy:
    """The same of sqlalchemy.ext.asyncio, over asyncpg or psycopg."""

    is_async = True

    def __init__(self, db: Any) -> None:
        self._db = db

    async def fetch(self, call: Call[Any]) -> Any:
        return await self._db.run_sync(_fetch_by_sqlalchemy, call)

    async def flush(self) -> None:
        if hasattr(self._db, "flush"):
            await self._db.flush()


def _fetch_by_sqlalchemy(db: Any, call: Call[Any]) -> Any:
    connection = db.connection() if hasattr(db, "flush") else db
    is_autocommit = connection.connection.dbapi_connection.autocommit
    _refuse_autocommit(is_autocommit, "with session.begin(), and without isolation_level='AUTOCOMMIT'")
    return tuple(connection.execute(_for_sqlalchemy(_with_limits(call)), call.arguments).one())


@functools.lru_cache(maxsize=8)
def _for_sqlalchemy(statement: str) -> Any:
    """A statement in SQLAlchemy's words. The same object each time: it remembers how it was compiled."""
    text = importlib.import_module("sqlalchemy").text
    # A colon is how its text() names parameters.
    return text(re.sub(r"%\((\w+)\)s::(\w+)", r"cast(:\1 as \2)", statement))


class _Django:
    """A Django database, by its alias."""

    is_async = False

    def __init__(self, alias: str) -> None:
        try:
            connections = importlib.import_module("django.db").connections
        except ImportError:
            # Not the text itself: a dsn may hold a password.
            raise TypeError(
                "a text as db is the alias of a Django database, and there is no Django here. For a dsn, connect first"
            ) from None
        if alias not in connections:
            raise ValueError("there is no Django database of that alias. For a dsn, connect first")
        self._connection: Any = connections[alias]

    def fetch(self, call: Call[Any]) -> Any:
        _refuse_autocommit(self._connection.get_autocommit(), "with transaction.atomic(): ...")
        with self._connection.cursor() as cursor:
            cursor.execute(_with_limits(call), dict(call.arguments))
            return cursor.fetchone()

    def flush(self) -> None:
        """Django keeps nothing back."""
