"""What a settlement does next, without doing it: which rows to claim, what to ask the gateway, what to record.

No I/O, no threads and no clock here; ledger.settle drives it, blocking or on an event loop.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ledger import calls
from ledger.calls import Call
from ledger.errors import FenceRefusal, InputRefusal, LeaseLost, Refused
from ledger.gateway import Accepted, Answer, Declined, Found, Nothing, Sent, Unknown
from ledger.observe import fact, is_heard
from ledger.records import Claim, Move, OpenCount, RowOutcome

log = logging.getLogger("ledger.settle")

MOST_ROWS = 1000
"""What a set-based call takes at most."""

LONGEST_REF = 255
LONGEST_REASON = 500


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


def at_the_gateway(claim: Claim) -> Generator[Find | Send, Found, Answer]:
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


def as_found(answer: object) -> Found:
    """What an adapter returned, as an answer that can be recorded. Anything else is Unknown."""
    match answer:
        case Sent(ref, amount_minor, currency):
            fits = _is_ref(ref) and _is_amount(amount_minor) and _is_text(currency)
        case Accepted(ref):
            fits = _is_ref(ref)
        case Declined(reason, remembered):
            fits = _is_a(str, reason) and _is_a(bool, remembered)
        case Unknown(reason):
            fits = _is_a(str, reason)
        case _:
            fits = isinstance(answer, Nothing)
    if fits:
        return answer  # type: ignore[return-value]  # one of those above
    return Unknown(f"the gateway's adapter returned {answer!r}, which is no answer that can be recorded")


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _is_ref(ref: object) -> bool:
    return isinstance(ref, str) and 1 <= len(ref) <= LONGEST_REF and ref.isprintable() and not ref.isspace()


def _is_amount(amount_minor: object) -> bool:
    return amount_minor is None or (isinstance(amount_minor, int) and not isinstance(amount_minor, bool))


def _is_text(text: object) -> bool:
    return text is None or (isinstance(text, str) and text.isprintable())


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
    """The state of one holder's settlement of one merchant.

    A claimed refund is waiting, then at the gateway, then answered, until its answer is recorded.
    """

    def __init__(self, merchant_id: str, token: int, holder: str, *, in_flight: int, batch: int) -> None:
        self.merchant_id = merchant_id
        self.token = token
        self.holder = holder
        self.in_flight = in_flight
        self.batch = batch
        self.counts: Counter[str] = Counter()
        self.sent_minor: Counter[str] = Counter()
        self.refused_rows: dict[str, str] = {}
        self.unrecorded: dict[str, str] = {}
        self.open: tuple[OpenCount, ...] = ()
        self.refusal: Refused | None = None
        self.lost: LeaseLost | None = None
        self.stopped = False
        self.stopping = False
        self.events: deque[Event] = deque()
        self.is_watched = True
        self.running: dict[str, Claim] = {}
        self._waiting: deque[Claim] = deque()
        self._answered: dict[str, tuple[Claim, Result]] = {}
        self._cursor = ""
        self._pass_is_over = False
        self._progress = False
        self._in_doubt = False
        self._reclaim = False

    # Claims.

    def next_claim(self) -> Call[Claim] | None:
        """The next claim; None when enough is claimed, the pass is over, or the settlement is ending.

        With a batch of one, nothing is claimed ahead of what is being sent. A claim whose reply was lost is made
        again also when a stop was asked for: what it took must be given back.
        """
        if self.refusal or self.lost or self._answered or (self.stopping and not self._in_doubt):
            return None
        at_the_gateway = 0 if self.batch == 1 else self.in_flight
        ahead = len(self._waiting) + max(0, len(self.running) - at_the_gateway)
        if not self._in_doubt and (self._pass_is_over or ahead >= self.in_flight):
            return None
        return calls.claim_refunds(self.merchant_id, self.token, self.batch, self._cursor, self._reclaim)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Take what a claim returned."""
        self._in_doubt = False
        self._pass_is_over = not claims
        for claim in claims:
            self._cursor = claim.refund_id
            if claim.refund_id in self.refused_rows:
                continue
            self._progress = True
            self.counts[claim.outcome] += 1
            self._note("claimed", claim, claim.outcome)
            level = logging.DEBUG if claim.outcome == "claimed" else logging.INFO
            self._tell(level, "refund_claimed", claim, outcome=claim.outcome, reason=claim.reason)
            if claim.outcome != "review":
                self._waiting.append(claim)
        if self.stopping:
            self._give_back_waiting("the settlement was stopped before it was sent")

    def claim_in_doubt(self) -> None:
        """A claim's reply was lost: from now on, what that one may have claimed is claimed again."""
        self._in_doubt = self._reclaim = True

    def work_left(self, open_now: Sequence[OpenCount]) -> bool:
        """Take what is open, and say whether some of it is to be claimed yet."""
        self.open = tuple(open_now)
        if self.stopping:
            return False
        lost_claims = self._reclaim and any(row.state == "sending" and not row.is_claimable for row in self.open)
        return lost_claims or any(row.is_claimable for row in self.open)

    def new_pass(self) -> bool:
        """Begin again at the first refund. False if the last pass got nowhere."""
        progressed, self._progress = self._progress, False
        self._pass_is_over, self._cursor = False, ""
        return progressed

    # The gateway.

    def next_to_send(self) -> Claim | None:
        """A claimed refund to take to the gateway as soon as fewer than `in_flight` are there, or None.

        As many again are handed over ahead, so that the gateway isn't idle while Postgres is asked; no more, for
        they may be sent before it is heard that that call was refused. With a batch of one, none is.
        """
        most = self.in_flight if self.batch == 1 else 2 * self.in_flight
        if self.stopping or not self._waiting or len(self.running) >= most:
            return None
        claim = self._waiting.popleft()
        self.running[claim.refund_id] = claim
        return claim

    def answered(self, claim: Claim, result: Result) -> None:
        """Take what came of it. A result that comes after the settlement gave up on it is dropped."""
        if self.running.get(claim.refund_id) is not claim:
            self._tell(logging.WARNING, "answer_too_late", claim, answer=repr(result))
            return
        del self.running[claim.refund_id]
        if isinstance(result, NotTried):
            self._waiting.appendleft(claim)
            if self.stopping:
                self._give_back_waiting(result.reason)
            return
        self._answered[claim.refund_id] = (claim, result)
        self._note("answered", claim, type(result).__name__.lower())

    def give_up(self, refund_id: str, reason: str) -> None:
        """Wait no longer for a refund that is at the gateway: its outcome isn't known."""
        self.answered(self.running[refund_id], Unknown(reason))

    # Records.

    def next_recording(self) -> Recording | None:
        """A call that records some of what has been answered; offered again until `recorded` or `refused`."""
        if not self._answered:
            return None
        sent = [(c, r) for c, r in self._answered.values() if isinstance(r, Sent) and _agrees(c, r)][:MOST_ROWS]
        if len(sent) > 1:
            ids = [claim.refund_id for claim, _ in sent]
            refs = [answer.ref for _, answer in sent]
            return Recording(calls.confirm_refunds(self.merchant_id, self.token, ids, refs), tuple(sent))
        claim, result = sent[0] if sent else next(iter(self._answered.values()))
        return Recording(self._record(claim, result), ((claim, result),))

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
                return calls.fail_refund(*names, _as_reason(reason, "declined"))
            case Declined(reason, _):
                text = f"declined, and not remembered under the key: {reason}"
                return calls.mark_unknown(*names, _as_reason(text, ""))
            case NotTried(reason):
                return calls.release_refund(*names, _as_reason(reason, "not sent"))
        return calls.mark_unknown(*names, _as_reason(result.reason, "unknown"))

    def recorded(self, recording: Recording, rows: Sequence[Move | RowOutcome]) -> None:
        """Take what a recording returned."""
        for (claim, result), row in zip(recording.results, rows, strict=True):
            del self._answered[claim.refund_id]
            if row.outcome not in Refused.by_code:
                self._was_recorded(claim, row.state or row.outcome, row.outcome)
                continue
            self._tell(logging.INFO, "call_refused", claim, code=row.outcome, reason=row.reason)
            self._not_recorded(claim, result, row.outcome)
            self._stop_unless_of_one_row(
                Refused.by_code[row.outcome](
                    f"the answer for {claim.merchant_id}/{claim.refund_id} was refused with {row.outcome}."
                    " Nothing was changed",
                    {
                        "function": recording.call.name,
                        "merchant_id": claim.merchant_id,
                        "refund_id": claim.refund_id,
                        "token": self.token,
                        "reason": row.reason,
                        "state": row.state,
                        "gateway_ref": row.gateway_ref,
                    },
                    f"Look at it with ledger show {claim.merchant_id} {claim.refund_id}",
                )
            )

    def refused(self, recording: Recording, refusal: Refused) -> None:
        """Take that a recording was refused."""
        done = set(refusal.detail.get("recorded", ()))
        for claim, result in recording.results:
            del self._answered[claim.refund_id]
            if claim.refund_id in done:
                self._was_recorded(claim, "sent", "already_confirmed")
            else:
                self._not_recorded(claim, result, refusal.code)
        self._stop_unless_of_one_row(refusal)

    def pending(self) -> list[tuple[Claim, Result]]:
        """What has been answered and isn't recorded yet."""
        return list(self._answered.values())

    def _was_recorded(self, claim: Claim, state: str, outcome: str) -> None:
        self.counts[state] += 1
        if state == "sent":
            self.sent_minor[claim.currency] += claim.amount_minor
        self._note("recorded", claim, outcome)
        self._tell(logging.DEBUG, "refund_recorded", claim, state=state, outcome=outcome)

    def _not_recorded(self, claim: Claim, result: Result, code: str) -> None:
        self.refused_rows[claim.refund_id] = code
        if not isinstance(result, NotTried):
            self.unrecorded[claim.refund_id] = repr(result)
            self._tell(
                logging.WARNING, "answer_not_recorded", claim, code=code, answer=repr(result),
                note="the next holder asks the gateway about it",
            )  # fmt: skip
        self._note("refused", claim, code)

    def _stop_unless_of_one_row(self, refusal: Refused) -> None:
        if isinstance(refusal, FenceRefusal | InputRefusal):
            self.stop(refusal)

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
        self._give_back_waiting(self.why_not_sent)
        if isinstance(self.refusal, FenceRefusal):
            # A fenced-out holder can't give anything back; the next one is told that it may have been sent.
            self._answered = {
                refund_id: (claim, result)
                for refund_id, (claim, result) in self._answered.items()
                if not isinstance(result, NotTried)
            }

    @property
    def why_not_sent(self) -> str:
        """What is recorded of a refund that is given back at the end."""
        why = self.refusal or self.lost
        return "the settlement was stopped before it was sent" if why is None else f"not sent: {why.message}"

    def _give_back_waiting(self, reason: str) -> None:
        while self._waiting:
            claim = self._waiting.popleft()
            if not isinstance(self.refusal, FenceRefusal):
                self._answered[claim.refund_id] = (claim, NotTried(reason))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is claimed, at the gateway, or waiting to be recorded."""
        return not (self._waiting or self.running or self._answered)

    def report(self) -> Report:
        """How it went."""
        return Report(
            self.merchant_id,
            self.token,
            self.holder,
            dict(self.counts),
            dict(self.sent_minor),
            self.open,
            tuple(self.refused_rows.items()),
            self.refusal,
            self.lost,
            self.stopped,
            dict(self.unrecorded),
        )

    def _tell(self, level: int, name: str, claim: Claim, **fields: Any) -> None:
        if not is_heard(log, level):
            return
        fact(
            log, level, name,
            merchant_id=self.merchant_id, refund_id=claim.refund_id, token=self.token, holder=self.holder, **fields,
        )  # fmt: skip

    def _note(self, name: str, claim: Claim, outcome: str) -> None:
        if self.is_watched:
            self.events.append(Event(name, claim.refund_id, outcome, self.token))


def _agrees(claim: Claim, sent: Sent) -> bool:
    return sent.amount_minor in (None, claim.amount_minor) and sent.currency in (None, claim.currency)


def _as_reason(text: str, otherwise: str) -> str:
    """Text that can be recorded: a gateway may have put anything into it."""
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    return printable[:LONGEST_REASON].strip() or otherwise
