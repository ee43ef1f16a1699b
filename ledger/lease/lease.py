"""The right to try, with a time limit: draw, take, activate, keep, give back.

The lease is about liveness only. What makes a stale holder harmless is the fence in the database: a lease's
token is drawn before the lease is taken and activated after it.

    with Lease("settle:m_4471", db=pool, redis="redis://localhost") as lease:
        ledger.claim_refunds("m_4471", lease.token, 100)
        lease.ensure(need=5)                       # before each call that takes up to five seconds
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import secrets
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial
from os import getpid
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, cast

import psycopg

from ledger.errors import BadArgument, Busy, LeaseLost, LeaseUnreachable, LedgerError, LockHeld, StaleToken
from ledger.lease.advisory import JobSession, job_sessions
from ledger.lease.database import (
    AsyncDatabase,
    AsyncDb,
    Database,
    Db,
    async_ledger,
    blocking_ledger,
    in_thread,
)
from ledger.lease.steps import Close, Course, Do, Open, Sql, Step, run, run_async
from ledger.lease.watchdog import Hold, Keeper, Reason, Reply, patience_for, watchdog
from ledger.observe import fact

if TYPE_CHECKING:
    from ledger.lease.redis_lock import Entry, RedisLike
    from ledger.records import Kind

T = TypeVar("T")

log = logging.getLogger("ledger.lease")

ACTIVATIONS = 3
"""How often a lease tries to activate, each time with a newer number, before it calls the resource busy."""

_PLACES = {"redis": "Redis", "advisory": "Postgres"}
_WHY: dict[str, str] = {
    "superseded": "another holder has it",
    "expired": "it ran out before it was renewed, as when the process was frozen",
    "unreachable": "its server gave no answer until it ran out",
    "max_hold": "it was held for as long as it may be",
    "broken": "it was taken away: an operator broke it, or its server lost it",
    "forked": "it belongs to the process that this one was forked from",
}
_STOP = (
    "Start nothing more under it. What the gateway has already done may still be confirmed, for as long as"
    " the token is active; then take a new lease"
)


def new_holder() -> str:
    """A name for one attempt at a resource: host/pid/16 hex digits."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:100] or "host"
    return f"{host}/{getpid()}/{secrets.token_hex(8)}"


class _Lease:
    """What all leases share. One object is one attempt; for another, make another."""

    lives_in: ClassVar[Literal["redis", "advisory"]]

    def __init__(
        self, resource: str, ttl: float | None, wait: float, max_hold: float | None, holder: str | None
    ) -> None:
        for name, value in (("ttl", ttl), ("max_hold", max_hold)):
            if value is not None and not 0.001 <= value < math.inf:
                raise ValueError(f"{name} is {value}. Give seconds, above zero")
        if not 0 <= wait < math.inf:
            raise ValueError(f"wait is {wait}. Give seconds, from zero")
        if holder is not None and (not holder or ":" in holder or not holder.isprintable()):
            raise ValueError(f"not a holder: {holder!r}. Give printable text without a colon")
        self.resource = resource
        self.holder = holder or new_holder()
        self._ttl = ttl
        self._wait = wait
        self._max_hold = max_hold
        self._token: int | None = None
        self._hold: Hold | None = None
        self._begun = False
        self._unrecorded = False
        self._waited = 0.0

    @property
    def token(self) -> int:
        """The number to present with every write. Raises RuntimeError before the lease was taken."""
        if self._token is None:
            raise RuntimeError(f"the lease on {self.resource} wasn't taken yet. Enter its block first")
        return self._token

    @property
    def ttl(self) -> float:
        """Seconds the lease lasts without renewal. Raises RuntimeError while only the kind knows them."""
        if self._ttl is None:
            raise RuntimeError(f"the lease on {self.resource} wasn't taken yet. Enter its block first")
        return self._ttl

    @property
    def lost(self) -> Reason | None:
        """Why the lease is no longer ours, or None."""
        return None if self._hold is None else self._hold.lost

    def remaining(self) -> float:
        """Seconds for which the lease is certainly ours, if nothing more is heard of its server."""
        return 0.0 if self._hold is None else self._hold.remaining()

    def ensure(self, need: float = 0.0) -> None:
        """Raise LeaseLost unless the lease is ours for `need` more seconds."""
        reason = self.lost
        if reason is not None:
            raise self._lost_error(reason)
        if self._hold is None or self._hold.closed:
            raise self._lost_error("released", "isn't held (any more)")
        left = self.remaining()
        if left <= 0 or left < need:
            raise self._lost_error(
                self._hold.why_over(),
                f"has {left:.1f} of its {self.ttl:g} seconds left, and {need:g} are needed",
            )

    def _lost_error(self, reason: str, what: str | None = None) -> LeaseLost:
        return LeaseLost(
            f"the lease on {self.resource} {what or f'is lost: {_WHY[reason]}'}",
            {"resource": self.resource, "holder": self.holder, "token": self._token, "reason": reason},
            _STOP,
        )

    def _acquire(self) -> Course[None]:
        """Draw, take, activate. Leaves no lease behind when it fails."""
        if self._begun:
            raise RuntimeError("a lease is one attempt at a resource. Make another one to try again")
        self._begun = True
        begun_at = time.monotonic()
        try:
            yield from self._take_and_activate()
        except BaseException as error:
            self._tell("lease_not_taken", seconds=_since(begun_at), waited=self._waited, outcome=_outcome(error))
            raise
        self._tell("lease_taken", seconds=_since(begun_at), waited=self._waited, ttl=self.ttl)

    def _take_and_activate(self) -> Course[None]:
        name = self.resource.partition(":")[0]
        self._fit((yield Sql(lambda ledger: ledger.get_kind(name))))
        token: int = yield Sql(lambda ledger: ledger.draw_token(self.resource))
        try:
            yield from self._take(token)
            yield from self._activate()
            self.ensure()
        except BaseException:
            yield from self._back_out()
            raise

    def _fit(self, kind: Kind) -> None:
        """Settle the ttl. Refuses a kind whose leases live elsewhere, and a ttl below its idle limit."""
        if kind.known and kind.lock != self.lives_in:
            other = "AdvisoryLease" if kind.lock == "advisory" else "Lease"
            raise BadArgument(
                f"leases of kind {kind.kind} live in {_PLACES[kind.lock]}, not in {_PLACES[self.lives_in]}."
                " Nothing was changed",
                {"kind": kind.kind, "lock": kind.lock, "asked": self.lives_in},
                f"Use {other}, or move the kind: ledger kind set {kind.kind} --lock {self.lives_in}",
            )
        ttl = kind.lease_ttl.total_seconds() if self._ttl is None else self._ttl
        idle_limit = kind.idle_limit.total_seconds()
        if ttl < idle_limit:
            raise BadArgument(
                f"a lease of {ttl:g} s on {self.resource} is shorter than the idle limit of its kind,"
                f" {idle_limit:g} s: the next holder would wait for a frozen one's transaction. Nothing was"
                " changed",
                {"kind": kind.kind, "ttl": ttl, "idle_limit": idle_limit},
                f"Give a ttl of {idle_limit:g} or more, or lower the limit:"
                f" ledger kind set {kind.kind} --idle-limit {ttl:g}",
            )
        self._ttl = ttl

    def _activate(self) -> Course[None]:
        """Make our token the active one; when it has become void, draw another under the same lease."""
        refused = 0
        while True:
            self.ensure()
            try:
                yield self._activation(self.token)
                self._unrecorded = True
                return
            except StaleToken as error:
                refused += 1
                self._tell("token_void", reason=error.reason)
                if refused == ACTIVATIONS:
                    raise Busy(
                        f"others activated {self.resource} before us, {refused} times. Nothing was changed",
                        {**error.detail, "resource": self.resource},
                        "Several holders are at it, some without a lease. Find out who, or try again later",
                    ) from error
            newer: int = yield Sql(lambda ledger: ledger.draw_token(self.resource))
            yield from self._swap(newer)

    def _activation(self, token: int) -> Sql:
        return Sql(lambda ledger: ledger.activate_token(self.resource, token, self.holder))

    def _back_out(self) -> Course[None]:
        """Give back what a failed attempt may have taken, without hiding why it failed."""
        try:
            yield from self._release()
        except Exception as error:
            self._tell("lease_not_given_back", logging.WARNING, error=str(error), note="it will run out")

    def _release(self) -> Course[bool]:
        if self._hold is not None:
            if self._hold.forked:
                return False
            self._hold.close()
            watchdog().forget(self._hold)
        return (yield from self._give_back())

    def _record_hold(self, on: JobSession | None = None) -> Course[None]:
        """Keep how long the lease was held, for the advice on its ttl. Nothing depends on it."""
        hold = self._hold
        if hold is None or not self._unrecorded:
            return
        self._unrecorded = False
        held = timedelta(seconds=time.monotonic() - hold.taken_at)
        try:
            yield Sql(
                lambda ledger: ledger.record_hold(self.resource, self.token, held, hold.renewals, hold.late), on=on
            )
        except Exception as error:
            self._tell("hold_not_recorded", error=str(error))

    def _keep(self, keeper: Keeper, lock: object, token: int, value: str, sent_at: float) -> None:
        """From here on the watchdog looks after the lease."""
        self._token = token
        self._hold = Hold(keeper, lock, self.resource, value, self.ttl, sent_at, self._max_hold, on_lost=self._on_lost)
        watchdog().watch(self._hold)

    def _on_lost(self, reason: Reason) -> None:
        """Called once, from any thread."""
        self._tell("lease_lost", logging.WARNING, reason=reason)

    def _given_back(self) -> None:
        held = 0.0 if self._hold is None else _since(self._hold.taken_at)
        self._tell("lease_given_back", seconds=held, ttl=self.ttl)

    def _tell(self, name: str, level: int = logging.INFO, **fields: Any) -> None:
        fact(log, level, name, resource=self.resource, token=self._token, holder=self.holder, **fields)

    def _take(self, token: int) -> Course[None]:
        """Take the lease, waiting for it if we may, and keep it. Raises Busy."""
        raise NotImplementedError

    def _swap(self, token: int) -> Course[None]:
        """Go on with a newer token, after showing that the lease is still ours. Raises LeaseLost."""
        raise NotImplementedError

    def _give_back(self) -> Course[bool]:
        """Whether the lease was ours and is free now."""
        raise NotImplementedError


class _InRedis(_Lease):
    """A lease that is a key in Redis."""

    lives_in = "redis"

    def __init__(
        self,
        resource: str,
        redis: RedisLike,
        ttl: float | None,
        wait: float,
        max_hold: float | None,
        holder: str | None,
    ) -> None:
        from ledger.lease.redis_lock import RedisLock  # importing redis takes 0.2 s

        super().__init__(resource, ttl, wait, max_hold, holder)
        self._lock = RedisLock(redis, resource)
        self._value: str | None = None

    def _take(self, token: int) -> Course[None]:
        self._lock.timeout = patience_for(self.ttl)
        self._value = value = f"{self.holder}:{token}"
        until = time.monotonic() + self._wait
        while True:
            entry: Entry | None = None
            sent_at = time.monotonic()
            try:
                entry = yield Do(partial(self._lock.take, value, self.ttl))
                if entry is None:
                    break
            except LeaseUnreachable:
                if time.monotonic() >= until:
                    raise
            left = until - time.monotonic()
            if entry is not None and left <= 0:
                self._value = None
                raise self._busy(entry)
            # The holder may also die: then its lease ends without a wake-up.
            pause = left if entry is None else min(left, entry.ttl_left + 0.005)
            paused_at = time.monotonic()
            yield Do(partial(self._pause, max(pause, 0.001)), short=False)
            self._waited += _since(paused_at)
        self._keep(self._lock.server, self._lock, token, value, sent_at)

    def _pause(self, seconds: float) -> None:
        try:
            self._lock.wait(seconds)
        except LeaseUnreachable:
            time.sleep(min(seconds, random.uniform(0.05, 0.25)))  # noqa: S311 (no secret)

    def _busy(self, entry: Entry) -> Busy:
        waited = f", waited {self._wait:g} s" if self._wait else ""
        return Busy(
            f"the lease on {self.resource} is held by {entry.holder or entry.value} with token {entry.token},"
            f" for {entry.ttl_left:.1f} s more unless renewed{waited}. Nothing was changed",
            {
                "resource": self.resource,
                "holder": entry.holder,
                "token": entry.token,
                "ttl_left": entry.ttl_left,
            },
            "Try again later, or give a longer wait",
        )

    def _swap(self, token: int) -> Course[None]:
        hold, old, new = self._hold, self._value, f"{self.holder}:{token}"
        assert hold is not None
        assert old is not None
        hold.swapping = True
        try:
            sent_at = time.monotonic()
            swapped: bool = yield Do(partial(self._lock.swap, old, new, self.ttl))
            if swapped:
                self._value = hold.value = new
                self._token = token
                hold.renewed(sent_at)
        finally:
            hold.swapping = False
        if not swapped:
            hold.lose("superseded")
            self.ensure()

    def _give_back(self) -> Course[bool]:
        if self._value is None:
            return False
        released: bool = yield Do(partial(self._lock.release, self._value))
        self._value = None
        if released:
            self._given_back()
        yield from self._record_hold()
        return released


class _InPostgres(_Lease):
    """A lease that is a session-level advisory lock, on a connection of its own."""

    lives_in = "advisory"
    _session: JobSession | None = None

    def _take(self, token: int) -> Course[None]:
        session: JobSession = yield Open()
        self._session = session
        yield Do(partial(session.prepare, self.resource, self.ttl))
        wait = timedelta(seconds=self._wait)
        asked_at = time.monotonic()
        try:
            yield Sql(lambda ledger: ledger.hold_job(self.resource, wait), on=session)
        except LockHeld as error:
            raise Busy(
                error.message,
                {"resource": self.resource, "holder": None, "token": None, "ttl_left": None, **error.detail},
                error.hint,
            ) from error
        finally:
            self._waited = _since(asked_at) if self._wait else 0.0
        sent_at = time.monotonic()
        yield from self._show()
        self._keep(job_sessions, session, token, self.holder, sent_at)

    def _swap(self, token: int) -> Course[None]:
        yield from self._show()
        self._token = token

    def _show(self) -> Course[None]:
        assert self._session is not None
        reply: Reply = yield Do(partial(self._session.ping, 1.0))
        if reply is not Reply.HELD:
            raise self._lost_error("unreachable" if reply is Reply.NO_ANSWER else reply.value)

    def _give_back(self) -> Course[bool]:
        session, self._session = self._session, None
        if session is None:
            return False
        try:
            # Only a server that answers is asked to free the lock; closing the session frees it as well.
            reply: Reply = yield Do(partial(session.retire, patience_for(self.ttl)))
            if reply is not Reply.HELD:
                return False
            freed: bool = yield Sql(lambda ledger: ledger.free_job(self.resource), on=session)
            yield from self._record_hold(on=session)
        finally:
            yield Close(session)
        if freed:
            self._given_back()
        return freed


class _Blocking(_Lease):
    """How a blocking lease takes its steps."""

    _db: Database

    def acquire(self) -> Self:
        """Take the lease and activate its token.

        Raises Busy when someone else holds it, LeaseUnreachable when its server gives no answer, LeaseLost
        when it is lost again before it is activated, BadArgument when ttl or lock don't fit the kind,
        and what draw_token and activate_token raise.
        """
        run(self._acquire(), self._step)
        return self

    def release(self) -> bool:
        """Give the lease back, if it is still ours; never another's. May be repeated, also after it failed.

        True: it was ours and is free now. Raises LeaseUnreachable when the server gives no answer.
        """
        return run(self._release(), self._step)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A lease that can't be given back runs out by itself: no reason to hide how the body ended.
        run(self._back_out(), self._step)

    def _step(self, step: Step) -> Any:
        match step:
            case Do(call):
                return call()
            case Sql(call, None):
                return self._db.run(call)
            case Sql(call, JobSession(connection=connection)):
                return call(blocking_ledger(cast("psycopg.Connection[Any]", connection)))
            case Open():
                return JobSession(self._db.open())
            case Close(session):
                return self._db.close(cast("psycopg.Connection[Any]", session.connection))


class _Awaiting(_Lease):
    """How an asyncio lease takes its steps, and how it ends a body whose lease is lost."""

    _db: AsyncDatabase
    _loop: asyncio.AbstractEventLoop | None = None
    _body: asyncio.Task[Any] | None = None
    _cancelling = 0
    _cancelled = False

    async def acquire(self) -> Self:
        """Take the lease and activate its token. Raises what the blocking lease raises."""
        self._loop = asyncio.get_running_loop()
        await run_async(self._acquire(), self._step)
        return self

    async def release(self) -> bool:
        """Give the lease back, if it is still ours; finished even when the caller is cancelled meanwhile."""
        return await _finish(run_async(self._release(), self._step))

    async def __aenter__(self) -> Self:
        await self.acquire()
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancelling = self._body.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        assert body is not None
        by_us = False
        if self._cancelled:
            by_others = body.uncancel() > self._cancelling
            by_us = isinstance(error, asyncio.CancelledError) and not by_others
        try:
            await _finish(run_async(self._back_out(), self._step))
        except asyncio.CancelledError:
            if error is None or isinstance(error, asyncio.CancelledError):
                raise
        if by_us:
            raise self._lost_error(self.lost or "expired") from error

    def _on_lost(self, reason: Reason) -> None:
        super()._on_lost(reason)
        with suppress(RuntimeError):  # the loop is closed, and the body gone with it
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._cancel_body)

    def _cancel_body(self) -> None:
        if self._body is not None and not self._cancelled:
            self._cancelled = True
            self._body.cancel(f"the lease on {self.resource} is lost")

    async def _step(self, step: Step) -> Any:
        match step:
            case Do(call, short):
                return await in_thread(call, finish=short)
            case Sql(call, None):
                return await self._db.run(call)
            case Sql(call, JobSession(connection=connection)):
                if isinstance(connection, psycopg.AsyncConnection):
                    return await call(async_ledger(connection))
                return await in_thread(
                    lambda: call(blocking_ledger(connection)), finish=True, stop=connection.cancel_safe
                )
            case Open():
                return JobSession(await self._db.open())
            case Close(session):
                return await self._db.close(session.connection)


def _since(moment: float) -> float:
    return time.monotonic() - moment


def _outcome(error: BaseException) -> str:
    """Why a lease wasn't taken, as one of a few words."""
    words = {Busy: "busy", LeaseUnreachable: "unreachable", LeaseLost: "lost", LedgerError: "refused"}
    return next((word for kind, word in words.items() if isinstance(error, kind)), "failed")


async def _finish(course: Coroutine[Any, Any, T]) -> T:
    """Await it to its end, also when cancelled meanwhile; then let the cancellation go on."""
    task = asyncio.ensure_future(course)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


class Lease(_InRedis, _Blocking):
    """A lease in Redis, for blocking callers.

    `db`: a psycopg_pool, a function that opens a connection, or a dsn. `redis`: a URL, or a client whose
    settings are used for connections of the lease's own. `ttl`, `wait`, `max_hold`: seconds; the ttl is
    the kind's when not given.
    """

    def __init__(
        self,
        resource: str,
        *,
        db: Db,
        redis: RedisLike,
        ttl: float | None = None,
        wait: float = 0.0,
        max_hold: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(resource, redis, ttl, wait, max_hold, holder)
        self._db = Database(db)


class AsyncLease(_InRedis, _Awaiting):
    """A lease in Redis, for asyncio callers.

    Losing it cancels the body, and `async with` raises LeaseLost.
    """

    def __init__(
        self,
        resource: str,
        *,
        db: AsyncDb,
        redis: RedisLike,
        ttl: float | None = None,
        wait: float = 0.0,
        max_hold: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(resource, redis, ttl, wait, max_hold, holder)
        self._db = AsyncDatabase(db)


class AdvisoryLease(_InPostgres, _Blocking):
    """A lease that is a Postgres advisory lock, for blocking callers who have no Redis.

    It keeps one connection of `db` for as long as it is held, which must go straight to Postgres, and uses a
    second one for a moment to draw and to activate: a pool needs room for both.
    """

    def __init__(
        self,
        resource: str,
        *,
        db: Db,
        ttl: float | None = None,
        wait: float = 0.0,
        max_hold: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(resource, ttl, wait, max_hold, holder)
        self._db = Database(db)


class AsyncAdvisoryLease(_InPostgres, _Awaiting):
    """The same for asyncio callers."""

    def __init__(
        self,
        resource: str,
        *,
        db: AsyncDb,
        ttl: float | None = None,
        wait: float = 0.0,
        max_hold: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(resource, ttl, wait, max_hold, holder)
        self._db = AsyncDatabase(db)
