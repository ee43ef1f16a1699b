"""The sandbox gateway's rules, without HTTP: keys, tokens, planned faults, and what becomes of a request."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ledger.gateway import Accepted, Declined, Nothing, Sent

from .log import ORDER, Entry, Log, SandboxError
from .movements import Movement, movement
from .wire import Order, Rejected

PLANNED = "declined by the sandbox, as planned"


class Fault(StrEnum):
    """What can be planned for a request. Each planned fault serves one request, in the order planned."""

    DROP_REPLY = "drop_reply"  # the request is carried out, the connection closed without a reply
    DECLINE = "decline"  # refused, and remembered under the key
    DECLINE_FORGOTTEN = "decline_forgotten"  # refused, and not remembered: the next request may move money
    ERROR = "error"  # a 500, before anything was done
    ACCEPT = "accept"  # taken on; the final word comes with `complete`
    HOLD = "hold"  # kept waiting, before anything is done, until `release`


class Dropped(Exception):
    """Close the connection without a reply."""


class Failed(Exception):
    """Answer with a 500."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the gateway behaves towards everyone.

    latency      seconds until the reply to a refund request or a look-up; the work comes first and counts
    keys         False: no idempotency keys, every request moves money
    key_window   seconds after its first request until a key is forgotten; None: never
    check_token  refuse a request whose token is lower than one seen before under its key

    Raises SandboxError for a value that makes no sense.
    """

    latency: float = 0.0
    keys: bool = True
    key_window: float | None = None
    check_token: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf:
            raise SandboxError(f"the latency is {self.latency}, seconds from 0 were expected")
        if self.key_window is not None and not 0 < self.key_window < math.inf:
            raise SandboxError(f"the key window is {self.key_window}, seconds above 0 were expected")


@dataclass(frozen=True, slots=True)
class Calls:
    """What has been asked since the gateway started. `tokens` are the refund requests' own, as they came."""

    refunds: int
    finds: int
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class _Plan:
    fault: Fault
    times: int


@dataclass(slots=True)
class _Slot:
    """All that is known under one key."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    entries: list[Entry] = field(default_factory=list)
    forgotten: int = 0  # how many of the entries were forgotten by request
    token: int = 0  # the highest seen, where tokens are checked
    tokens: list[int] = field(default_factory=list)
    finds: int = 0
    plans: list[_Plan] = field(default_factory=list)
    held: list[object] = field(default_factory=list)


class Engine:
    """One gateway's memory and rules, for many threads at once. `clock` gives seconds since 1970."""

    def __init__(self, log: Log, behaviour: Behaviour, clock: Callable[[], float] = time.time) -> None:
        self.behaviour = behaviour
        self._log = log
        self._clock = clock
        self._slots: dict[str, _Slot] = {}
        self._moved: list[Movement] = []
        self._finds = 0
        self._refunds = 0
        self._change = threading.Condition()  # guards slots, plans, counts and holds, and tells of holds
        self._stopping = threading.Event()
        for entry in log.entries:
            self._remember(self._slot(entry.key), entry)

    # What a client asks for.

    def refund(self, key: str, order: Order, token: int) -> Sent | Accepted | Declined:
        """Carry out one refund request. Raises Rejected, Dropped, Failed or SandboxError."""
        with self._reply_after_latency():
            slot = self._slot(key)
            fault = self._arrived(slot, token)
            if fault is Fault.HOLD:
                self._hold(slot)
            if fault is Fault.ERROR:
                raise Failed("a 500, as planned; nothing was changed")
            with slot.lock:
                answer = self._carry_out(slot, key, order, token, fault)
            if fault is Fault.DROP_REPLY:
                raise Dropped
            return answer

    def find(self, key: str) -> Sent | Accepted | Declined | Nothing:
        """What there is under a key. Without idempotency keys: the last request under that reference."""
        with self._reply_after_latency():
            slot = self._slot(key)
            with self._change:
                self._finds += 1
                slot.finds += 1
            with slot.lock:
                entry = self._known(slot) if self.behaviour.keys else _last(slot.entries)
            return Nothing() if entry is None else _answer(entry)

    def movements(self) -> list[Movement]:
        """All movements of money, in the order they happened."""
        with self._change:
            return list(self._moved)

    # What a test asks for.

    def plan(self, key: str, fault: Fault, times: int = 1) -> None:
        """Let the next `times` requests under `key` that have no plan yet meet `fault`."""
        slot = self._slot(key)
        with self._change:
            slot.plans.append(_Plan(fault, times))

    def release(self, key: str) -> int:
        """Let the requests held under `key` go on, and say how many there were."""
        slot = self._slot(key)
        with self._change:
            released = len(slot.held)
            slot.held.clear()
            self._change.notify_all()
        return released

    def held(self, key: str, count: int, timeout: float) -> int:
        """How many requests are held under `key`, once there are `count` or `timeout` seconds are over."""
        slot = self._slot(key)
        with self._change:
            self._change.wait_for(lambda: len(slot.held) >= count or self._stopping.is_set(), timeout)
            return len(slot.held)

    def complete(self, key: str, moved: bool) -> Sent | Accepted | Declined:
        """The final word on the oldest request accepted under `key`. Raises Rejected if there is none."""
        slot = self._slot(key)
        with slot.lock:
            accepted = next((entry for entry in slot.entries if entry.event == "accepted"), None)
            if accepted is None:
                raise Rejected(409, "nothing_accepted", f"no request under {key} waits for its final word")
            event, reason = ("moved", None) if moved else ("declined", PLANNED)
            return self._record(slot, replace(accepted, event=event, at=self._now(), reason=reason))

    def forget(self, key: str) -> None:
        """Forget a key now, as if its window were over."""
        slot = self._slot(key)
        with slot.lock:
            self._write(slot, Entry("forgotten", self._now(), key))

    def calls(self, key: str | None = None) -> Calls:
        """What has been asked since the start, under `key` or in all."""
        if key is None:
            with self._change:
                return Calls(self._refunds, self._finds)
        slot = self._slot(key)
        with self._change:
            return Calls(len(slot.tokens), slot.finds, tuple(slot.tokens))

    def stop(self) -> None:
        """Drop what is held, what waits for its latency and what comes now; finish what is carried out."""
        self._stopping.set()
        with self._change:
            self._change.notify_all()

    # One request, step by step.

    @contextmanager
    def _reply_after_latency(self) -> Iterator[None]:
        # The wait comes after the work and counts it, so that a call takes the latency and no more.
        due = time.monotonic() + self.behaviour.latency
        if self._stopping.is_set():
            raise Dropped
        try:
            yield
        finally:
            left = due - time.monotonic()
            if left > 0 and self._stopping.wait(left):
                raise Dropped

    def _arrived(self, slot: _Slot, token: int) -> Fault | None:
        with self._change:
            self._refunds += 1
            slot.tokens.append(token)
            if not slot.plans:
                return None
            plan = slot.plans[0]
            plan.times -= 1
            if plan.times == 0:
                del slot.plans[0]
            return plan.fault

    def _hold(self, slot: _Slot) -> None:
        ticket = object()
        with self._change:
            slot.held.append(ticket)
            self._change.notify_all()
            self._change.wait_for(lambda: ticket not in slot.held or self._stopping.is_set())
        if self._stopping.is_set():
            raise Dropped

    def _carry_out(
        self, slot: _Slot, key: str, order: Order, token: int, fault: Fault | None
    ) -> Sent | Accepted | Declined:
        if self.behaviour.check_token:
            self._check_token(slot, key, token)
        known = self._known(slot)
        if known is not None:
            return _replay(known, order)
        moved = Entry("moved", self._now(), key, token, _new_ref(), order=order)
        match fault:
            case Fault.DECLINE if self.behaviour.keys:
                return self._record(slot, replace(moved, event="declined", ref=None, reason=PLANNED))
            case Fault.DECLINE | Fault.DECLINE_FORGOTTEN:
                return Declined(PLANNED, remembered=False)
            case Fault.ACCEPT:
                return self._record(slot, replace(moved, event="accepted"))
        return self._record(slot, moved)

    def _check_token(self, slot: _Slot, key: str, token: int) -> None:
        if token < slot.token:
            message = f"token {token} came for {key} after token {slot.token}; nothing was changed"
            raise Rejected(409, "token_behind", message)
        if token > slot.token:
            self._write(slot, Entry("token", self._now(), key, token))

    def _known(self, slot: _Slot) -> Entry | None:
        entry = _last(slot.entries[slot.forgotten :]) if self.behaviour.keys else None
        window = self.behaviour.key_window
        if entry is None or window is None or self._now() - entry.at < window:
            return entry
        return None

    # What is remembered, now and after a restart.

    def _record(self, slot: _Slot, entry: Entry) -> Sent | Accepted | Declined:
        self._write(slot, entry)
        return _answer(entry)

    def _write(self, slot: _Slot, entry: Entry) -> None:
        self._log.append(entry)  # on disk first: what isn't there is told to no one
        self._remember(slot, entry)

    def _remember(self, slot: _Slot, entry: Entry) -> None:
        match entry.event:
            case "token":
                slot.token = max(slot.token, entry.token or 0)
            case "forgotten":
                slot.forgotten = len(slot.entries)
            case _:
                _put(slot.entries, entry)
        if entry.event == "moved":
            with self._change:
                self._moved.append(movement(entry))

    def _now(self) -> float:
        return round(self._clock(), 6)  # as the log has it

    def _slot(self, key: str) -> _Slot:
        with self._change:
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = _Slot()
            return slot


def _put(entries: list[Entry], entry: Entry) -> None:
    for place, earlier in enumerate(entries):
        if entry.ref is not None and earlier.ref == entry.ref:
            # The final word on an accepted request; its key is as old as the request.
            entries[place] = replace(entry, at=earlier.at)
            return
    entries.append(entry)


def _last(entries: list[Entry]) -> Entry | None:
    return entries[-1] if entries else None


def _answer(entry: Entry) -> Sent | Accepted | Declined:
    assert entry.order is not None
    match entry.event:
        case "moved":
            return Sent(entry.ref or "", entry.order.amount_minor, entry.order.currency)
        case "accepted":
            return Accepted(entry.ref or "")
    return Declined(entry.reason or "", remembered=True)


def _replay(known: Entry, order: Order) -> Sent | Accepted | Declined:
    assert known.order is not None
    changed = [name for name in ORDER if getattr(known.order, name) != getattr(order, name)]
    if changed:
        message = f"{known.key} was used before with another {', '.join(changed)}; nothing was changed"
        raise Rejected(409, "key_reused", message)
    return _answer(known)


def _new_ref() -> str:
    return f"sb_{secrets.token_hex(8)}"
