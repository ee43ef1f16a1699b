"""One run: a protection, a fault and the moment when it comes. Two workers, two refunds, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import redis

from ledger.client import Ledger
from ledger.reproduce.expected import Counts
from ledger.reproduce.guards import keys, lock_key
from ledger.reproduce.orders import Orders
from ledger.reproduce.partition import Partition
from ledger.reproduce.place import OwnRedis, Place
from ledger.reproduce.process import Clock, Disturbed, Worker
from ledger.reproduce.words import FENCED, REFUNDS, RENEWED, SHOWN_MOMENTS
from ledger.sandbox import Fault, SandboxControl

FIRST, SECOND = REFUNDS
AMOUNT_MINOR, CURRENCY = 7025, "EUR"
CUT_OFF_AFTER, ELSE_AFTER = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """Something that happened: seconds since the run began, who, what."""

    at: float
    who: str
    text: str


@dataclass(slots=True)
class Found:
    """What the gateway counted for a refund, and what the database names."""

    refund_id: str
    moved: list[str]
    named: list[str]
    written_over: bool

    @property
    def counts(self) -> Counts:
        """As numbers."""
        wrong = set(self.moved) != set(self.named)
        return Counts(len(self.moved) > 1, wrong, wrong and self.written_over)


@dataclass(slots=True)
class Story:
    """How a run went."""

    protection: str
    fault: str
    moment: str
    merchant_id: str
    lines: list[Line] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        """Over its refunds."""
        return sum((each.counts for each in self.found), Counts())


class Run:
    """Performs one run. Raises Disturbed when the machine was too slow for `ttl`."""

    def __init__(self, place: Place, gateway_url: str, clock: Clock, story: Story, ttl: float, tell: Tell) -> None:
        self.place = place
        self.gateway_url = gateway_url
        self.clock = clock
        self.story = story
        self.ttl = ttl
        self._tell = tell
        self._began = time.monotonic()
        self._stack = ExitStack()

    def perform(self) -> None:
        """Prepare, let it happen, and look at what came of it."""
        with self._stack:
            self._prepare()
            self._fault()
            self._look()

    def tell(self, who: str, text: str) -> None:
        """A line of the timeline."""
        line = Line(time.monotonic() - self._began, who, text)
        self.story.lines.append(line)
        self._tell(self.story, line)

    # Before.

    def _prepare(self) -> None:
        story, keep = self.story, self._stack.enter_context
        self.connection = keep(psycopg.connect(self.place.dsn, autocommit=True))
        self.gateway = keep(SandboxControl(self.gateway_url))
        self.redis_url, self.own = keep(self.place.redis_for(story.merchant_id, story.fault))
        self.redis = keep(redis.Redis.from_url(self.redis_url))
        self.way = keep(Partition(self.redis_url)) if story.fault == "partition" else None
        self._add_refunds()
        self.a = self._worker("A", freeze_at=self._freeze_at(), stay_at=self._stay_at())
        self.b = self._worker("B", stay_at=("next", SECOND) if self._comes_back else None)
        for worker in (self.a, self.b):
            worker.wait_for(lambda worker=worker: worker.heard_of("ready"), "is ready")  # type: ignore[misc]
        self._began = time.monotonic()

    def _add_refunds(self) -> None:
        merchant_id = self.story.merchant_id
        for refund_id in REFUNDS:
            if self._fenced:
                Ledger(self.connection).add_refund(merchant_id, refund_id, AMOUNT_MINOR, CURRENCY)
            else:
                self.connection.execute(
                    "insert into reproduce.refund (merchant_id, refund_id, amount_minor, currency)"
                    " values (%s, %s, %s, %s)",
                    (merchant_id, refund_id, AMOUNT_MINOR, CURRENCY),
                )

    def _worker(self, name: str, **halts: Any) -> Worker:
        is_cut_off = self.way is not None and name == "A"
        orders = Orders(
            name=name,
            protection=self.story.protection,
            merchant_id=self.story.merchant_id,
            dsn=self.place.dsn,
            redis_url=self.way.url if self.way is not None and is_cut_off else self.redis_url,
            redis_timeout=CUT_OFF_AFTER if is_cut_off else ELSE_AFTER,
            gateway_url=self.gateway_url,
            ttl=self.ttl,
            **halts,
        )
        worker = Worker(orders, self.clock, self.tell)
        self._stack.callback(worker.close)
        return worker

    def _freeze_at(self) -> tuple[str, str] | None:
        return (self.story.moment, FIRST) if self.story.fault == "pause" else None

    def _stay_at(self) -> tuple[str, str] | None:
        if self.story.fault == "kill" and self.story.moment == "before_record":
            return "before_record", FIRST
        return ("before_call", SECOND) if self._comes_back else None

    @property
    def _comes_back(self) -> bool:
        """Whether the first worker goes on beside the second one, to the next refund."""
        return self.story.fault not in {"lost-reply", "kill"}

    @property
    def _fenced(self) -> bool:
        return self.story.protection in FENCED

    # The faults.

    def _fault(self) -> None:
        {
            "slow": self._slow,
            "pause": self._pause,
            "partition": self._partition,
            "redis-flush": self._redis_flush,
            "redis-restart": self._redis_restart,
            "lost-reply": self._lost_reply,
            "kill": self._kill,
        }[self.story.fault]()

    def _slow(self) -> None:
        self._call_out()
        value, since = self._lock_value(), time.monotonic()
        self.b.go()
        outlasts = self.story.protection in RENEWED
        self.clock.until(
            lambda: self.b.stays or (outlasts and time.monotonic() > since + self.ttl),
            "the call takes longer than the TTL",
        )
        if not outlasts:
            self._come_back(self._release)
            return
        if self.b.stays or self._lock_value() != value:
            raise Disturbed("the watchdog didn't get to renew the lock")
        self.tell("Redis", "the lock was renewed: it outlasts its TTL")
        self._release()
        self.a.finish()
        self.b.finish()

    def _pause(self) -> None:
        self.a.go()
        self.a.wait_for(lambda: self.a.frozen, "freezes")
        self.tell("A", f"freezes (SIGSTOP) {SHOWN_MOMENTS[self.story.moment]}")
        self._next_worker()
        self._come_back(self._wake)

    def _partition(self) -> None:
        assert self.way is not None
        self._call_out()
        self.way.cut()
        self.tell("A", "is cut off from Redis")
        self._next_worker()
        self._come_back(self._release)

    def _redis_flush(self) -> None:
        self._call_out()
        self._flush()
        self._next_worker()
        self._come_back(self._release)

    def _flush(self) -> None:
        if self.own is not None:
            self.redis.flushall()
        else:
            self.redis.delete(*keys(self.story.merchant_id))
        self.tell("Redis", "loses its data (FLUSHALL)" if self.own is not None else "loses our keys")

    def _redis_restart(self) -> None:
        own: OwnRedis | None = self.own
        assert own is not None
        self._call_out()
        own.server.kill()
        own.server.start()
        self.tell("Redis", "died, and is back, empty")
        self._next_worker()
        self._come_back(self._release)

    def _lost_reply(self) -> None:
        self.gateway.plan(self._key(FIRST), Fault.DROP_REPLY)
        self.a.go()
        self.a.finish()
        self._check_not_stopped(self.a)
        self.b.go()
        self.b.finish()
        self._check_not_stopped(self.b)

    def _kill(self) -> None:
        if self.story.moment == "call_out":
            self._call_out()
        else:
            self.a.go()
            self.a.wait_for(lambda: self.a.stays, "is about to write")
        self.a.kill()
        self.tell("A", "is killed (SIGKILL)")
        self._next_worker()
        self.b.finish()
        self._check_not_stopped(self.b)
        if self.story.moment == "call_out":
            self._release()
            self._until_moved()

    # Their parts.

    def _call_out(self) -> None:
        """The first worker has called the gateway, which takes its time."""
        key = self._key(FIRST)
        self.gateway.plan(key, Fault.HOLD)
        self.a.go()
        self.a.wait_for(lambda: self.a.heard_of("calls", FIRST), "calls the gateway")
        self.clock.until(lambda: self._is_held(key), "the gateway has the call")
        self.tell("gateway", f"has A's call about {FIRST}, and takes its time")

    def _is_held(self, key: str) -> bool:
        try:
            self.gateway.wait_until_held(key, timeout=0)
        except TimeoutError:
            return False
        return True

    def _next_worker(self) -> None:
        """The second worker begins, once the first one's lock is over."""
        if self.story.protection != "none":
            self.clock.until(lambda: self._lock_value() is None, "the lock ends")
            self.tell("Redis", "A's lock is gone")
        self.b.go()

    def _come_back(self, let_go: Callable[[], None]) -> None:
        """The second worker has the first refund behind it; now the first worker goes on, as far as it can."""
        self.b.wait_for(lambda: self.b.stays, f"is done with {FIRST}")
        let_go()
        self.a.wait_until_it_stays_or_ends()
        self.b.finish()
        self.a.finish()
        self._check_not_stopped(self.b)

    def _wake(self) -> None:
        self.tell("A", "wakes up (SIGCONT)")
        self.a.wake()

    def _release(self) -> None:
        self.tell("gateway", "carries A's call out")
        self.gateway.release(self._key(FIRST))

    def _until_moved(self) -> None:
        """Nobody waits for the dead worker's reply; without keys its movement is what can be seen."""
        if self.story.protection != "fence+key":
            self.clock.until(lambda: len(self._moved(FIRST)) > 1, "the dead worker's call is carried out")

    def _check_not_stopped(self, worker: Worker) -> None:
        if worker.heard_of("stopped"):
            raise Disturbed(f"{worker.name} lost its lock without a fault")

    def _lock_value(self) -> bytes | None:
        value = self.redis.get(lock_key(self.story.merchant_id, fenced=self._fenced))
        return None if value is None else bytes(value)

    def _key(self, refund_id: str) -> str:
        return f"{self.story.merchant_id}/{refund_id}"

    # After.

    def _moved(self, refund_id: str) -> list[str]:
        movements = self.gateway.movements(self.story.merchant_id, refund_id)
        return [movement.ref for movement in movements]

    def _look(self) -> None:
        for refund_id in REFUNDS:
            named = self._named(refund_id)
            recorded = {
                said["ref"]
                for worker in (self.a, self.b)
                for said in worker.said
                if said["event"] == "recorded" and said["refund"] == refund_id
            }
            self.story.found.append(Found(refund_id, self._moved(refund_id), named, bool(recorded - set(named))))
        for found in self.story.found:
            self.tell("gateway", f"counts {_counted(found.moved)} for {found.refund_id}: {', '.join(found.moved)}")
            self.tell("database", f"names {_counted(found.named)} for {found.refund_id}: {', '.join(found.named)}")

    def _named(self, refund_id: str) -> list[str]:
        """The movements that the database names: in the row, and in what it refused."""
        asked = (self.story.merchant_id, refund_id)
        rows = self.connection.execute(FENCED_NAMES if self._fenced else NAMES, asked * (2 if self._fenced else 1))
        return [ref for (ref,) in rows.fetchall()]


def _counted(refs: list[str]) -> str:
    return f"{len(refs)} movement{'' if len(refs) == 1 else 's'}"


Tell = Callable[[Story, Line], None]

NAMES = """
    select gateway_ref from reproduce.refund
    where merchant_id = %s and refund_id = %s and state = 'sent' and gateway_ref is not null
"""
FENCED_NAMES = """
    select gateway_ref from ledger.refund
    where merchant_id = %s and refund_id = %s and state = 'sent' and gateway_ref is not null
    union
    select detail ->> 'gateway_ref' from ledger.refusal
    where merchant_id = %s and refund_id = %s and detail ? 'gateway_ref'
    order by 1
"""
