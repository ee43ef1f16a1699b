"""One thread per process that keeps every lease of the process alive.

It renews at a third of the ttl, survives errors, and gives a lease up only at its local deadline, at its
`max_hold`, or when the server says that it is someone else's or gone. No wall clock decides anything: the
deadline is the monotonic clock, read before the request was sent, plus the ttl, less a margin.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Literal, Protocol, TypeAlias, cast

from ledger.observe import fact

log = logging.getLogger("ledger.lease")

Reason: TypeAlias = Literal["superseded", "expired", "unreachable", "max_hold", "broken", "forked"]


class Reply(Enum):
    """What a server said about a lease when it was asked to renew it."""

    HELD = "held"
    NO_ANSWER = "no answer"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    BROKEN = "broken"
    UNREACHABLE = "unreachable"


class Keeper(Protocol):
    """Renews the leases that share a server, waiting `patience` seconds for it at most."""

    def renew(self, holds: Sequence[Hold], patience: float) -> Sequence[Reply]:
        """What the server said about each of them."""
        ...


class Hold:
    """One lease that is being kept: until when it is certainly ours, or why it no longer is."""

    def __init__(
        self,
        keeper: Keeper,
        lock: object,
        resource: str,
        value: str,
        ttl: float,
        sent_at: float,
        max_hold: float | None = None,
        on_lost: Callable[[Reason], None] | None = None,
    ) -> None:
        self.keeper = keeper
        self.lock: Final = lock
        self.resource = resource
        self.value = value
        self.ttl = ttl
        self.swapping = False
        self.failing = False
        self.closed = False
        self.taken_at = sent_at
        self.renewals = 0
        self.late = 0
        self.renew_at = self._due = sent_at + ttl / 3
        self._ends_at = float("inf") if max_hold is None else sent_at + max_hold
        self._deadline = sent_at + ttl - margin(ttl)
        self._on_lost = on_lost
        self._lost: Reason | None = None
        self._losing = threading.Lock()
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """This is a child's copy of its parent's lease."""
        return os.getpid() != self._pid

    @property
    def until(self) -> float:
        """The monotonic time up to which the lease is certainly ours."""
        return min(self._deadline, self._ends_at)

    @property
    def lost(self) -> Reason | None:
        """Why the lease is no longer ours, or None. Looks at the clock itself, not only at the watchdog."""
        if self.forked:
            return "forked"
        if self._lost is None and not self.closed and time.monotonic() >= self.until:
            self.lose(self.why_over())
        return self._lost

    def remaining(self) -> float:
        """Seconds for which the lease is certainly ours; 0.0 when it is lost or given back."""
        if self.closed or self.lost is not None:
            return 0.0
        return max(0.0, self.until - time.monotonic())

    def renewed(self, sent_at: float) -> None:
        """The server holds the lease for `ttl` seconds from `sent_at` at least."""
        self.failing = False
        self._deadline = max(self._deadline, sent_at + self.ttl - margin(self.ttl))
        self.renew_at = sent_at + self.ttl / 3

    def heard(self, reply: Reply, value: str, sent_at: float) -> None:
        """Take in what the server said to a renewal of `value` that was sent at `sent_at`."""
        if self.closed:
            return
        if reply is Reply.HELD:
            late, again = sent_at > self._due + self.ttl / 3, self.failing
            self.renewals += 1
            self.late += late
            self._due = sent_at + self.ttl / 3
            self.renewed(sent_at)
            level = logging.INFO if late or again else logging.DEBUG
            fact(log, level, "lease_renewed", resource=self.resource, late=late, again=again)
        elif reply is Reply.NO_ANSWER:
            # The first of a row is worth a warning; whoever counts hears of each.
            level = logging.DEBUG if self.failing else logging.WARNING
            fact(log, level, "lease_renewal_failed", resource=self.resource, seconds_left=round(self.remaining(), 1))
            self.failing = True
            self.renew_at = time.monotonic() + self.ttl / 12
        elif self.swapping or value != self.value:
            # The question crossed with the holder's own change of the value.
            self.renew_at = time.monotonic() + self.ttl / 12
        elif time.monotonic() >= self.until:
            self.lose(self.why_over())
        else:
            self.lose(cast("Reason", reply.value))

    def lose(self, reason: Reason) -> None:
        """The lease is lost; only the first reason counts."""
        with self._losing:
            if self._lost is not None or self.closed:
                return
            self._lost = reason
        if self._on_lost is not None:
            try:
                self._on_lost(reason)
            except Exception:  # the watchdog goes on for the others
                fact(log, logging.ERROR, "holder_not_told", resource=self.resource, reason=reason, exc_info=True)

    def close(self) -> None:
        """The holder gives the lease back: whatever comes after that is no loss."""
        with self._losing:
            self.closed = True

    def why_over(self) -> Reason:
        """What ends the lease if nothing more is heard."""
        if self._ends_at <= self._deadline:
            return "max_hold"
        return "unreachable" if self.failing else "expired"


class Watchdog:
    """Keeps leases alive from one daemon thread, which starts with the first of them."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Watch nothing. A forked child has no thread, and the lock may have been held at that moment."""
        self._holds: set[Hold] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def watch(self, hold: Hold) -> None:
        """Renew this lease from now on."""
        with self._changed:
            self._holds.add(hold)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ledger-lease-watchdog", daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify()

    def forget(self, hold: Hold) -> None:
        """Renew this lease no more."""
        with self._changed:
            self._holds.discard(hold)

    def _run(self) -> None:
        while True:
            due, patience = self._next()
            # A server that is silent comes last: the others shouldn't wait for it.
            for keeper, holds in sorted(due.items(), key=lambda item: item[1][0].failing):
                self._renew(keeper, holds, patience)

    def _next(self) -> tuple[dict[Keeper, list[Hold]], float]:
        """Sleep until a lease is due; what to renew then, by server, and how long to wait for each."""
        with self._changed:
            while True:
                self._holds = {hold for hold in self._holds if not hold.closed and hold.lost is None}
                now = time.monotonic()
                due = {hold.keeper for hold in self._holds if hold.renew_at <= now}
                if due:
                    break
                moments = [min(hold.renew_at, hold.until) for hold in self._holds]
                self._changed.wait(min(moments) - now if moments else None)
            groups: dict[Keeper, list[Hold]] = defaultdict(list)
            for hold in self._holds:
                # Those that are nearly due go along, so that leases on one server fall into step.
                if hold.keeper in due and hold.renew_at <= now + hold.ttl / 12:
                    groups[hold.keeper].append(hold)
            return groups, patience_for(min(hold.ttl for hold in self._holds))

    def _renew(self, keeper: Keeper, holds: list[Hold], patience: float) -> None:
        values = [hold.value for hold in holds]
        sent_at = time.monotonic()
        try:
            replies = keeper.renew(holds, patience)
        except Exception:
            fact(log, logging.ERROR, "lease_renewals_broke", leases=len(holds), exc_info=True)
            replies = [Reply.NO_ANSWER] * len(holds)
        for hold, value, reply in zip(holds, values, replies, strict=True):
            hold.heard(reply, value, sent_at)


def margin(ttl: float) -> float:
    """Seconds by which the local deadline is earlier than the server's: clocks run at unequal speeds."""
    return ttl / 100 + 0.002


def patience_for(ttl: float) -> float:
    """How long to wait for a server's answer about a lease of `ttl` seconds.

    Well below the renewal interval, one second at most, and one of a few values, since connections
    are kept by it.
    """
    patience = 1.0
    while patience > ttl / 4 and patience > 0.01:
        patience /= 2
    return patience


_watchdog = Watchdog()


def watchdog() -> Watchdog:
    """This process's watchdog."""
    return _watchdog


os.register_at_fork(after_in_child=_watchdog.start_over)
