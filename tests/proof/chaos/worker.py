"""A worker of the runs: a real settlement in a process of its own, which tells what it does and can be held.

Nothing of the ledger is replaced. Its calls, its lease and its gateway are watched from outside, and at any of them
the worker can be made to stay until it is told to go on; then it can be frozen or killed exactly there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import psycopg
import redis
import redis.asyncio  # noqa: F401 (loaded once, before workers are forked)

from ledger.client import AsyncLedger, Ledger
from ledger.errors import Busy, LeaseLost, LeaseUnreachable, Refused, sqlstate_of
from ledger.gateway import Answer, Found, Payable
from ledger.lease.redis_lock import RedisLock
from ledger.sandbox import AsyncSandboxGateway, SandboxGateway
from ledger.settle import Options, settle, settle_async
from ledger.settlement import Report, Settlement

POINTS = (
    "after draw", "after take", "after activate", "before claim", "after claim", "before refund", "after refund",
    "before confirm", "after confirm", "before release",
)  # fmt: skip
"""The points of the protocol, in order; an advisory lease is taken before its number is drawn."""

WORDS = {
    "draw_token": "draw", "activate_token": "activate", "hold_job": "take", "free_job": "release",
    "claim_refund": "claim", "claim_refunds": "claim", "confirm_refund": "confirm", "confirm_refunds": "confirm",
}  # fmt: skip
LOST = "lost"
NOT_LEFT = ("pending", "sending", "unknown")


@dataclass(frozen=True, slots=True)
class Hold:
    """Stay at a point, the n-th time it is reached; of one refund if it is named."""

    point: str
    nth: int = 1
    refund_id: str | None = None


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is to do. `changes` are called in the worker before it begins."""

    name: str
    merchant_id: str
    dsn: str
    redis_url: str | None
    gateway_url: str
    options: Options
    tasks: bool = False
    wait: float = 0.0
    until_done: bool = False
    holds: tuple[Hold, ...] = ()
    changes: tuple[Callable[[Orders], None], ...] = ()


@dataclass(slots=True)
class _Held:
    hold: Hold
    left: int
    let_go: threading.Event = field(default_factory=threading.Event)


class Line:
    """The line to whoever leads the run: what happens goes up, what to do comes down."""

    def __init__(self, wire: Connection, holds: tuple[Hold, ...]) -> None:
        self._wire = wire
        self._lock = threading.Lock()
        self._holds = [_Held(hold, hold.nth) for hold in holds]
        self._staying: list[_Held] = []
        threading.Thread(target=self._listen, name="line", daemon=True).start()

    def tell(self, what: str, **facts: Any) -> None:
        with self._lock:
            self._wire.send((time.monotonic(), what, facts))

    def at(self, point: str, refund_ids: tuple[str, ...] = ()) -> None:
        """Stay here until told to go on, if that was asked for."""
        held = self._asked_for(point, refund_ids)
        if held is not None:
            self.tell("held", point=point, refunds=refund_ids)
            held.let_go.wait()

    async def at_async(self, point: str, refund_ids: tuple[str, ...] = ()) -> None:
        """The same on an event loop."""
        held = self._asked_for(point, refund_ids)
        if held is not None:
            self.tell("held", point=point, refunds=refund_ids)
            await asyncio.to_thread(held.let_go.wait)

    def _asked_for(self, point: str, refund_ids: tuple[str, ...]) -> _Held | None:
        with self._lock:
            for held in self._holds:
                hold = held.hold
                if hold.point == point and (hold.refund_id is None or hold.refund_id in refund_ids):
                    held.left -= 1
                    if held.left == 0:
                        self._holds.remove(held)
                        self._staying.append(held)
                        return held
        return None

    def _listen(self) -> None:
        while True:
            try:
                order = self._wire.recv()
            except (EOFError, OSError):
                os._exit(9)  # whoever leads is gone
            with self._lock:
                if isinstance(order, Hold):
                    self._holds.append(_Held(order, order.nth))
                else:
                    for held in self._staying:
                        held.let_go.set()
                    self._staying.clear()


def work(wire: Connection, orders: Orders) -> None:
    """Do as ordered, and tell how it ended."""
    logging.getLogger("ledger").addHandler(logging.NullHandler())
    line = Line(wire, orders.holds)
    _watch(line)
    try:
        for change in orders.changes:
            change(orders)
        while True:
            over = _once(line, orders)
            if over or not orders.until_done:
                break
            time.sleep(0.02)
        line.tell("over")
    except BaseException:
        line.tell("broke", text=traceback.format_exc())
    os._exit(0)  # a gateway call that is still out mustn't keep it


def _once(line: Line, orders: Orders) -> bool:
    """Settle once; whether nothing is left to be done by a worker."""
    try:
        report = _settled(line, orders)
    except (Busy, LeaseLost, LeaseUnreachable, Refused, psycopg.OperationalError) as error:
        line.tell("gave up", error=type(error).__name__, code=_code(error), text=str(error))
        return False
    line.tell(
        "ended",
        token=report.token,
        counts=report.counts,
        refusal=None if report.refusal is None else report.refusal.code,
        lost=None if report.lost is None else report.lost.reason,
        left_claimed=sum(row.refunds for row in report.open if row.state == "sending" and not row.is_claimable),
        unrecorded=report.unrecorded,
    )
    return report.refusal is None and report.lost is None and report.left_open(*NOT_LEFT) == 0


def _settled(line: Line, orders: Orders) -> Report:
    arguments: dict[str, Any] = {
        "db": orders.dsn, "redis": orders.redis_url, "wait": orders.wait, "options": orders.options,
    }  # fmt: skip
    if orders.tasks:
        with closing(AsyncSandboxGateway(orders.gateway_url, calls=4)) as gateway:
            return asyncio.run(settle_async(orders.merchant_id, gateway=_AsyncWatched(gateway, line), **arguments))
    with SandboxGateway(orders.gateway_url) as gateway:
        return settle(orders.merchant_id, gateway=_Watched(gateway, line), **arguments)


# What is watched.


class _Watched:
    def __init__(self, gateway: Any, line: Line) -> None:
        self._gateway = gateway
        self._line = line

    def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        ids = (refund.refund_id,)
        self._line.at("before refund", ids)
        self._line.tell("sends", refund_id=refund.refund_id, token=token)
        answer: Answer = self._gateway.refund(refund, token, timeout)
        self._line.tell("answer", refund_id=refund.refund_id, answer=type(answer).__name__)
        self._line.at("after refund", ids)
        return answer

    def find(self, key: str, timeout: float) -> Found:
        refund_id = key.rpartition("/")[2]
        self._line.at("before find", (refund_id,))
        self._line.tell("asks", refund_id=refund_id)
        found: Found = self._gateway.find(key, timeout)
        self._line.tell("found", refund_id=refund_id, answer=type(found).__name__)
        return found


class _AsyncWatched:
    def __init__(self, gateway: Any, line: Line) -> None:
        self._gateway = gateway
        self._line = line

    async def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        ids = (refund.refund_id,)
        await self._line.at_async("before refund", ids)
        self._line.tell("sends", refund_id=refund.refund_id, token=token)
        answer: Answer = await self._gateway.refund(refund, token, timeout)
        self._line.tell("answer", refund_id=refund.refund_id, answer=type(answer).__name__)
        await self._line.at_async("after refund", ids)
        return answer

    async def find(self, key: str, timeout: float) -> Found:
        refund_id = key.rpartition("/")[2]
        await self._line.at_async("before find", (refund_id,))
        self._line.tell("asks", refund_id=refund_id)
        found: Found = await self._gateway.find(key, timeout)
        self._line.tell("found", refund_id=refund_id, answer=type(found).__name__)
        return found


def _watch(line: Line) -> None:
    _watch_calls(line)
    _watch_calls_async(line)
    _watch_lease(line)
    begin = Settlement.next_to_send

    def begun(self: Settlement) -> Any:
        claim = begin(self)
        if claim is not None:
            line.tell("begins", refund_id=claim.refund_id, outcome=claim.outcome)
        return claim

    Settlement.next_to_send = begun  # type: ignore[method-assign]


def _watch_calls(line: Line) -> None:
    send = Ledger.send

    def told(self: Ledger, call: Any) -> Any:
        word, ids = WORDS.get(call.name, call.name), _ids(call.arguments)
        line.at(f"before {word}", ids)
        try:
            rows = send(self, call)
        except Exception as error:
            if _tell_error(line, call, error) == LOST:
                line.at(f"lost {word}", ids)
            raise
        _tell_rows(line, call, rows)
        line.at(f"after {word}", _ids_of(rows) or ids)
        return rows

    Ledger.send = told  # type: ignore[method-assign]


def _watch_calls_async(line: Line) -> None:
    send = AsyncLedger.send

    async def told(self: AsyncLedger, call: Any) -> Any:
        word, ids = WORDS.get(call.name, call.name), _ids(call.arguments)
        await line.at_async(f"before {word}", ids)
        try:
            rows = await send(self, call)
        except Exception as error:
            if _tell_error(line, call, error) == LOST:
                await line.at_async(f"lost {word}", ids)
            raise
        _tell_rows(line, call, rows)
        await line.at_async(f"after {word}", _ids_of(rows) or ids)
        return rows

    AsyncLedger.send = told  # type: ignore[method-assign]


def _watch_lease(line: Line) -> None:
    take, release = RedisLock.take, RedisLock.release

    def taken(self: RedisLock, value: str, ttl: float) -> Any:
        line.at("before take")
        entry = take(self, value, ttl)
        if entry is None:
            line.tell("lease", value=value)
            line.at("after take")
        return entry

    def released(self: RedisLock, value: str) -> bool:
        line.at("before release")
        return release(self, value)

    RedisLock.take = taken  # type: ignore[method-assign]
    RedisLock.release = released  # type: ignore[method-assign]


def _tell_rows(line: Line, call: Any, rows: list[Any]) -> None:
    outcomes = [(row.refund_id, row.outcome) for row in rows if hasattr(row, "refund_id") and hasattr(row, "outcome")]
    value = rows[0] if call.name == "draw_token" else None
    line.tell("call", name=call.name, token=call.arguments.get("token"), outcome="ok", rows=outcomes, value=value)


def _tell_error(line: Line, call: Any, error: Exception) -> str:
    code = _code(error)
    line.tell(
        "call",
        name=call.name,
        token=call.arguments.get("token"),
        outcome=code,
        refusal=error.detail.get("refusal") if isinstance(error, Refused) else None,
        ids=_ids(call.arguments),
        text=str(error),
    )
    return code


def _code(error: Exception) -> str:
    """The SQLSTATE; `lost` where the connection broke and nobody knows; the exception's name for the rest."""
    if isinstance(error, Refused):
        return error.code
    code = "55P03" if isinstance(error, Busy) else sqlstate_of(error)
    if code is None and isinstance(error, psycopg.OperationalError | OSError):
        return LOST
    if code is not None and code[:2] in ("57", "08"):
        return LOST  # the server went away: whether it had committed isn't known
    return code or type(error).__name__


def _ids(arguments: Any) -> tuple[str, ...]:
    one, many = arguments.get("refund_id"), arguments.get("refund_ids")
    return tuple(many) if many is not None else (one,) if one is not None else ()


def _ids_of(rows: list[Any]) -> tuple[str, ...]:
    return tuple(row.refund_id for row in rows if hasattr(row, "refund_id"))
