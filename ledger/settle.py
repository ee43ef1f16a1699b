"""Settle a merchant's refunds: claim, call the gateway, record, until none is left that can be claimed.

Several calls to the gateway are in flight at once. What has been answered is recorded in one call, so that batches
grow by themselves while a recording is under way. Nothing is begun after a refusal or a lost lease; what is at the
gateway by then is still recorded if the database lets it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import psycopg

from ledger.calls import Call
from ledger.client import AsyncLedger, Ledger
from ledger.errors import Busy, LeaseLost, Refused
from ledger.gateway import Accepted, AsyncGateway, Declined, Found, Gateway, Nothing, Sent, Unknown
from ledger.lease import AdvisoryLease, AsyncAdvisoryLease, AsyncLease, Lease
from ledger.lease.database import AsyncDatabase, AsyncDb, Database, Db
from ledger.records import Claim
from ledger.settlement import Event, Find, NotTried, Report, Result, Send, Settlement, course

T = TypeVar("T")

log = logging.getLogger("ledger.settle")

PAUSE = 0.05
"""Seconds between two looks at something that can't wake us: a server that is away, rows that are locked."""

LOCKED_PASSES = 100
"""How many passes may find nothing but rows that somebody has locked, before they are left open."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to settle. Times are in seconds.

    `timeout`: for one call to the gateway; never more than the lease has left. `grace`: how long calls at the
    gateway are waited for once a stop was asked for. `patience`: how long to go on trying when Postgres gives no
    answer.
    """

    in_flight: int = 32
    batch: int = 100
    timeout: float = 10.0
    grace: float = 10.0
    patience: float = 30.0

    def __post_init__(self) -> None:
        for name in ("in_flight", "batch", "timeout", "patience"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}. Give a number above zero")
        if self.grace < 0:
            raise ValueError(f"grace is {self.grace}. Give a number of seconds, from zero")


class Stop(Protocol):
    """What can ask a settlement to stop: a threading.Event or an asyncio.Event."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


class Held(Protocol):
    """What a settlement needs of a lease that is held."""

    @property
    def token(self) -> int:
        """The active token."""
        ...

    @property
    def ttl(self) -> float:
        """Seconds it lasts without renewal."""
        ...

    def remaining(self) -> float:
        """Seconds for which it is certainly ours."""
        ...

    def ensure(self, need: float = 0.0) -> None:
        """Raise LeaseLost unless it is ours for `need` more seconds."""
        ...


Notify = Callable[[Event], None]


def settle(
    merchant_id: str,
    *,
    db: Db,
    gateway: Gateway,
    redis: Any = None,
    ttl: float | None = None,
    wait: float = 0.0,
    options: Options | None = None,
    stop: Stop | None = None,
    notify: Notify | None = None,
) -> Report:
    """Settle a merchant's refunds under a lease, and report.

    `db`: a psycopg_pool pool, a function that opens a connection, or a dsn. `redis`: where the lease lives, a URL or
    a client; None for a kind whose leases are advisory locks. `ttl` and `wait` are the lease's, in seconds.

    Raises what taking the lease raises (Busy above all), and psycopg.OperationalError when Postgres gave no
    answer for `options.patience` seconds. A refusal or a lost lease in the middle is in the report.
    """
    resource = f"settle:{merchant_id}"
    lease: Lease | AdvisoryLease = (
        AdvisoryLease(resource, db=db, ttl=ttl, wait=wait)
        if redis is None
        else Lease(resource, db=db, redis=redis, ttl=ttl, wait=wait)
    )
    with lease:
        core, driver = _begin(merchant_id, lease.token, lease.holder, options)
        return _Driver(core, driver, Database(db), lease, gateway, stop, notify).run()


async def settle_async(
    merchant_id: str,
    *,
    db: AsyncDb,
    gateway: AsyncGateway,
    redis: Any = None,
    ttl: float | None = None,
    wait: float = 0.0,
    options: Options | None = None,
    stop: Stop | None = None,
    notify: Notify | None = None,
) -> Report:
    """The same for asyncio callers."""
    resource = f"settle:{merchant_id}"
    lease: AsyncLease | AsyncAdvisoryLease = (
        AsyncAdvisoryLease(resource, db=db, ttl=ttl, wait=wait)
        if redis is None
        else AsyncLease(resource, db=db, redis=redis, ttl=ttl, wait=wait)
    )
    # Not `async with`: a lost lease mustn't cancel what still records the answers.
    await lease.acquire()
    try:
        core, driver = _begin(merchant_id, lease.token, lease.holder, options)
        return await _AsyncDriver(core, driver, AsyncDatabase(db), lease, gateway, stop, notify).run()
    finally:
        await _give_back(lease)


async def _give_back(lease: AsyncLease | AsyncAdvisoryLease) -> None:
    try:
        await lease.release()
    except Exception as error:
        log.warning("lease_not_released", extra={"resource": lease.resource, "error": str(error)})


def _begin(merchant_id: str, token: int, holder: str, options: Options | None) -> tuple[Settlement, Options]:
    chosen = options or Options()
    return Settlement(merchant_id, token, holder, in_flight=chosen.in_flight, batch=chosen.batch), chosen


def _time_for_call(lease: Held, timeout: float) -> float:
    # The watchdog renews at a third of the ttl, so a lease with less than that left is in trouble.
    lease.ensure(min(timeout, lease.ttl / 3))
    return min(timeout, lease.remaining())


def _as_found(answer: object) -> Found:
    if isinstance(answer, Sent | Accepted | Declined | Unknown | Nothing):
        return answer
    return Unknown(f"the gateway's adapter returned {answer!r}, which is no answer")


def _as_unknown(error: BaseException) -> Unknown:
    return Unknown(f"{type(error).__name__}: {error}")


class _Common:
    """What both drivers know, and when they are done."""

    def __init__(
        self, core: Settlement, options: Options, lease: Any, stop: Stop | None, notify: Notify | None
    ) -> None:
        self.core = core
        self.options = options
        self.lease = lease
        self._stop = stop
        self._notify = notify
        self._give_up_at: float | None = None
        self._empty_passes = 0

    def look_around(self) -> None:
        """Tell what happened; stop where the lease is lost or a stop was asked for."""
        while self.core.events:
            event = self.core.events.popleft()
            if self._notify is not None:
                self._notify(event)
        if not self.core.stopping:
            if self._stop is not None and self._stop.is_set():
                self.core.stop()
            else:
                try:
                    self.lease.ensure()
                except LeaseLost as lost:
                    self.core.stop(lost)
        if self.core.stopped and self.core.is_running:
            now = time.monotonic()
            self._give_up_at = self._give_up_at or now + self.options.grace
            if now >= self._give_up_at:
                self.core.give_up(f"no answer within {self.options.grace:g} s after a stop was asked for")

    def is_over(self) -> bool:
        """Whether nothing is left that could be claimed. A pass that got nowhere is repeated a while."""
        if self.core.stopping or not any(row.is_claimable for row in self.core.open):
            return True
        self._empty_passes = 0 if self.core.new_pass() else self._empty_passes + 1
        return self._empty_passes >= LOCKED_PASSES

    def was_lost(self, error: psycopg.Error | Busy, since: float) -> None:
        """Postgres gave no answer, or the gate is closed: go on for a while, then raise."""
        if time.monotonic() - since >= self.options.patience:
            for claim, result in self.core.pending():
                log.error("answer_not_recorded", extra={"refund_id": claim.refund_id, "result": repr(result)})
            raise error
        log.warning("postgres_gave_no_answer", extra={"error": str(error).splitlines()[0]})


class _Driver(_Common):
    """Drives a settlement with threads: they call the gateway, this one talks to Postgres."""

    def __init__(
        self,
        core: Settlement,
        options: Options,
        database: Database,
        lease: Lease | AdvisoryLease,
        gateway: Gateway,
        stop: Stop | None,
        notify: Notify | None,
    ) -> None:
        super().__init__(core, options, lease, stop, notify)
        self._database = database
        self._gateway = gateway
        self._work: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Claim, Result]] = queue.SimpleQueue()
        self._connection: psycopg.Connection[Any] | None = None
        self._threads: list[threading.Thread] = []

    def run(self) -> Report:
        try:
            while self._turn():
                pass
            return self.core.report()
        finally:
            for _ in self._threads:
                self._work.put(None)
            self._close()

    def _turn(self) -> bool:
        self.look_around()
        self._send_next()
        self._collect(wait=False)
        for recording in self.core.recordings():
            try:
                self.core.recorded(recording, self._send(recording.call))
            except Refused as refusal:
                self.core.refused(recording, refusal)
        claim = self.core.next_claim()
        if claim is not None:
            self._claim()
        elif self.core.is_running:
            self._collect(wait=True)
        elif self.core.is_idle:
            self.core.open = tuple(self._ask(lambda ledger: ledger.count_open(self.core.merchant_id, self.core.token)))
            if self.is_over():
                self.look_around()
                return False
            if self._empty_passes:
                time.sleep(PAUSE)
        return True

    def _send_next(self) -> None:
        while (claim := self.core.next_to_send()) is not None:
            if len(self._threads) < self.options.in_flight and self._work.empty():
                # Daemons: a call that hangs mustn't keep the process from ending after a stop.
                thread = threading.Thread(target=self._serve, name="ledger-settle", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._work.put(claim)

    def _serve(self) -> None:
        while (claim := self._work.get()) is not None:
            self._answers.put((claim, self._call_gateway(claim)))

    def _call_gateway(self, claim: Claim) -> Result:
        flow = course(claim)
        try:
            step = next(flow)
            while True:
                step = flow.send(self._step(step))
        except LeaseLost as lost:
            return NotTried(lost.message)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _step(self, step: Find | Send) -> Found:
        seconds = _time_for_call(self.lease, self.options.timeout)
        try:
            match step:
                case Find(claim):
                    return _as_found(self._gateway.find(claim.idempotency_key, seconds))
                case Send(claim):
                    return _as_found(self._gateway.refund(claim, self.core.token, seconds))
        except Exception as error:
            return _as_unknown(error)

    def _collect(self, *, wait: bool) -> None:
        try:
            self.core.answered(*self._answers.get(block=wait, timeout=PAUSE if wait else None))
            while True:
                self.core.answered(*self._answers.get_nowait())
        except queue.Empty:
            return

    def _claim(self) -> None:
        since = time.monotonic()
        while (call := self.core.next_claim()) is not None:
            try:
                self.core.claimed(self._ledger().send(call))
                return
            except Refused as refusal:
                self.core.stop(refusal)
            except (psycopg.OperationalError, Busy) as error:
                self.core.claim_in_doubt()
                self._recover(error, since)
                self.look_around()

    def _send(self, call: Call[T]) -> list[T]:
        return self._ask(lambda ledger: ledger.send(call))

    def _ask(self, ask: Callable[[Ledger], T]) -> T:
        since = time.monotonic()
        while True:
            try:
                return ask(self._ledger())
            except (psycopg.OperationalError, Busy) as error:
                self._recover(error, since)

    def _recover(self, error: psycopg.OperationalError | Busy, since: float) -> None:
        self.was_lost(error, since)
        if not isinstance(error, Busy):
            self._close()
        time.sleep(PAUSE)

    def _ledger(self) -> Ledger:
        if self._connection is None:
            self._connection = self._database.open()
        return Ledger(self._connection, refusals=self._database)

    def _close(self) -> None:
        if self._connection is not None:
            self._database.close(self._connection)
            self._connection = None


class _AsyncDriver(_Common):
    """Drives a settlement on an event loop: a task for each call to the gateway."""

    def __init__(
        self,
        core: Settlement,
        options: Options,
        database: AsyncDatabase,
        lease: AsyncLease | AsyncAdvisoryLease,
        gateway: AsyncGateway,
        stop: Stop | None,
        notify: Notify | None,
    ) -> None:
        super().__init__(core, options, lease, stop, notify)
        self._database = database
        self._gateway = gateway
        self._connection: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> Report:
        try:
            while await self._turn():
                pass
            return self.core.report()
        finally:
            for task in self._tasks:
                task.cancel()
            await self._close()

    async def _turn(self) -> bool:
        self.look_around()
        while (to_send := self.core.next_to_send()) is not None:
            task = asyncio.create_task(self._serve(to_send))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for recording in self.core.recordings():
            try:
                self.core.recorded(recording, await self._send(recording.call))
            except Refused as refusal:
                self.core.refused(recording, refusal)
        claim = self.core.next_claim()
        if claim is not None:
            await self._claim()
        elif self.core.is_running:
            await asyncio.wait(self._tasks, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)
        elif self.core.is_idle:
            self.core.open = tuple(
                await self._ask(lambda ledger: ledger.count_open(self.core.merchant_id, self.core.token))
            )
            if self.is_over():
                self.look_around()
                return False
            if self._empty_passes:
                await asyncio.sleep(PAUSE)
        return True

    async def _serve(self, claim: Claim) -> None:
        self.core.answered(claim, await self._call_gateway(claim))

    async def _call_gateway(self, claim: Claim) -> Result:
        flow = course(claim)
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._step(step))
        except LeaseLost as lost:
            return NotTried(lost.message)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _step(self, step: Find | Send) -> Found:
        seconds = _time_for_call(self.lease, self.options.timeout)
        try:
            match step:
                case Find(claim):
                    return _as_found(await self._gateway.find(claim.idempotency_key, seconds))
                case Send(claim):
                    return _as_found(await self._gateway.refund(claim, self.core.token, seconds))
        except Exception as error:
            return _as_unknown(error)

    async def _claim(self) -> None:
        since = time.monotonic()
        while (call := self.core.next_claim()) is not None:
            try:
                self.core.claimed(await (await self._ledger()).send(call))
                return
            except Refused as refusal:
                self.core.stop(refusal)
            except (psycopg.OperationalError, Busy) as error:
                self.core.claim_in_doubt()
                await self._recover(error, since)
                self.look_around()

    async def _send(self, call: Call[T]) -> list[T]:
        return await self._ask(lambda ledger: ledger.send(call))  # type: ignore[no-any-return]

    async def _ask(self, ask: Callable[[AsyncLedger], Any]) -> Any:
        since = time.monotonic()
        while True:
            try:
                return await ask(await self._ledger())
            except (psycopg.OperationalError, Busy) as error:
                await self._recover(error, since)

    async def _recover(self, error: psycopg.OperationalError | Busy, since: float) -> None:
        self.was_lost(error, since)
        if not isinstance(error, Busy):
            await self._close()
        await asyncio.sleep(PAUSE)

    async def _ledger(self) -> AsyncLedger:
        if self._connection is None:
            self._connection = await self._database.open()
            if not isinstance(self._connection, psycopg.AsyncConnection):
                raise TypeError(
                    "settle_async needs asyncio connections: an AsyncConnectionPool, a dsn, or a function "
                    "that opens a psycopg.AsyncConnection"
                )
        return AsyncLedger(self._connection, refusals=self._database)

    async def _close(self) -> None:
        if self._connection is not None:
            await self._database.close(self._connection)
            self._connection = None
