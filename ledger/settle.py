"""Settle a merchant's refunds: claim, call the gateway, record, until none is left that can be claimed.

Several calls to the gateway are in flight at once, and go on while Postgres is asked. What has been answered is
recorded in one call, so that batches grow by themselves while a recording is under way. Nothing is begun after a
refusal or a lost lease; what is at the gateway by then is still recorded if the database lets it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import psycopg

from ledger import calls
from ledger.calls import Call
from ledger.client import AsyncLedger, Ledger
from ledger.errors import Busy, FenceRefusal, LeaseLost, LedgerError, Refused
from ledger.gateway import AsyncGateway, Found, Gateway, Unknown
from ledger.lease import AdvisoryLease, AsyncAdvisoryLease, AsyncLease, Lease
from ledger.lease.database import AsyncDatabase, AsyncDb, Database, Db, blocking_ledger, in_thread
from ledger.lease.steps import run, run_async
from ledger.observe import fact, is_heard
from ledger.records import Claim
from ledger.settlement import (
    Event,
    Find,
    NotTried,
    Recording,
    Report,
    Result,
    Send,
    Settlement,
    as_found,
    at_the_gateway,
)

T = TypeVar("T")

log = logging.getLogger("ledger.settle")

PAUSE = 0.05
"""Seconds between two looks at something that can't wake us: a stop, a server that is away, rows that are locked."""

LOCKED_PASSES = 100
"""How many passes may find nothing but rows that somebody has locked, before they are left open."""

HUNG = 0.5
"""Seconds that a call to Postgres may take before nothing more is sent whose answer might go unrecorded."""

QUICK = 0.0002
"""Seconds within which a gateway answers at once: one thread calls it faster than many that take turns."""

SLACK = 1.0
"""Seconds beyond its time that a gateway call is waited for; an adapter that takes longer ignores its timeout."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to settle. Times are in seconds.

    `in_flight`: how many refunds are at the gateway at once; as many again wait for their turn there. `batch`: how
    many a claim takes, 1,000 at most; with one, none is claimed ahead. `timeout`: for one call to the gateway; never
    more than the lease has left. `grace`: how long calls at the gateway are waited for once a stop was asked for.
    `patience`: how long one call to Postgres may take, and how long to go on trying when it gives no answer.
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
        if self.batch > 1000:
            raise ValueError(f"batch is {self.batch}. A claim takes at most 1000 refunds")
        if not self.grace >= 0:
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
    def holder(self) -> str:
        """Who holds it."""
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

    `db`: a psycopg_pool pool, a function that opens a connection, or a dsn. One connection is used throughout, a
    second one to record refusals, and a third one for a lease in Postgres. `redis`: where the lease lives, a URL or
    a client; None for a kind whose leases are advisory locks. `ttl` and `wait` are the lease's, in seconds.

    Raises what taking the lease raises (Busy above all), psycopg.OperationalError when Postgres gave no answer for
    `options.patience` seconds, and what `notify` raised, once everything is wound up. A refusal or a lost lease in
    the middle is in the report.
    """
    resource, chosen = f"settle:{merchant_id}", options or Options()
    lease: Lease | AdvisoryLease = (
        AdvisoryLease(resource, db=db, ttl=ttl, wait=wait)
        if redis is None
        else Lease(resource, db=db, redis=redis, ttl=ttl, wait=wait)
    )
    with lease:
        driver = _Threads(Database(db), gateway, lease, chosen, stop)
        try:
            return run(_Settling(merchant_id, lease, chosen, stop, notify, driver.begun_at).course(), driver.take)
        finally:
            driver.close()


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
    """The same for asyncio callers. When it is cancelled, it gives back what it can before it ends."""
    resource, chosen = f"settle:{merchant_id}", options or Options()
    lease: AsyncLease | AsyncAdvisoryLease = (
        AsyncAdvisoryLease(resource, db=db, ttl=ttl, wait=wait)
        if redis is None
        else AsyncLease(resource, db=db, redis=redis, ttl=ttl, wait=wait)
    )
    # Not `async with`: a lost lease mustn't cancel what still records the answers.
    await lease.acquire()
    driver = _Tasks(AsyncDatabase(db), gateway, lease, chosen, stop)
    course = _Settling(merchant_id, lease, chosen, stop, notify, driver.begun_at).course()
    try:
        return await run_async(course, driver.take)
    finally:
        try:
            await driver.close()
        finally:
            await _give_back(lease)


async def _give_back(lease: AsyncLease | AsyncAdvisoryLease) -> None:
    try:
        await lease.release()
    except Exception as error:
        fact(
            log, logging.WARNING, "lease_not_given_back",
            resource=lease.resource, token=lease.token, holder=lease.holder, error=str(error), note="it will run out",
        )  # fmt: skip


# What a settlement asks of the outside world, one step at a time.


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a call to Postgres, committed by itself, and return its rows."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection to Postgres; the next call opens another one."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Take a refund to the gateway, beside whatever else is going on, as soon as fewer than enough are there."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back, and return, what was to begin and hasn't."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Wait no longer for a refund's answer: another one may have its place at the gateway."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Collect:
    """The gateway's answers; the first of them is waited for up to `seconds`."""

    seconds: float = 0.0


Step: TypeAlias = Ask | HangUp | Begin | Withdraw | Abandon | Collect
Course: TypeAlias = Generator[Step, Any, T]


class _Settling:
    """The course of a settlement, the same for threads and tasks."""

    def __init__(
        self,
        merchant_id: str,
        lease: Held,
        options: Options,
        stop: Stop | None,
        notify: Notify | None,
        begun_at: Mapping[str, float],
    ) -> None:
        self.core = Settlement(merchant_id, lease.token, lease.holder, in_flight=options.in_flight, batch=options.batch)
        self.core.is_watched = notify is not None
        self._lease = lease
        self._options = options
        self._stop = stop
        self._notify = notify
        self._notify_failed: Exception | None = None
        self._patience = options.patience
        self._away_since: float | None = None
        self._give_up_at: float | None = None
        self._begun_at = begun_at
        self._late_since: dict[str, float] = {}
        self._empty_passes = 0

    def course(self) -> Course[Report]:
        """Settle until nothing is left that can be claimed, or something says to stop."""
        try:
            yield from self._work()
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self._wind_up(error)
            raise
        if self._notify_failed is not None:
            raise self._notify_failed
        return self.core.report()

    def _work(self) -> Course[None]:
        over = False
        while not over:
            yield from self._look_around()
            yield from self._begin()
            self._hear((yield Collect()))
            try:
                over = yield from self._turn()
            except (psycopg.Error, Busy) as error:
                if not _may_pass(error):
                    raise
                yield from self._wait_for_postgres(error)
        self._tell()

    def _turn(self) -> Course[bool]:
        """Do what is due next. True when nothing is left to do."""
        recording = self.core.next_recording()
        if recording is not None:
            yield from self._record(recording)
            return False
        call = self.core.next_claim()
        if call is not None and self._has_time():
            yield from self._claim(call)
        elif call is not None or not self.core.is_idle:
            if call is None:
                self._away_since = None  # nothing is asked now that could tell whether Postgres is back
            self._hear((yield Collect(PAUSE)))
        else:
            return (yield from self._is_over())
        return False

    def _record(self, recording: Recording) -> Course[None]:
        try:
            rows = yield from self._ask(recording.call)
        except Refused as refusal:
            self.core.refused(recording, refusal)
        else:
            self.core.recorded(recording, rows)

    def _claim(self, call: Call[Claim]) -> Course[None]:
        try:
            claims = yield from self._ask(call)
        except Refused as refusal:
            self.core.stop(refusal)
        except Busy:
            raise
        except BaseException:
            self.core.claim_in_doubt()
            raise
        else:
            self.core.claimed(claims)

    def _is_over(self) -> Course[bool]:
        """Whether nothing is left that could be claimed. A pass that got nowhere is repeated a while."""
        if not self.core.work_left((yield from self._ask(calls.count_open(self.core.merchant_id, self.core.token)))):
            return True
        if self.core.new_pass():
            self._empty_passes = 0
            return False
        self._empty_passes += 1
        self._hear((yield Collect(PAUSE)))
        return self._empty_passes >= LOCKED_PASSES

    def _ask(self, call: Call[T]) -> Course[list[T]]:
        try:
            rows: list[T] = yield Ask(call)
        except Refused:
            self._away_since = None
            raise
        self._away_since = None
        return rows

    def _wait_for_postgres(self, error: psycopg.Error | Busy) -> Course[None]:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._warn("postgres_gave_no_answer", error, note="trying again")
        if now - self._away_since >= self._patience:
            raise error
        yield from self._hold_back("Postgres gave no answer")
        if not isinstance(error, Busy):
            yield HangUp()
        self._hear((yield Collect(PAUSE)))

    # The gateway.

    def _has_time(self) -> bool:
        return self._lease.remaining() >= _needed(self._lease, self._options)

    def _begin(self) -> Course[None]:
        if self._away_since is not None or not self._has_time():
            return  # nothing more is sent while its answer couldn't be recorded
        while (claim := self.core.next_to_send()) is not None:
            yield Begin(claim)

    def _hold_back(self, reason: str) -> Course[None]:
        for claim in reversed((yield Withdraw()) if self.core.running else ()):
            self.core.answered(claim, NotTried(reason))

    def _hear(self, answers: list[tuple[Claim, Result]]) -> None:
        for claim, result in answers:
            self._late_since.pop(claim.refund_id, None)
            self.core.answered(claim, result)

    # What may end it.

    def _look_around(self) -> Course[None]:
        """Tell what happened; stop where the lease is lost or a stop was asked for."""
        self._tell()
        if self._stop is not None and self._stop.is_set() and not self.core.stopped:
            self.core.stop()
        if self.core.lost is None:
            try:
                self._lease.ensure()
            except LeaseLost as lost:
                self.core.stop(lost)
        if self.core.stopping:
            yield from self._hold_back(self.core.why_not_sent)
        yield from self._give_up_on_late()

    def _tell(self) -> None:
        while self.core.events:
            event = self.core.events.popleft()
            if self._notify is None:
                continue
            try:
                self._notify(event)
            except Exception as error:
                self._notify, self._notify_failed = None, error
                self.core.stop()

    def _give_up_on_late(self) -> Course[None]:
        now = time.monotonic()
        if self.core.stopped and self._give_up_at is None:
            self._give_up_at = now + self._options.grace
        for claim in list(self.core.running.values()):
            if self._give_up_at is not None and now >= self._give_up_at:
                yield from self._give_up(
                    claim, f"no answer within {self._options.grace:g} s after a stop was asked for"
                )
            elif now < self._due_at(claim):
                continue
            # Once more: this process may have been frozen, and the call with it.
            elif now >= self._late_since.setdefault(claim.refund_id, now) + SLACK:
                yield from self._give_up(
                    claim, f"no answer, and its timeout of {self._options.timeout:g} s is long over"
                )

    def _due_at(self, claim: Claim) -> float:
        """When its answer must be there, by the gateway's timeout."""
        asked = 1 if claim.outcome == "claimed" else 2
        return self._begun_at.get(claim.refund_id, math.inf) + asked * self._options.timeout + SLACK

    def _give_up(self, claim: Claim, reason: str) -> Course[None]:
        yield Abandon(claim)
        self._late_since.pop(claim.refund_id, None)
        self.core.give_up(claim.refund_id, reason)

    def _wind_up(self, error: BaseException) -> Course[None]:
        """After an exception: wait for nothing, record and give back what can be."""
        try:
            if not _may_pass(error):
                self._notify = None
                self.core.stop()
                yield from self._hold_back(self.core.why_not_sent)
                for claim in list(self.core.running.values()):
                    yield from self._give_up(claim, f"the settlement was ended by {type(error).__name__}")
                self._patience = 0.0
                yield HangUp()
                yield from self._work()
        except (psycopg.Error, LedgerError) as another:
            self._warn("settlement_not_wound_up", another)
        finally:
            for claim, result in self.core.pending():
                fact(
                    log, logging.ERROR, "answer_not_recorded",
                    merchant_id=claim.merchant_id, refund_id=claim.refund_id, token=self.core.token,
                    holder=self.core.holder, answer=repr(result),
                )  # fmt: skip

    def _warn(self, name: str, error: BaseException, **fields: Any) -> None:
        fact(
            log, logging.WARNING, name,
            merchant_id=self.core.merchant_id, token=self.core.token, holder=self.core.holder, error=str(error),
            **fields,
        )  # fmt: skip


def _may_pass(error: BaseException) -> bool:
    """Whether Postgres gave no answer now, and may give one later. 25P04: it ended a transaction at its limit."""
    return isinstance(error, psycopg.OperationalError | Busy) or getattr(error, "sqlstate", None) == "25P04"


def _why_not_to_begin(stop: Stop | None, asked_at: float | None, is_refused: bool) -> str | None:
    """What speaks against taking another refund to the gateway while Postgres is asked, since `asked_at`."""
    if is_refused:
        return "the ledger refuses this holder"
    if stop is not None and stop.is_set():
        return "the settlement was stopped before it was sent"
    if asked_at is not None and time.monotonic() - asked_at >= HUNG:
        return "Postgres gave no answer"
    return None


def _needed(lease: Held, options: Options) -> float:
    # The watchdog renews at a third of the ttl, so a lease with less than that left is in trouble.
    return min(options.timeout, lease.ttl / 3)


def _time_for_call(lease: Held, options: Options) -> float:
    left, needed = lease.remaining(), _needed(lease, options)
    if left < needed:
        lease.ensure(needed)
    return min(options.timeout, left)


def _cut(connection: Any) -> None:
    """End the wait for a server that has fallen silent: whoever waits for it gets an OperationalError.

    Or the watchdog would keep the lease for as long as the network does, and nobody else could go on.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def _tell_call(step: Find | Send, answer: Found, lease: Held, begun_at: float) -> None:
    if not is_heard(log, logging.DEBUG):
        return
    fact(
        log, logging.DEBUG, "gateway_called",
        call="find" if isinstance(step, Find) else "refund", outcome=type(answer).__name__.lower(),
        seconds=time.monotonic() - begun_at, token=lease.token, holder=lease.holder,
        merchant_id=step.claim.merchant_id, refund_id=step.claim.refund_id,
    )  # fmt: skip


def _as_unknown(error: BaseException) -> Unknown:
    return Unknown(f"{type(error).__name__}: {error}".removesuffix(": "))


class _Threads:
    """Takes the steps with threads: they call the gateway, the caller's talks to Postgres."""

    def __init__(self, database: Database, gateway: Gateway, lease: Held, options: Options, stop: Stop | None) -> None:
        self._database = database
        self._gateway = gateway
        self._lease = lease
        self._options = options
        self._stop = stop
        self._connection: psycopg.Connection[Any] | None = None
        self._asked_at: float | None = None
        self._is_refused = False
        self._cutting = threading.Lock()
        self._closed = threading.Event()
        self._cutter: threading.Thread | None = None
        self._work: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Claim, Result]] = queue.SimpleQueue()
        self._threads = 0
        self._under_way = 0
        self.begun_at: dict[str, float] = {}

    def take(self, step: Step) -> Any:
        """Take one step."""
        match step:
            case Ask(call):
                return self._ask(call)
            case HangUp():
                self._hang_up()
            case Begin(claim):
                self._begin(claim)
            case Withdraw():
                return self._withdraw()
            case Abandon(claim):
                self._abandon(claim)
            case Collect(seconds):
                return self._collect(seconds)
        return None

    def close(self) -> None:
        """Let the threads end, and the connection go."""
        self._closed.set()
        self._withdraw()
        for _ in range(self._threads):
            self._work.put(None)
        connection, self._connection = self._connection, None
        if connection is not None:
            self._database.give_back(connection)

    def _ask(self, call: Call[T]) -> list[T]:
        if self._connection is None:
            self._connection = self._database.open()
        if self._cutter is None:
            self._cutter = threading.Thread(target=self._cut_what_is_late, name="ledger-settle-cut", daemon=True)
            self._cutter.start()
        self._asked_at = time.monotonic()
        try:
            return Ledger(self._connection, refusals=self._database).send(call)
        except FenceRefusal:
            self._is_refused = True  # before the queue is withdrawn, no thread takes another one from it
            raise
        finally:
            with self._cutting:
                self._asked_at = None

    def _cut_what_is_late(self) -> None:
        # One thread for all calls. A call that begins while it sleeps isn't late before it wakes.
        left = self._options.patience
        while not self._closed.wait(left):
            left = self._options.patience
            with self._cutting:  # so that it is never the next connection's wire
                if self._asked_at is None:
                    continue
                left += self._asked_at - time.monotonic()
                if left <= 0:
                    _cut(self._connection)
                    left = self._options.patience

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._database.close(connection)

    def _begin(self, claim: Claim) -> None:
        self._under_way += 1
        self._work.put(claim)
        if self._threads == 0:
            self._start_threads(1)

    def _start_threads(self, count: int) -> None:
        for _ in range(count):
            # Daemons: a call that hangs mustn't keep the process from ending.
            threading.Thread(target=self._serve, name="ledger-settle", daemon=True).start()
            self._threads += 1

    def _missing_threads(self) -> int:
        return min(self._under_way, self._options.in_flight) - self._threads

    def _abandon(self, claim: Claim) -> None:
        # Whoever takes the time out of begun_at, we or the thread, decides whether the thread goes on.
        if self.begun_at.pop(claim.refund_id, None) is not None:
            self._threads -= 1
            self._start_threads(self._missing_threads())

    def _withdraw(self) -> list[Claim]:
        claims: list[Claim] = []
        with suppress(queue.Empty):
            while (claim := self._work.get_nowait()) is not None:
                claims.append(claim)
        self._under_way -= len(claims)
        return claims

    def _collect(self, seconds: float) -> list[tuple[Claim, Result]]:
        answers = []
        with suppress(queue.Empty):
            if seconds:
                answers.append(self._first_answer(seconds))
            while True:
                answers.append(self._answers.get_nowait())
        self._under_way -= len(answers)
        return answers

    def _first_answer(self, seconds: float) -> tuple[Claim, Result]:
        if self._missing_threads() > 0:
            with suppress(queue.Empty):
                return self._answers.get(timeout=QUICK)
            self._start_threads(self._missing_threads())
        return self._answers.get(timeout=seconds)

    def _serve(self) -> None:
        while (claim := self._work.get()) is not None:
            if (why := _why_not_to_begin(self._stop, self._asked_at, self._is_refused)) is not None:
                self._answers.put((claim, NotTried(why)))
                continue
            self.begun_at[claim.refund_id] = time.monotonic()
            result = self._call(claim)
            abandoned = self.begun_at.pop(claim.refund_id, None) is None
            self._answers.put((claim, result))
            if abandoned:
                return

    def _call(self, claim: Claim) -> Result:
        try:
            return run(at_the_gateway(claim), self._ask_gateway)
        except LeaseLost as lost:
            return NotTried(lost.message)

    def _ask_gateway(self, step: Find | Send) -> Found:
        seconds, begun_at = _time_for_call(self._lease, self._options), time.monotonic()
        answer: Found
        try:
            match step:
                case Find(claim):
                    answer = as_found(self._gateway.find(claim.idempotency_key, seconds))
                case Send(claim):
                    answer = as_found(self._gateway.refund(claim, self._lease.token, seconds))
        except BaseException as error:  # also SystemExit: in a thread nobody else would hear of it
            answer = _as_unknown(error)
        _tell_call(step, answer, self._lease, begun_at)
        return answer


class _Tasks:
    """Takes the steps on an event loop: a task for each refund at the gateway."""

    def __init__(
        self, database: AsyncDatabase, gateway: AsyncGateway, lease: Held, options: Options, stop: Stop | None
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._lease = lease
        self._options = options
        self._stop = stop
        self._connection: Any = None
        self._asked_at: float | None = None
        self._is_refused = False
        self._work: deque[Claim] = deque()
        self._answers: asyncio.Queue[tuple[Claim, Result]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = 0
        self._closed = False
        self.begun_at: dict[str, float] = {}

    async def take(self, step: Step) -> Any:
        """Take one step."""
        match step:
            case Ask(call):
                return await self._ask(call)
            case HangUp():
                await self._hang_up()
            case Begin(claim):
                self._begin(claim)
            case Withdraw():
                return self._withdraw()
            case Abandon(claim):
                self._abandon(claim)
            case Collect(seconds):
                return await self._collect(seconds)
        return None

    async def close(self) -> None:
        """Let the tasks end, and the connection go."""
        self._closed = True
        self._withdraw()
        for task in self._tasks:
            task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._database.give_back(connection)

    async def _ask(self, call: Call[T]) -> list[T]:
        if self._connection is None:
            self._connection = await self._database.open()
        timer = asyncio.get_running_loop().call_later(self._options.patience, _cut, self._connection)
        self._asked_at = time.monotonic()
        try:
            if isinstance(self._connection, psycopg.Connection):
                return await in_thread(partial(blocking_ledger(self._connection).send, call), finish=True)
            return await AsyncLedger(self._connection, refusals=self._database).send(call)
        except FenceRefusal:
            self._is_refused = True
            raise
        finally:
            timer.cancel()
            self._asked_at = None

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._database.close(connection)

    def _begin(self, claim: Claim) -> None:
        self._work.append(claim)
        self._start_task()

    def _start_task(self) -> None:
        if self._work and self._serving < self._options.in_flight:
            self._serving += 1
            task = asyncio.create_task(self._serve())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _abandon(self, claim: Claim) -> None:
        if self.begun_at.pop(claim.refund_id, None) is not None:
            self._serving -= 1
            self._start_task()

    def _withdraw(self) -> list[Claim]:
        claims = list(self._work)
        self._work.clear()
        return claims

    async def _collect(self, seconds: float) -> list[tuple[Claim, Result]]:
        answers = []
        try:
            async with asyncio.timeout(seconds):
                answers.append(await self._answers.get())
        except TimeoutError:
            pass
        while not self._answers.empty():
            answers.append(self._answers.get_nowait())
        return answers

    async def _serve(self) -> None:
        while self._work:
            claim = self._work.popleft()
            if (why := _why_not_to_begin(self._stop, self._asked_at, self._is_refused)) is not None:
                self._answers.put_nowait((claim, NotTried(why)))
                continue
            self.begun_at[claim.refund_id] = time.monotonic()
            result = await self._call(claim)
            abandoned = self.begun_at.pop(claim.refund_id, None) is None
            self._answers.put_nowait((claim, result))
            if abandoned:
                return
        self._serving -= 1

    async def _call(self, claim: Claim) -> Result:
        try:
            return await run_async(at_the_gateway(claim), self._ask_gateway)
        except LeaseLost as lost:
            return NotTried(lost.message)

    async def _ask_gateway(self, step: Find | Send) -> Found:
        seconds, begun_at = _time_for_call(self._lease, self._options), time.monotonic()
        answer: Found
        try:
            match step:
                case Find(claim):
                    answer = as_found(await self._gateway.find(claim.idempotency_key, seconds))
                case Send(claim):
                    answer = as_found(await self._gateway.refund(claim, self._lease.token, seconds))
        except (Exception, asyncio.CancelledError) as error:
            if self._closed:
                raise
            answer = _as_unknown(error)
        _tell_call(step, answer, self._lease, begun_at)
        return answer
