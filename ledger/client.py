"""Sends the calls on the caller's connection and turns refusals into exceptions. The only I/O of the client.

`Ledger` and `AsyncLedger` never commit: the transaction is the caller's. Over a pool there is no such transaction,
so each call is one of its own.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import psycopg

from ledger import calls
from ledger.calls import Call
from ledger.errors import Refused, from_exception
from ledger.observe import fact

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("ledger.client")

TOLD = (
    "reason", "function", "resource", "merchant_id", "refund_id", "token", "holder", "active", "active_holder",
    "refusal",
)  # fmt: skip
"""What the log says of a refusal; its record has the rest."""


class Pool(Protocol):
    """What is needed of a psycopg_pool.ConnectionPool."""

    def connection(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """A connection for the length of a block, which commits it."""
        ...


class AsyncPool(Protocol):
    """What is needed of a psycopg_pool.AsyncConnectionPool."""

    def connection(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """A connection for the length of a block, which commits it."""
        ...


Source = psycopg.Connection[Any] | Pool
AsyncSource = psycopg.AsyncConnection[Any] | AsyncPool


def _one(build: Callable[P, Call[T]]) -> Callable[Concatenate[Ledger, P], T]:
    @functools.wraps(build)
    def method(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))[0]

    return method


def _many(build: Callable[P, Call[T]]) -> Callable[Concatenate[Ledger, P], list[T]]:
    @functools.wraps(build)
    def method(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return self.send(build(*args, **kwargs))

    return method


def _one_async(build: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncLedger, P], Awaitable[T]]:
    @functools.wraps(build)
    async def method(self: AsyncLedger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return (await self.send(build(*args, **kwargs)))[0]

    return method


def _many_async(build: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncLedger, P], Awaitable[list[T]]]:
    @functools.wraps(build)
    async def method(self: AsyncLedger, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return await self.send(build(*args, **kwargs))

    return method


class Ledger:
    """The ledger over a psycopg connection or pool.

    A refusal aborts its transaction, and its record with it. Given `refusals`, a pool or a second connection in
    autocommit, the refusal is recorded there; without, only the server's log and counter keep it.
    """

    def __init__(self, connection: Source, *, refusals: Source | None = None) -> None:
        self.connection = connection
        self.refusals = _fit_for_records(refusals)

    def send(self, call: Call[T]) -> list[T]:
        """Send a call and return its rows. Raises the ledger's own errors, and psycopg's others as they are."""
        try:
            with _borrow(self.connection) as connection, connection.cursor(row_factory=call.row) as cursor:
                return cursor.execute(call.statement, call.arguments).fetchall()
        except psycopg.Error as error:
            refusal = from_exception(error)
            if refusal is None:
                _name_pooler(error)
                raise
            if isinstance(refusal, Refused):
                self.record(refusal)
            raise refusal from error

    def record(self, refusal: Refused) -> None:
        """Tell of a refusal and keep its record, where this ledger's are kept. Raises nothing."""
        _tell(refusal)
        if self.refusals is None:
            _say_once_that_refusals_are_not_recorded()
            return
        call = calls.record_refusal(refusal.code, refusal.message, refusal.detail)
        try:
            with _borrow(self.refusals) as connection:
                connection.execute(call.statement, call.arguments)
        except Exception as error:  # whatever a pool raises: the caller must hear of the refusal
            fact(log, logging.WARNING, "refusal_not_recorded", exc_info=error, code=refusal.code)

    draw_token = _one(calls.draw_token)
    activate_token = _one(calls.activate_token)
    get_kind = _one(calls.get_kind)
    set_kind = _one(calls.set_kind)
    lock_job = _one(calls.lock_job)
    hold_job = _one(calls.hold_job)
    job_holders = _one(calls.job_holders)
    free_job = _one(calls.free_job)
    add_refund = _one(calls.add_refund)
    add_refunds = _many(calls.add_refunds)
    claim_refund = _one(calls.claim_refund)
    claim_refunds = _many(calls.claim_refunds)
    confirm_refund = _one(calls.confirm_refund)
    confirm_refunds = _many(calls.confirm_refunds)
    fail_refund = _one(calls.fail_refund)
    release_refund = _one(calls.release_refund)
    mark_unknown = _one(calls.mark_unknown)
    accept_refund = _one(calls.accept_refund)
    cancel_refund = _one(calls.cancel_refund)
    review_refund = _one(calls.review_refund)
    resolve_refund = _one(calls.resolve_refund)
    return_refund = _one(calls.return_refund)
    requeue_refund = _one(calls.requeue_refund)
    pause = _one(calls.pause)
    resume = _one(calls.resume)
    break_lease = _one(calls.break_lease)
    present_token = _one(calls.present_token)
    present_tokens = _one(calls.present_tokens)
    protect_table = _one(calls.protect_table)
    unprotect_table = _one(calls.unprotect_table)
    exempt_transaction = _one(calls.exempt_transaction)
    set_mode = _one(calls.set_mode)
    set_failover = _one(calls.set_failover)
    record_refusal = _one(calls.record_refusal)
    record_hold = _one(calls.record_hold)
    begin_attempt = _one(calls.begin_attempt)
    end_attempt = _one(calls.end_attempt)
    requeue_work = _one(calls.requeue_work)
    archive_refunds = _one(calls.archive_refunds)
    prune_refusals = _one(calls.prune_refusals)
    prune_draws = _one(calls.prune_draws)
    prune_events = _one(calls.prune_events)
    prune_work = _one(calls.prune_work)
    count_open = _many(calls.count_open)
    verify = _many(calls.verify)
    recover_failover = _one(calls.recover_failover)


class AsyncLedger:
    """The same over an async connection or pool."""

    def __init__(self, connection: AsyncSource, *, refusals: AsyncSource | None = None) -> None:
        self.connection = connection
        self.refusals = _fit_for_records(refusals)

    async def send(self, call: Call[T]) -> list[T]:
        """Send a call and return its rows. Raises the ledger's own errors, and psycopg's others as they are."""
        try:
            async with (
                _borrow_async(self.connection) as connection,
                connection.cursor(row_factory=cast("Any", call.row)) as cursor,
            ):
                await cursor.execute(call.statement, call.arguments)
                return cast("list[T]", await cursor.fetchall())
        except psycopg.Error as error:
            refusal = from_exception(error)
            if refusal is None:
                _name_pooler(error)
                raise
            if isinstance(refusal, Refused):
                await self.record(refusal)
            raise refusal from error

    async def record(self, refusal: Refused) -> None:
        """Tell of a refusal and keep its record, where this ledger's are kept. Raises nothing."""
        _tell(refusal)
        if self.refusals is None:
            _say_once_that_refusals_are_not_recorded()
            return
        call = calls.record_refusal(refusal.code, refusal.message, refusal.detail)
        try:
            async with _borrow_async(self.refusals) as connection:
                await connection.execute(call.statement, call.arguments)
        except Exception as error:  # whatever a pool raises: the caller must hear of the refusal
            fact(log, logging.WARNING, "refusal_not_recorded", exc_info=error, code=refusal.code)

    draw_token = _one_async(calls.draw_token)
    activate_token = _one_async(calls.activate_token)
    get_kind = _one_async(calls.get_kind)
    set_kind = _one_async(calls.set_kind)
    lock_job = _one_async(calls.lock_job)
    hold_job = _one_async(calls.hold_job)
    job_holders = _one_async(calls.job_holders)
    free_job = _one_async(calls.free_job)
    add_refund = _one_async(calls.add_refund)
    add_refunds = _many_async(calls.add_refunds)
    claim_refund = _one_async(calls.claim_refund)
    claim_refunds = _many_async(calls.claim_refunds)
    confirm_refund = _one_async(calls.confirm_refund)
    confirm_refunds = _many_async(calls.confirm_refunds)
    fail_refund = _one_async(calls.fail_refund)
    release_refund = _one_async(calls.release_refund)
    mark_unknown = _one_async(calls.mark_unknown)
    accept_refund = _one_async(calls.accept_refund)
    cancel_refund = _one_async(calls.cancel_refund)
    review_refund = _one_async(calls.review_refund)
    resolve_refund = _one_async(calls.resolve_refund)
    return_refund = _one_async(calls.return_refund)
    requeue_refund = _one_async(calls.requeue_refund)
    pause = _one_async(calls.pause)
    resume = _one_async(calls.resume)
    break_lease = _one_async(calls.break_lease)
    present_token = _one_async(calls.present_token)
    present_tokens = _one_async(calls.present_tokens)
    protect_table = _one_async(calls.protect_table)
    unprotect_table = _one_async(calls.unprotect_table)
    exempt_transaction = _one_async(calls.exempt_transaction)
    set_mode = _one_async(calls.set_mode)
    set_failover = _one_async(calls.set_failover)
    record_refusal = _one_async(calls.record_refusal)
    record_hold = _one_async(calls.record_hold)
    begin_attempt = _one_async(calls.begin_attempt)
    end_attempt = _one_async(calls.end_attempt)
    requeue_work = _one_async(calls.requeue_work)
    archive_refunds = _one_async(calls.archive_refunds)
    prune_refusals = _one_async(calls.prune_refusals)
    prune_draws = _one_async(calls.prune_draws)
    prune_events = _one_async(calls.prune_events)
    prune_work = _one_async(calls.prune_work)
    count_open = _many_async(calls.count_open)
    verify = _many_async(calls.verify)
    recover_failover = _one_async(calls.recover_failover)


def _fit_for_records(source: T) -> T:
    if isinstance(source, psycopg.Connection | psycopg.AsyncConnection) and not source.autocommit:
        raise ValueError(
            "refusals needs a pool or a connection in autocommit: on this one a record would wait for a commit"
        )
    return source


def _borrow(source: Source) -> AbstractContextManager[psycopg.Connection[Any]]:
    return nullcontext(source) if isinstance(source, psycopg.Connection) else source.connection()


def _borrow_async(source: AsyncSource) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
    return nullcontext(source) if isinstance(source, psycopg.AsyncConnection) else source.connection()


def _name_pooler(error: psycopg.Error) -> None:
    # What a statement that was prepared in another session comes to.
    if isinstance(error, psycopg.errors.DuplicatePreparedStatement | psycopg.errors.InvalidSqlStatementName):
        error.add_note(
            "A pooler in transaction mode stands between, and lends each transaction another session, which doesn't "
            "know what psycopg prepared. Nothing was changed. Connect with prepare_threshold=None, or use a pooler "
            "that carries prepared statements over (PgBouncer 1.21 and later, with max_prepared_statements)."
        )


@functools.cache
def _say_once_that_refusals_are_not_recorded() -> None:
    fact(
        log, logging.WARNING, "refusals_not_recorded",
        note="a refusal's record is rolled back with its transaction; give Ledger(..., refusals=pool) to keep it",
    )  # fmt: skip


def _tell(refusal: Refused) -> None:
    """That a call was refused, whether or not that can be recorded."""
    facts = {name: refusal.detail[name] for name in TOLD if name in refusal.detail}
    fact(log, logging.INFO, "call_refused", code=refusal.code, **facts)
