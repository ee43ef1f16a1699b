"""Where a lease's short transactions run: a pool, a connect function, or a conninfo string.

Each call is committed by itself, so a connection that is inside a transaction is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus

from ledger import __version__
from ledger.client import AsyncLedger, Ledger

T = TypeVar("T")
Connection: TypeAlias = "psycopg.Connection[Any]"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any]"
Call: TypeAlias = Callable[[Any], Any]

# Of connections that are opened here: what a DBA sees them as, and nothing that a pooler could lose.
NAMED: dict[str, Any] = {"fallback_application_name": f"ledger/{__version__}", "prepare_threshold": None}


class Pool(Protocol):
    """A psycopg_pool pool, blocking or asyncio."""

    def connection(self) -> Any:
        """A context with a connection, which commits at its end."""
        ...

    def getconn(self) -> Any:
        """Take a connection out."""
        ...

    def putconn(self, conn: Any) -> Any:
        """Put it back."""
        ...


Db: TypeAlias = "str | Pool | Callable[[], Connection]"
AsyncDb: TypeAlias = "Db | Callable[[], Awaitable[AsyncConnection]]"


class Database:
    """Blocking access to the database. Raises TypeError or ValueError for a `db` that doesn't fit."""

    def __init__(self, db: Db) -> None:
        _refuse_connection(db)
        self._pool = cast("Any", db) if _is_pool(db) else None
        if self._pool is not None and inspect.iscoroutinefunction(self._pool.getconn):
            raise TypeError("an asyncio pool serves the async leases. Pass a psycopg_pool.ConnectionPool")
        connect = partial(psycopg.connect, db, **NAMED) if isinstance(db, str) else cast("Any", db)
        self._connect: Callable[[], Any] = connect
        self._autocommit = True

    def run(self, call: Call) -> Any:
        """The result of `call(ledger)`, committed."""
        if self._pool is not None:
            return call(Ledger(self._pool, refusals=self._pool))
        with self.connection() as connection:
            return call(blocking_ledger(connection))

    def open(self) -> Connection:
        """A connection for the caller alone, in autocommit. Give it back with `close` or `give_back`."""
        if self._pool is None:
            return own(self._connect())
        connection = self._pool.getconn()
        self._autocommit = connection.autocommit
        return own(connection)

    def close(self, connection: Connection) -> None:
        """Close it for good, so that no session state comes back to anyone."""
        connection.close()
        if self._pool is not None:
            self._pool.putconn(connection)

    def give_back(self, connection: Connection) -> None:
        """The end of a connection on which nothing was left in the session: a pool's goes on, warm."""
        if self._pool is None or not _is_idle(connection):
            self.close(connection)
        else:
            connection.autocommit = self._autocommit
            self._pool.putconn(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for the length of a block, in autocommit; closed for good at its end."""
        connection = self.open()
        try:
            yield connection
        finally:
            self.close(connection)


class AsyncDatabase:
    """The same for asyncio. Blocking pools and connect functions are served in threads."""

    def __init__(self, db: AsyncDb) -> None:
        _refuse_connection(db)
        self._pool: Any = None
        self._blocking: Database | None = None
        self._autocommit = True
        self._connect: Callable[[], Any]
        if isinstance(db, str):
            self._connect = partial(psycopg.AsyncConnection.connect, db, **NAMED)
        elif not _is_pool(db):
            self._connect = cast("Any", db)
        elif inspect.iscoroutinefunction(cast("Any", db).getconn):
            self._pool = db
        else:
            self._blocking = Database(cast("Pool", db))

    async def run(self, call: Call) -> Any:
        """The result of `call(ledger)`, committed."""
        if self._pool is not None:
            return await call(AsyncLedger(self._pool, refusals=self._pool))
        if self._blocking is not None:
            return await in_thread(partial(self._blocking.run, call))
        connection = await self.open()
        if isinstance(connection, psycopg.Connection):
            return await in_thread(partial(_run_and_close, connection, call), stop=connection.cancel_safe)
        try:
            return await call(async_ledger(connection))
        finally:
            await connection.close()

    async def open(self) -> Connection | AsyncConnection:
        """A connection for the caller alone, in autocommit. Give it back with `close` or `give_back`."""
        if self._pool is not None:
            connection = await self._pool.getconn()
            self._autocommit = connection.autocommit
            return await own_async(connection)
        if self._blocking is not None:
            return cast("Connection", await in_thread(self._blocking.open, drop=self._blocking.close))
        made = await in_thread(self._connect, drop=_drop)
        if inspect.isawaitable(made):
            return await own_async(await made)
        return own(made)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection for the length of a block, in autocommit; closed for good at its end."""
        connection = await self.open()
        try:
            yield connection
        finally:
            await self.close(connection)

    async def close(self, connection: Connection | AsyncConnection) -> None:
        """Close it for good, so that no session state comes back to anyone."""
        if isinstance(connection, psycopg.AsyncConnection):
            await connection.close()
            if self._pool is not None:
                await self._pool.putconn(connection)
        elif self._blocking is not None:
            self._blocking.close(connection)
        else:
            connection.close()

    async def give_back(self, connection: Connection | AsyncConnection) -> None:
        """The end of a connection on which nothing was left in the session: a pool's goes on, warm."""
        if self._blocking is not None and isinstance(connection, psycopg.Connection):
            self._blocking.give_back(connection)
        elif self._pool is None or not isinstance(connection, psycopg.AsyncConnection) or not _is_idle(connection):
            await self.close(connection)
        else:
            await connection.set_autocommit(self._autocommit)
            await self._pool.putconn(connection)


def own(connection: Any) -> Connection:
    """The connection in autocommit. Refuses one that isn't a blocking one, or is inside a transaction."""
    if not isinstance(connection, psycopg.Connection):
        if inspect.iscoroutine(connection):
            connection.close()
        raise TypeError(f"a lease's connect function must return a psycopg.Connection, not {type(connection).__name__}")
    _refuse_transaction(connection)
    connection.autocommit = True
    return connection


async def own_async(connection: Any) -> AsyncConnection:
    """The same for an asyncio connection."""
    if not isinstance(connection, psycopg.AsyncConnection):
        raise TypeError(
            "an async lease's connect function must return a psycopg.AsyncConnection or psycopg.Connection,"
            f" not {type(connection).__name__}"
        )
    _refuse_transaction(connection)
    await connection.set_autocommit(True)
    return connection


def blocking_ledger(connection: Connection) -> Ledger:
    """The ledger over a connection of our own. In autocommit a refusal can be recorded on the same one."""
    return Ledger(connection, refusals=connection)


def async_ledger(connection: AsyncConnection) -> AsyncLedger:
    """The same for asyncio."""
    return AsyncLedger(connection, refusals=connection)


async def in_thread(
    call: Callable[[], T],
    *,
    finish: bool = False,
    stop: Callable[[], None] | None = None,
    drop: Callable[[T], None] | None = None,
) -> T:
    """Run a blocking call without blocking the event loop.

    When the caller is cancelled meanwhile, `stop` is called to make the call end early, `drop` is given its
    result once it is there, and with `finish` its end is waited for. Then the cancellation goes on.
    """
    future = asyncio.get_running_loop().run_in_executor(_threads.executor, call)
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError:
        if stop is not None:
            _threads.executor.submit(stop)
        if drop is not None:
            future.add_done_callback(partial(_drop_result, drop))
        while finish and not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue
        future.add_done_callback(_look_at)
        raise
    return future.result()


def _drop_result(drop: Callable[[T], None], future: asyncio.Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        drop(future.result())


def _look_at(future: asyncio.Future[Any]) -> None:
    # An exception that nobody looks at is reported by asyncio as a mistake.
    if not future.cancelled():
        future.exception()


def _drop(made: Any) -> None:
    # A connection that came too late, or the coroutine that would have made one.
    made.close()


def _run_and_close(connection: Connection, call: Call) -> Any:
    with connection:
        return call(blocking_ledger(connection))


def _is_pool(db: object) -> bool:
    return hasattr(db, "connection") and hasattr(db, "getconn")


def _refuse_connection(db: object) -> None:
    if isinstance(db, psycopg.Connection | psycopg.AsyncConnection):
        raise TypeError(
            "a lease commits each of its steps by itself, so it can't work on your open connection."
            " Pass a pool, a function that opens a connection (lambda: psycopg.connect(dsn)), or the dsn"
        )
    if not (isinstance(db, str) or callable(db) or _is_pool(db)):
        raise TypeError(f"a lease needs a pool, a function that opens a connection, or a dsn, not {type(db).__name__}")


def _is_idle(connection: Connection | AsyncConnection) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE


def _refuse_transaction(connection: Connection | AsyncConnection) -> None:
    if not _is_idle(connection):
        raise ValueError(
            "the connect function returned a connection that is inside a transaction, where nothing that a"
            " lease does would be committed. Return a new connection (lambda: psycopg.connect(dsn))"
        )


class _Threads:
    """Threads of the leases' own, so that a body that keeps asyncio's busy can't hold up a release."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Begin with no threads: a forked child has none of its parent's."""
        self.executor = ThreadPoolExecutor(128, thread_name_prefix="ledger-lease")


_threads = _Threads()
os.register_at_fork(after_in_child=_threads.start_over)
