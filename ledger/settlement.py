"""What a settlement does next, without doing it: which rows to claim, what to ask the gateway, what to record.

No I/O and no threads here; ledger.settle drives it, blocking or on an event loop.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ledger import calls
from ledger.calls import Call
from ledger.errors import FenceRefusal, InputRefusal, LeaseLost, Refused
from ledger.gateway import Accepted, Answer, Declined, Found, Nothing, Sent, Unknown
from ledger.records import Claim, Move, OpenCount, RowOutcome

log = logging.getLogger("ledger.settle")

MOST_ROWS = 1000
"""What a set-based call takes at most."""


@dataclass(frozen=True, slots=True)
class Find:
    """Ask the gateway what it has under the refund's key."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Send:
    """Send the refund, under its key."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class NotTried:
    """The refund was claimed and, certainly, not sent by this holder."""

    reason: str


Result: TypeAlias = Answer | NotTried


def course(claim: Claim) -> Generator[Find | Send, Found, Answer]:
    """What to ask the gateway about a claimed refund.

    Whoever may not be its first sender asks before sending. That the gateway has nothing doesn't mean that nothing
    will arrive, so the refund is sent under the same key, which is what prevents the second movement.
    """
    if claim.outcome != "claimed":
        found = yield Find(claim)
        if not isinstance(found, Nothing):
            return found
    answer = yield Send(claim)
    return Unknown("the gateway has nothing") if isinstance(answer, Nothing) else answer


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one refund: `claimed`, `answered`, `recorded` or `refused`, and how."""

    name: str
    refund_id: str
    outcome: str
    token: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A call that records results, and the results that it records."""

    call: Call[Any]
    results: tuple[tuple[Claim, Result], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """How a settlement went. Counts are of refunds; `sent_minor` is what this holder recorded as sent, by currency.

    `open` is what was left open at its end, `refused` the rows that were not recorded and their codes, `refusal`
    and `lost` say why it ended early, `unrecorded` maps refunds to the gateway's answers that nobody recorded.
    """

    merchant_id: str
    token: int
    holder: str
    counts: dict[str, int] = field(default_factory=dict)
    sent_minor: dict[str, int] = field(default_factory=dict)
    open: tuple[OpenCount, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    refusal: Refused | None = None
    lost: LeaseLost | None = None
    stopped: bool = False
    unrecorded: dict[str, str] = field(default_factory=dict)

    def left_open(self, *states: str) -> int:
        """How many refunds were left open in these states, or in any."""
        return sum(row.refunds for row in self.open if not states or row.state in states)


class Settlement:
    """The state of one holder's settlement of one merchant."""

    def __init__(self, merchant_id: str, token: int, holder: str, *, in_flight: int, batch: int) -> None:
        self.merchant_id = merchant_id
        self.token = token
        self.holder = holder
        self.in_flight = in_flight
        self.batch = min(batch, MOST_ROWS)
        self.counts: Counter[str] = Counter()
        self.sent_minor: Counter[str] = Counter()
        self.refused_rows: list[tuple[str, str]] = []
        self.refusal: Refused | None = None
        self.lost: LeaseLost | None = None
        self.stopping = False
        self.stopped = False
        self.unrecorded: dict[str, str] = {}
        self.open: tuple[OpenCount, ...] = ()
        self.pass_is_over = False
        self._progress = False
        self._cursor = ""
        self._in_doubt = False
        self._waiting: deque[Claim] = deque()
        self._running: dict[str, Claim] = {}
        self._answered: list[tuple[Claim, Result]] = []
        self._being_recorded: dict[str, tuple[Claim, Result]] = {}
        self.events: deque[Event] = deque()

    # Claims.

    def next_claim(self) -> Call[Claim] | None:
        """The next claim; None when enough is claimed, the pass is over, or the settlement is ending.

        With a batch of one, nothing is claimed ahead of what is being sent.
        """
        held = len(self._waiting) + len(self._running)
        ahead = len(self._waiting) if self.batch > 1 else held
        if self.stopping or self.pass_is_over or self._answered or ahead >= self.in_flight:
            return None
        return calls.claim_refunds(self.merchant_id, self.token, self.batch, self._cursor, self._in_doubt)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Take what a claim returned."""
        doubtful, self._in_doubt = self._in_doubt, False
        self.pass_is_over = not claims
        for claim in claims:
            self._cursor = max(self._cursor, claim.refund_id)
            if doubtful and self._holds(claim.refund_id):
                continue
            self._progress = True
            self.counts[claim.outcome] += 1
            self._note("claimed", claim, claim.outcome)
            if claim.outcome != "review":
                self._waiting.append(claim)

    def claim_in_doubt(self) -> None:
        """A claim's reply was lost: the next one takes back what that one may have claimed."""
        self._in_doubt = True

    def new_pass(self) -> bool:
        """Begin again at the first refund. False if the last pass got nowhere."""
        progressed, self._progress = self._progress, False
        self.pass_is_over, self._cursor = False, ""
        return progressed

    # The gateway.

    def next_to_send(self) -> Claim | None:
        """A claimed refund to take to the gateway now, or None."""
        if self.stopping or not self._waiting or len(self._running) >= self.in_flight:
            return None
        claim = self._waiting.popleft()
        self._running[claim.refund_id] = claim
        return claim

    def answered(self, claim: Claim, result: Result) -> None:
        """Take what came of it. A result that comes after the settlement gave up on it is dropped."""
        if self._running.pop(claim.refund_id, None) is None:
            log.warning("answer_too_late", extra={"refund_id": claim.refund_id, "result": repr(result)})
            return
        self._answered.append((claim, result))
        self._note("answered", claim, type(result).__name__.lower())

    def give_up(self, reason: str) -> None:
        """Wait no longer for what is at the gateway: its outcome isn't known."""
        for claim in list(self._running.values()):
            self.answered(claim, Unknown(reason))

    @property
    def is_running(self) -> bool:
        """Whether anything is at the gateway."""
        return bool(self._running)

    # Records.

    def recordings(self) -> Iterator[Recording]:
        """The calls that record what has been answered. Each must end in `recorded` or `refused`."""
        results, self._answered = self._answered, []
        self._being_recorded = {claim.refund_id: (claim, result) for claim, result in results}
        sent: list[tuple[Claim, Sent]] = []
        others: list[tuple[Claim, Result]] = []
        for claim, result in results:
            if isinstance(result, Sent) and _agrees(claim, result):
                sent.append((claim, result))
            else:
                others.append((claim, result))
        for start in range(0, len(sent), MOST_ROWS):
            yield self._confirm(sent[start : start + MOST_ROWS])
        for claim, result in others:
            # A fenced-out holder can't give anything back; the next one is told that it may have been sent.
            if not (isinstance(result, NotTried) and isinstance(self.refusal, FenceRefusal)):
                yield Recording(self._record(claim, result), ((claim, result),))

    def _confirm(self, sent: list[tuple[Claim, Sent]]) -> Recording:
        if len(sent) == 1:
            return Recording(self._record(*sent[0]), tuple(sent))
        ids = [claim.refund_id for claim, _ in sent]
        refs = [answer.ref for _, answer in sent]
        return Recording(calls.confirm_refunds(self.merchant_id, self.token, ids, refs), tuple(sent))

    def _record(self, claim: Claim, result: Result) -> Call[Move]:
        names = (claim.merchant_id, claim.refund_id, self.token)
        match result:
            case Sent(ref, amount_minor, currency):
                evidence = {"amount_minor": amount_minor, "currency": currency}
                named = {name: value for name, value in evidence.items() if value is not None}
                return calls.confirm_refund(*names, ref, named or None)
            case Accepted(ref):
                return calls.accept_refund(*names, ref)
            case Declined(reason, True):
                return calls.fail_refund(*names, reason or "declined")
            case Declined(reason, _):
                return calls.mark_unknown(*names, f"declined, and not remembered under the key: {reason}")
            case NotTried(reason):
                return calls.release_refund(*names, reason)
        return calls.mark_unknown(*names, result.reason or "unknown")

    def recorded(self, recording: Recording, rows: Sequence[Move | RowOutcome]) -> None:
        """Take what a recording returned."""
        for (claim, result), row in zip(recording.results, rows, strict=True):
            self._being_recorded.pop(claim.refund_id, None)
            if row.outcome.startswith("LG"):
                self._not_recorded(claim, result, row.outcome)
                continue
            self.counts[row.state or row.outcome] += 1
            if row.state == "sent":
                self.sent_minor[claim.currency] += claim.amount_minor
            self._note("recorded", claim, row.outcome)

    def refused(self, recording: Recording, refusal: Refused) -> None:
        """Take that a recording was refused. After a refusal of the fence nothing more is begun."""
        done = set(refusal.detail.get("recorded", ()))
        for claim, result in recording.results:
            self._being_recorded.pop(claim.refund_id, None)
            if claim.refund_id in done:
                self.counts["sent"] += 1
                self.sent_minor[claim.currency] += claim.amount_minor
            else:
                self._not_recorded(claim, result, refusal.code)
        if isinstance(refusal, FenceRefusal | InputRefusal):
            self.stop(refusal)

    def pending(self) -> list[tuple[Claim, Result]]:
        """What has been answered and isn't recorded yet."""
        return [*self._being_recorded.values(), *self._answered]

    def _not_recorded(self, claim: Claim, result: Result, code: str) -> None:
        self.refused_rows.append((claim.refund_id, code))
        if not isinstance(result, NotTried):
            self.unrecorded[claim.refund_id] = repr(result)
            log.warning(
                "answer_not_recorded",
                extra={
                    "merchant_id": claim.merchant_id,
                    "refund_id": claim.refund_id,
                    "token": self.token,
                    "code": code,
                    "result": repr(result),
                },
            )
        self._note("refused", claim, code)

    # The end.

    def stop(self, why: Refused | LeaseLost | None = None) -> None:
        """Begin nothing more; what is claimed and not tried is given back."""
        if isinstance(why, Refused):
            self.refusal = self.refusal or why
        elif isinstance(why, LeaseLost):
            self.lost = self.lost or why
        else:
            self.stopped = True
        self.stopping = True
        reason = "the settlement was stopped before it was sent" if why is None else f"not sent: {why.message}"
        while self._waiting:
            self._answered.append((self._waiting.popleft(), NotTried(reason)))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is claimed, at the gateway, or waiting to be recorded."""
        return not (self._waiting or self._running or self._answered)

    def report(self) -> Report:
        """How it went."""
        return Report(
            self.merchant_id,
            self.token,
            self.holder,
            dict(self.counts),
            dict(self.sent_minor),
            self.open,
            tuple(self.refused_rows),
            self.refusal,
            self.lost,
            self.stopped,
            dict(self.unrecorded),
        )

    def _holds(self, refund_id: str) -> bool:
        return (
            refund_id in self._running
            or any(claim.refund_id == refund_id for claim in self._waiting)
            or any(claim.refund_id == refund_id for claim, _ in self._answered)
        )

    def _note(self, name: str, claim: Claim, outcome: str) -> None:
        self.events.append(Event(name, claim.refund_id, outcome, self.token))


def _agrees(claim: Claim, sent: Sent) -> bool:
    return sent.amount_minor in (None, claim.amount_minor) and sent.currency in (None, claim.currency)
