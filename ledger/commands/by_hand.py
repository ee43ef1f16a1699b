"""`ledger claim`, `confirm`, `fail`, `release`, `unknown`: putting a refund right by hand.

One command does the whole protocol: lease, draw, activate, claim, settle, release. A worker that held the merchant
before is fenced out from then on. While one holds the lease, nothing is done: it is named, and the exit code is 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click
from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import evidence, given, output
from ledger.commands.app import App, BadInput, command, pass_app, usable
from ledger.commands.durations import DURATION_OR_ZERO
from ledger.commands.each import each
from ledger.commands.exits import PARTLY
from ledger.commands.given import Given
from ledger.commands.holders import told
from ledger.errors import Busy
from ledger.lease import AdvisoryLease, Lease, new_holder
from ledger.records import Claim, Move

Settle = Callable[[Ledger, str, int], Move]
Look = Callable[[Connection[Any], str], None]


@dataclass(frozen=True, slots=True)
class Way:
    """How to come by an active token: one that was claimed with, or a lease, waited for or done without."""

    token: int | None
    wait: timedelta
    without_lease: bool


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a `Given` and of a `Way`, which the command gets as `given` and `way`."""

    def command(
        *args: Any,
        merchant: str,
        refunds: tuple[str, ...],
        everything: bool,
        states: tuple[str, ...],
        token: int | None,
        wait: timedelta,
        without_lease: bool,
        **more: Any,
    ) -> Any:
        return function(*args, Given(merchant, refunds, everything, states), Way(token, wait, without_lease), **more)

    command.__doc__ = function.__doc__
    decorated: Callable[..., Any] = command
    for decorate in (
        click.option(
            "--without-lease", is_flag=True, help="Go on though the leases can't be seen: fences out whoever holds one."
        ),
        click.option(
            "--wait", type=DURATION_OR_ZERO, default="0", show_default=True, help="How long to wait for a busy lease."
        ),
        click.option(
            "--token",
            type=click.IntRange(1, 2**63 - 1),
            help="Go on with this token, from ledger claim, while it is active.",
        ),
        given.options,
    ):
        decorated = decorate(decorated)
    return decorated


COLUMNS = ["refund_id", "outcome", "state", "token", "gateway_ref", "reason"]
CLAIM_COLUMNS = [
    *("refund_id", "outcome", "token", "attempt", "previous_state", "previous_token", "idempotency_key", "reason"),
]

NEED_NO_CLAIM = ("accepted", "sent", "failed", "cancelled", "returned")
"""States whose refunds are settled, or refused, without a claim; claiming them would only be refused."""


@dataclass(frozen=True, slots=True)
class Hand:
    """What a person works with: a connection, a ledger over it, and the active token of a merchant."""

    connection: Connection[Any]
    ledger: Ledger
    merchant: str
    token: int

    def state(self, refund: str) -> str | None:
        """The state of a refund; None where there is none."""
        row = self.connection.execute(
            "select state from ledger.refund where merchant_id = %s and refund_id = %s", (self.merchant, refund)
        ).fetchone()
        return None if row is None else str(row[0])

    def claim(self, refund: str) -> Claim:
        """Claim it, in a transaction of its own."""
        with self.connection.transaction():
            return self.ledger.claim_refund(self.merchant, refund, self.token)


@command(name="claim")
@options
@pass_app
def claim_command(app: App, given: Given, way: Way) -> int:
    """Take refunds over by hand, and print the token; whoever held the merchant before is fenced out.

    The lease is given back at the end. The token stays active until somebody else activates one: go on with it by
    --token. With - the refund ids come from stdin, one a line, or in the column refund_id of a CSV.

    \b
    Example:
      ledger claim m_4471 r_815 --reason 'worker host is down, ticket 91'
    \b
    Exit codes:
      0 done           3 refused       4 Postgres or Redis can't be reached     5 no such refund
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not claimed
      1 answered no    9 schema missing or behind
    """
    app.need_reason()

    def work(hand: Hand, refund: str) -> dict[str, Any]:
        claim = output.as_row(hand.claim(refund))
        return claim | {"token": hand.token} | ({"state": "review"} if claim["outcome"] == "review" else {})

    return _each(app, given.merchant, list(given.ids(app, "Take over")), work, CLAIM_COLUMNS, way)


@command(name="confirm")
@click.option("--gateway-ref", metavar="REF", help="The gateway's reference.")
@evidence.GATEWAY
@options
@pass_app
def confirm_command(app: App, given: Given, way: Way, gateway_ref: str | None, gateway: str | None) -> int:
    """Record by hand that the gateway sent a refund. Confirming what is recorded already changes nothing.

    With - each line of stdin is REFUND,REF, or it is a CSV with the columns refund_id and gateway_ref.

    \b
    Example:
      ledger confirm m_4471 r_815 --gateway-ref re_815 --reason 'seen in the gateway, ticket 91'
    \b
    Exit codes:
      0 done           3 refused, or the gateway says otherwise     4 Postgres, Redis or the gateway can't be reached
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not confirmed
      1 answered no    5 no such refund                             9 schema missing or behind
    """
    app.need_reason()
    refs = {refund: ref or gateway_ref for refund, ref in given.ids(app, "Record as sent", references=True).items()}
    missing = [refund for refund, ref in refs.items() if not ref]
    if missing and gateway is None:
        raise BadInput(
            f"no gateway reference for {', '.join(missing[:5])}. Nothing was changed",
            "Give --gateway-ref REF, or lines of REFUND,REF on stdin, or --gateway to ask for it",
        )
    if gateway_ref and len(refs) > 1:
        raise BadInput(
            "one --gateway-ref can't be that of several refunds. Nothing was changed",
            "Give one refund, or lines of REFUND,REF on stdin",
        )
    found: dict[str, evidence.Said] = {}
    with evidence.checking(gateway) as check:

        def look(connection: Connection[Any], refund: str) -> None:
            found[refund] = check.of(connection, given.merchant, refund, "sent", refs[refund])
            if found[refund].ref is None:
                raise evidence.Disagrees(
                    f"no reference for {refund}: none was given, the gateway told none. Nothing was changed",
                    "Give --gateway-ref REF, or try again",
                )

        def settle(hand: Ledger, refund: str, active: int) -> Move:
            said = found[refund]
            return hand.confirm_refund(given.merchant, refund, active, str(said.ref), said.evidence or None)

        return _settle(app, given.merchant, list(refs), settle, way, done=None, look=look)


@command(name="fail")
@options
@pass_app
def fail_command(app: App, given: Given, way: Way) -> int:
    """Record by hand that the gateway refused a refund for good, and will refuse it again under its key.

    With - the refund ids come from stdin, one a line, or in the column refund_id of a CSV.

    \b
    Example:
      ledger fail m_4471 r_815 --reason 'declined for good: account closed, ticket 91'
    \b
    Exit codes:
      0 done           3 refused       4 Postgres or Redis can't be reached     5 no such refund
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not recorded
      1 answered no    9 schema missing or behind
    """
    reason = app.need_reason()

    def settle(ledger: Ledger, refund: str, active: int) -> Move:
        return ledger.fail_refund(given.merchant, refund, active, reason)

    return _settle(app, given.merchant, list(given.ids(app, "Record as failed")), settle, way, done="failed")


@command(name="release")
@options
@pass_app
def release_command(app: App, given: Given, way: Way) -> int:
    """Give back by hand what was certainly not sent under this token.

    A refund that an earlier holder may have sent becomes unknown, and the next claim asks the gateway first. With -
    the refund ids come from stdin, one a line, or in the column refund_id of a CSV.

    \b
    Example:
      ledger release m_4471 r_815 --token 35 --reason 'claimed by mistake'
    \b
    Exit codes:
      0 done           3 refused       4 Postgres or Redis can't be reached     5 no such refund
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not given back
      1 answered no    9 schema missing or behind
    """
    reason = app.need_reason()

    def settle(ledger: Ledger, refund: str, active: int) -> Move:
        return ledger.release_refund(given.merchant, refund, active, reason)

    return _settle(app, given.merchant, list(given.ids(app, "Give back")), settle, way, done="pending")


@command(name="unknown")
@options
@pass_app
def unknown_command(app: App, given: Given, way: Way) -> int:
    """Record by hand that the outcome at the gateway isn't known. The next claim asks the gateway first.

    With - the refund ids come from stdin, one a line, or in the column refund_id of a CSV.

    \b
    Example:
      ledger unknown m_4471 r_815 --reason 'gateway is down, ticket 91'
    \b
    Exit codes:
      0 done           3 refused       4 Postgres or Redis can't be reached     5 no such refund
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not recorded
      1 answered no    9 schema missing or behind
    """
    reason = app.need_reason()

    def settle(ledger: Ledger, refund: str, active: int) -> Move:
        return ledger.mark_unknown(given.merchant, refund, active, reason)

    return _settle(app, given.merchant, list(given.ids(app, "Record as unknown")), settle, way, done="unknown")


def _settle(
    app: App,
    merchant: str,
    refunds: Sequence[str],
    settle: Settle,
    way: Way,
    *,
    done: str | None,
    look: Look | None = None,
) -> int:
    """Claim each refund and settle it. One that is in the state `done` already is left as it is."""

    def work(hand: Hand, refund: str) -> dict[str, Any]:
        facts = {"refund_id": refund, "token": hand.token}
        state = hand.state(refund)
        if done is not None and state == done:
            return facts | {"outcome": f"already_{done}", "state": done}
        if look is not None:
            look(hand.connection, refund)
        if way.token is None and state not in NEED_NO_CLAIM:
            claim = hand.claim(refund)
            if claim.outcome == "review":
                return facts | {"outcome": "review", "state": "review", "reason": claim.reason}
            if app.dry_run and claim.outcome == "claimed":
                # What settles it mustn't share the claim's transaction, and a dry run is one transaction.
                return facts | {"outcome": "would be claimed, then settled", "state": "sending"}
        with hand.connection.transaction():
            return output.as_row(settle(hand.ledger, refund, hand.token))

    return _each(app, merchant, refunds, work, COLUMNS, way)


def _each(
    app: App,
    merchant: str,
    refunds: Sequence[str],
    work: Callable[[Hand, str], dict[str, Any]],
    columns: Sequence[str],
    way: Way,
) -> int:
    """Do it for each under one token. A refund that ended in review instead makes it partly done."""
    if not refunds:
        return 0
    reviewed = False

    def one(refund: str) -> dict[str, Any]:
        nonlocal reviewed
        result = work(hand, refund)
        reviewed = reviewed or result.get("state") == "review"
        return result

    with _holding(app, merchant, way) as hand:
        code = each(app, refunds, one, columns)
    return code or (PARTLY if reviewed else 0)


@contextmanager
def _holding(app: App, merchant: str, way: Way) -> Iterator[Hand]:
    """An active token of the merchant, under its lease; in a dry run without one, and rolled back at its end."""
    resource = f"settle:{merchant}"
    with app.connect() as connection:
        ledger = app.ledger(connection)
        if way.token is not None:
            with _rolled_back_if_dry(app, connection):
                yield Hand(connection, ledger, merchant, way.token)
        elif way.without_lease or app.dry_run:
            if way.without_lease:
                output.say(f"without a lease: whoever holds {resource} is fenced out from now on")
            else:
                _refuse_live_holder(app, ledger, resource)
            with _rolled_back_if_dry(app, connection):
                drawn = ledger.draw_token(resource)
                ledger.activate_token(resource, drawn, new_holder())
                yield Hand(connection, ledger, merchant, drawn)
        else:
            with _lease(app, ledger, resource, way.wait) as active:
                yield Hand(connection, ledger, merchant, active)


@contextmanager
def _lease(app: App, ledger: Ledger, resource: str, wait: timedelta) -> Iterator[int]:
    """The token of a lease, where the kind's leases live. Raises Busy, which tells all about who has it."""
    seconds = wait.total_seconds()
    with usable():
        lease: Lease | AdvisoryLease = (
            AdvisoryLease(resource, db=app.connect, wait=seconds)
            if ledger.get_kind("settle").lock == "advisory"
            else Lease(resource, db=app.connect, redis=app.need_redis("settle"), wait=seconds)
        )
    with ExitStack() as stack:
        try:
            stack.enter_context(lease)
        except Busy as busy:
            raise told(busy, ledger, resource) from busy
        yield lease.token


def _refuse_live_holder(app: App, ledger: Ledger, resource: str) -> None:
    """For a dry run, which takes no lease: say what the command itself would say. Raises Busy."""
    from ledger.lease.redis_lock import RedisLock

    if ledger.get_kind("settle").lock == "advisory":
        held = ledger.job_holders(resource)
        if held:
            names = ", ".join(f"pid {one['pid']} ({one['user']})" for one in held)
            busy = Busy(f"the lock of {resource} is held by {names}. Nothing was changed", {"holder": None})
            raise told(busy, ledger, resource)
        return
    with usable():
        lock = RedisLock(app.need_redis("settle"), resource)
    entry = lock.peek()
    if entry is not None:
        busy = Busy(
            f"the lease on {resource} is held by {entry.holder or entry.value} with token {entry.token}, "
            f"for {entry.ttl_left:.1f} s more unless renewed. Nothing was changed",
            {"resource": resource, "holder": entry.holder, "token": entry.token, "ttl_left": entry.ttl_left},
        )
        raise told(busy, ledger, resource)


@contextmanager
def _rolled_back_if_dry(app: App, connection: Connection[Any]) -> Iterator[None]:
    if not app.dry_run:
        yield
        return
    with connection.transaction(force_rollback=True):
        yield
