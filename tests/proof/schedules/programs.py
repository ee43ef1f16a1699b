"""What each process does, in the order of docs/fencing.md: a generator that yields a step and gets what came of it.

A step's outcome may be an exception: a refusal, the lease that is over, a reply that was lost, a wish to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ledger import calls
from ledger.calls import Call
from ledger.errors import Busy, LeaseLost, Refused, StaleToken
from ledger.gateway import Answer, Declined, Sent
from ledger.lease.lease import ACTIVATIONS
from ledger.records import Claim
from ledger.settlement import Find, NotTried, Recording, Send, Settlement, at_the_gateway
from tests.proof.schedules.states import PLACEHOLDER

MERCHANT = PLACEHOLDER
RESOURCE = f"settle:{MERCHANT}"


class LostReply(Exception):
    """The step was taken; its outcome never arrived."""


class Stopped(Exception):
    """The worker was asked to stop."""


@dataclass(frozen=True, slots=True)
class Sql:
    """Call a function of the ledger, in a transaction of its own."""

    call: Call[Any]
    role: str = "ledger_worker"
    may_lose_reply: bool = False


@dataclass(frozen=True, slots=True)
class Take:
    """Take the lease: wait until it is free, or raise Busy."""

    token: int
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Swap:
    """Put a newer token into one's own lease; whether it was one's own."""

    old: int
    new: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give the lease back, where it still is one's own."""

    token: int


@dataclass(frozen=True, slots=True)
class Look:
    """Look whether there is time left of the lease, by one's own clock, or a wish to stop."""


@dataclass(frozen=True, slots=True)
class Peek:
    """Whose the lease is."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove a lease that still holds what was seen."""

    value: tuple[str, int]


Step: TypeAlias = Sql | Take | Swap | GiveBack | Look | Peek | Clear | Find | Send
Course: TypeAlias = Generator[Step, Any, Any]
Program: TypeAlias = Callable[[str, tuple[str, ...]], Course]


def holder(process: str) -> str:
    """The name of a process's attempt."""
    return f"{process}/1/{process * 16}"


def sql_of(name: str, *arguments: Any) -> Sql:
    """A call whose reply may be lost; it is repeated then."""
    return Sql(getattr(calls, name)(*arguments), may_lose_reply=True)


def hold(process: str, *, waits: bool = True) -> Generator[Step, Any, int | None]:
    """Draw, take the lease, activate. None where it came to nothing; the lease is given back then."""
    token: int = (yield Sql(calls.draw_token(RESOURCE)))[0]
    try:
        yield Take(token, waits)
    except Busy:
        return None
    for _ in range(ACTIVATIONS):
        try:
            yield sql_of("activate_token", RESOURCE, token, holder(process))
            return token
        except StaleToken:
            newer: int = (yield Sql(calls.draw_token(RESOURCE)))[0]
            if not (yield Swap(token, newer)):
                return None
            token = newer
        except LostReply:
            break
    yield GiveBack(token)
    return None


def one_by_one(process: str, refunds: tuple[str, ...]) -> Course:
    """The loop of the README: claim_refund, the gateway, confirm_refund or what else fits."""
    token = yield from hold(process)
    if token is None:
        return
    for refund_id in refunds:
        try:
            claim: Claim = yield from _repeated(sql_of("claim_refund", MERCHANT, refund_id, token))
            if claim.outcome != "review":
                answer = yield from _asked(claim)
                yield from _repeated(_record(claim, token, answer))
        except Refused as refusal:
            if isinstance(refusal, StaleToken):
                break
    yield GiveBack(token)


def in_sets(process: str, refunds: tuple[str, ...], *, in_flight: int = 1000) -> Course:
    """The core of ledger.settle.settle, as its driver runs it: claim_refunds, confirm_refunds.

    With one in flight, an answer is recorded before the next refund is sent; else all are sent first.
    """
    token = yield from hold(process)
    if token is None:
        return
    core = Settlement(MERCHANT, token, holder(process), in_flight=in_flight, batch=len(refunds))
    while True:
        if (call := core.next_claim()) is not None:
            yield from _claim_set(core, call)
        elif in_flight > 1 and (claim := core.next_to_send()) is not None:
            yield from _send_one(core, claim)
        elif (recording := core.next_recording()) is not None:
            yield from _record_set(core, recording)
        elif (claim := core.next_to_send()) is not None:
            yield from _send_one(core, claim)
        else:
            break
    yield GiveBack(token)


def _claim_set(core: Settlement, call: Call[Claim]) -> Course:
    try:
        core.claimed((yield Sql(call, may_lose_reply=True)))
    except LostReply:
        core.claim_in_doubt()
    except Refused as refusal:
        core.stop(refusal)


def _send_one(core: Settlement, claim: Claim) -> Course:
    result = yield from _asked(claim)
    core.answered(claim, result)
    if isinstance(result, NotTried):
        core.stop(None if "stop" in result.reason else LeaseLost(result.reason))


def _record_set(core: Settlement, recording: Recording) -> Course:
    try:
        core.recorded(recording, (yield Sql(recording.call, may_lose_reply=True)))
    except Refused as refusal:
        core.refused(recording, refusal)
    except LostReply:
        pass  # it is offered again


def lease_first(process: str, refunds: tuple[str, ...]) -> Course:
    """The usual order, which is wrong: take the lock, then draw."""
    yield Take(0)
    token: int = (yield Sql(calls.draw_token(RESOURCE)))[0]
    try:
        yield sql_of("activate_token", RESOURCE, token, holder(process))
        for refund_id in refunds:
            claim = yield from _repeated(sql_of("claim_refund", MERCHANT, refund_id, token))
            answer = yield from _asked(claim)
            yield from _repeated(_record(claim, token, answer))
    except Refused:
        pass
    yield GiveBack(0)


def heedless(process: str, refunds: tuple[str, ...]) -> Course:
    """A worker that heeds neither its lease nor a refusal: it claims twice, sends, and records whatever it was told."""
    token = yield from hold(process)
    if token is None:
        return
    for refund_id in refunds:
        claim = None
        for _ in range(2):
            with suppress(Refused):
                claim = (yield Sql(calls.claim_refund(MERCHANT, refund_id, token)))[0]
        if claim is not None:
            answer = yield Send(claim)
            with suppress(Refused, LostReply):
                yield _record(claim, token, answer)
    yield GiveBack(token)


def with_the_next_token(process: str, refunds: tuple[str, ...]) -> Course:
    """A worker that begins anew before it records, and doesn't claim again."""
    token = yield from hold(process)
    if token is None:
        return
    with suppress(Refused, LostReply):
        for refund_id in refunds:
            claim = (yield Sql(calls.claim_refund(MERCHANT, refund_id, token)))[0]
            answer = yield Send(claim)
            yield GiveBack(token)
            newer = yield from hold(process)
            if newer is None:
                return
            token = newer
            yield _record(claim, token, answer)
    yield GiveBack(token)


def break_lease(process: str, refunds: tuple[str, ...]) -> Course:
    """`ledger lease break`: fence out whoever is seen, then clear the lease, if it still is theirs."""
    entry = yield Peek()
    if entry is not None:
        yield Sql(calls.break_lease(RESOURCE, holder(entry[0]), "carol", "it hangs"), role="ledger_operator")
        yield Clear(entry)


def confirm_by_hand(process: str, refunds: tuple[str, ...], *, without_lease: bool = False) -> Course:
    """`ledger confirm`, of what the person has seen in the gateway: the whole protocol, without waiting."""
    refund_id = refunds[0]
    found = yield Find(_asked_for(refund_id))
    if not isinstance(found, Sent):
        return
    token = yield from (_activated(process) if without_lease else hold(process, waits=False))
    if token is None:
        return
    with suppress(Refused):
        claim = yield Sql(calls.claim_refund(MERCHANT, refund_id, token), role="ledger_operator")
        if claim[0].outcome != "review":
            call = calls.confirm_refund(MERCHANT, refund_id, token, found.ref, {"amount_minor": found.amount_minor})
            yield Sql(call, role="ledger_operator")
    if not without_lease:
        yield GiveBack(token)


def _activated(process: str) -> Generator[Step, Any, int | None]:
    """Fence out whoever holds the lease, without looking for one."""
    token: int = (yield Sql(calls.draw_token(RESOURCE)))[0]
    try:
        yield Sql(calls.activate_token(RESOURCE, token, holder(process)))
    except StaleToken:
        return None
    return token


PROGRAMS: dict[str, Program] = {
    "one": one_by_one,
    "sets": in_sets,
    "paced": partial(in_sets, in_flight=1),
    "heedless": heedless,
    "deaf": heedless,
    "next": with_the_next_token,
    "lease-first": lease_first,
}
OPERATIONS: dict[str, Program] = {
    "B": break_lease,
    "H": confirm_by_hand,
    "W": partial(confirm_by_hand, without_lease=True),
}


def _repeated(step: Sql) -> Generator[Step, Any, Any]:
    """A single call is repeated under its own token until its reply arrives."""
    while True:
        try:
            return (yield step)[0]
        except LostReply:
            continue


def _asked(claim: Claim) -> Generator[Step, Any, Answer | NotTried]:
    """What the product asks of the gateway, with a look at the lease before each question."""
    course = at_the_gateway(claim)
    try:
        step = next(course)
        while True:
            yield Look()
            step = course.send((yield step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Stopped:
        return NotTried("asked to stop")
    except LeaseLost:
        return NotTried("the lease is over")


def _record(claim: Claim, token: int, answer: Answer | NotTried) -> Sql:
    names = (claim.merchant_id, claim.refund_id, token)
    match answer:
        case Sent(ref, amount_minor, _):
            evidence = None if amount_minor is None else {"amount_minor": amount_minor}
            return sql_of("confirm_refund", *names, ref, evidence)
        case Declined(reason, True):
            return sql_of("fail_refund", *names, reason)
        case NotTried(reason):
            return sql_of("release_refund", *names, reason)
    return sql_of("mark_unknown", *names, "timeout")


def _asked_for(refund_id: str) -> Claim:
    """What a person looks for in the gateway: the key."""
    key = f"{MERCHANT}/{refund_id}"
    return Claim(MERCHANT, refund_id, 7025, "EUR", None, None, key, 0, "taken_over", None, "sending", None, None)
