"""`ledger claim`, `confirm`, `fail`, `release`, `unknown`: putting a refund right by hand.

One command does the whole protocol: lease, draw, activate, claim, settle, release. A worker that held the merchant
before is fenced out from then on. While one holds the lease, nothing is done: it is named, and the exit code is 6.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click
from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app, usable
from ledger.commands.durations import DURATION_OR_ZERO
from ledger.commands.exits import PARTLY, REFUSED, describe
from ledger.commands.holders import told
from ledger.errors import Busy, FenceRefusal, LedgerError, Refused
from ledger.lease import AdvisoryLease, Lease, new_holder
from ledger.records import Claim, Move

Settle = Callable[[Ledger, str, int], Move]

MERCHANT = click.argument("merchant")
REFUNDS = click.argument("refunds", nargs=-1, required=True, metavar="REFUND... | -")
TOKEN = click.option(
    "--token", type=click.IntRange(1, 2**63 - 1), help="Go on with this token, from ledger claim, while it is active."
)
WAIT = click.option(
    "--wait", type=DURATION_OR_ZERO, default="0", show_default=True, help="How long to wait for a busy lease."
)
WITHOUT_LEASE = click.option(
    "--without-lease", is_flag=True, help="Go on though the leases can't be seen: fences out whoever holds one."
)

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
@MERCHANT
@REFUNDS
@TOKEN
@WAIT
@WITHOUT_LEASE
@pass_app
def claim_command(
    app: App, merchant: str, refunds: tuple[str, ...], token: int | None, wait: timedelta, without_lease: bool
) -> int:
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
    """
    app.need_reason()
    ids = list(_given(refunds))

    def work(hand: Hand, refund: str) -> dict[str, Any]:
        return output.as_row(hand.claim(refund)) | {"token": hand.token}

    return _each(app, merchant, ids, work, CLAIM_COLUMNS, token, wait, without_lease)


@command(name="confirm")
@MERCHANT
@REFUNDS
@click.option("--gateway-ref", metavar="REF", help="The gateway's reference.")
@TOKEN
@WAIT
@WITHOUT_LEASE
@pass_app
def confirm_command(
    app: App,
    merchant: str,
    refunds: tuple[str, ...],
    gateway_ref: str | None,
    token: int | None,
    wait: timedelta,
    without_lease: bool,
) -> int:
    """Record by hand that the gateway sent a refund. Confirming what is recorded already changes nothing.

    With - each line of stdin is REFUND,REF, or it is a CSV with the columns refund_id and gateway_ref.

    \b
    Example:
      ledger confirm m_4471 r_815 --gateway-ref re_815 --reason 'seen in the gateway, ticket 91'
    \b
    Exit codes:
      0 done           3 refused       4 Postgres or Redis can't be reached     5 no such refund
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not confirmed
    """
    app.need_reason()
    refs = {refund: ref or gateway_ref for refund, ref in _given(refunds, references=True).items()}
    missing = [refund for refund, ref in refs.items() if not ref]
    if missing:
        raise BadInput(
            f"no gateway reference for {', '.join(missing[:5])}. Nothing was changed",
            "Give --gateway-ref REF, or lines of REFUND,REF on stdin",
        )
    if gateway_ref and len(refs) > 1:
        raise BadInput(
            "one --gateway-ref can't be that of several refunds. Nothing was changed",
            "Give one refund, or lines of REFUND,REF on stdin",
        )

    def settle(hand: Ledger, refund: str, active: int) -> Move:
        return hand.confirm_refund(merchant, refund, active, str(refs[refund]))

    return _settle(app, merchant, list(refs), settle, token, wait, without_lease, done=None)


@command(name="fail")
@MERCHANT
@REFUNDS
@TOKEN
@WAIT
@WITHOUT_LEASE
@pass_app
def fail_command(
    app: App, merchant: str, refunds: tuple[str, ...], token: int | None, wait: timedelta, without_lease: bool
) -> int:
    """Record by hand that the gateway refused a refund for good, and will refuse it again under its key.

    With - the refund ids come from stdin, one a line, or in the column refund_id of a CSV.

    \b
    Example:
      ledger fail m_4471 r_815 --reason 'declined for good: account closed, ticket 91'
    \b
    Exit codes:
      0 done           3 refused       4 Postgres or Redis can't be reached     5 no such refund
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not recorded
    """
    reason = app.need_reason()

    def settle(ledger: Ledger, refund: str, active: int) -> Move:
        return ledger.fail_refund(merchant, refund, active, reason)

    return _settle(app, merchant, list(_given(refunds)), settle, token, wait, without_lease, done="failed")


@command(name="release")
@MERCHANT
@REFUNDS
@TOKEN
@WAIT
@WITHOUT_LEASE
@pass_app
def release_command(
    app: App, merchant: str, refunds: tuple[str, ...], token: int | None, wait: timedelta, without_lease: bool
) -> int:
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
    """
    reason = app.need_reason()

    def settle(ledger: Ledger, refund: str, active: int) -> Move:
        return ledger.release_refund(merchant, refund, active, reason)

    return _settle(app, merchant, list(_given(refunds)), settle, token, wait, without_lease, done="pending")


@command(name="unknown")
@MERCHANT
@REFUNDS
@TOKEN
@WAIT
@WITHOUT_LEASE
@pass_app
def unknown_command(
    app: App, merchant: str, refunds: tuple[str, ...], token: int | None, wait: timedelta, without_lease: bool
) -> int:
    """Record by hand that the outcome at the gateway isn't known. The next claim asks the gateway first.

    With - the refund ids come from stdin, one a line, or in the column refund_id of a CSV.

    \b
    Example:
      ledger unknown m_4471 r_815 --reason 'gateway is down, ticket 91'
    \b
    Exit codes:
      0 done           3 refused       4 Postgres or Redis can't be reached     5 no such refund
      2 bad input      6 a live holder has the lease; nothing was changed       8 some were not recorded
    """
    reason = app.need_reason()

    def settle(ledger: Ledger, refund: str, active: int) -> Move:
        return ledger.mark_unknown(merchant, refund, active, reason)

    return _settle(app, merchant, list(_given(refunds)), settle, token, wait, without_lease, done="unknown")


def _settle(
    app: App,
    merchant: str,
    refunds: Sequence[str],
    settle: Settle,
    token: int | None,
    wait: timedelta,
    without_lease: bool,
    *,
    done: str | None,
) -> int:
    """Claim each refund and settle it. One that is in the state `done` already is left as it is."""

    def work(hand: Hand, refund: str) -> dict[str, Any]:
        facts = {"refund_id": refund, "token": hand.token}
        state = hand.state(refund)
        if done is not None and state == done:
            return facts | {"outcome": f"already_{done}", "state": done}
        if token is None and state not in NEED_NO_CLAIM:
            claim = hand.claim(refund)
            if claim.outcome == "review":
                return facts | {"outcome": "review", "state": "review", "reason": claim.reason}
            if app.dry_run and claim.outcome == "claimed":
                # What settles it mustn't share the claim's transaction, and a dry run is one transaction.
                return facts | {"outcome": "would be claimed, then settled", "state": "sending"}
        with hand.connection.transaction():
            return output.as_row(settle(hand.ledger, refund, hand.token))

    return _each(app, merchant, refunds, work, COLUMNS, token, wait, without_lease)


def _each(
    app: App,
    merchant: str,
    refunds: Sequence[str],
    work: Callable[[Hand, str], dict[str, Any]],
    columns: Sequence[str],
    token: int | None,
    wait: timedelta,
    without_lease: bool,
) -> int:
    """Do it for each. One bad row doesn't stop the rest, a refusal by the fence does; every row is accounted for."""
    if not refunds:
        output.say("no refund ids came from stdin: nothing to do")
        return 0
    results: list[dict[str, Any]] = []
    fenced_out = failed = False
    try:
        with _holding(app, merchant, token, wait, without_lease) as hand:
            for refund in refunds:
                try:
                    results.append(work(hand, refund))
                except LedgerError as error:
                    if len(refunds) == 1:
                        raise
                    results.append(_refused(refund, error))
                    failed, fenced_out = True, isinstance(error, FenceRefusal)
                    if fenced_out:
                        break
    finally:
        # Also when the connection breaks in the middle: what was done must be seen.
        if results:
            rest = [{"refund_id": refund, "outcome": "not_tried"} for refund in refunds[len(results) :]]
            if rest and not fenced_out:
                rest[0]["outcome"] = "in_doubt"
            output.rows(app, [*results, *rest], columns)
    if app.dry_run:
        output.say("dry run: rolled back, nothing was changed")
    if fenced_out:
        return REFUSED
    return PARTLY if failed or any(result.get("state") == "review" for result in results) else 0


def _refused(refund: str, error: LedgerError) -> dict[str, Any]:
    message, _, hint = describe(error)
    return {
        "refund_id": refund,
        "outcome": error.code if isinstance(error, Refused) else "busy",
        "reason": message,
        "hint": hint,
    }


@contextmanager
def _holding(app: App, merchant: str, token: int | None, wait: timedelta, without_lease: bool) -> Iterator[Hand]:
    """An active token of the merchant, under its lease; in a dry run without one, and rolled back at its end."""
    resource = f"settle:{merchant}"
    with app.connect() as connection:
        ledger = app.ledger(connection)
        if token is not None:
            with _rolled_back_if_dry(app, connection):
                yield Hand(connection, ledger, merchant, token)
        elif without_lease or app.dry_run:
            if without_lease:
                output.say(f"without a lease: whoever holds {resource} is fenced out from now on")
            else:
                _refuse_live_holder(app, ledger, resource)
            with _rolled_back_if_dry(app, connection):
                drawn = ledger.draw_token(resource)
                ledger.activate_token(resource, drawn, new_holder())
                yield Hand(connection, ledger, merchant, drawn)
        else:
            with _lease(app, ledger, resource, wait) as active:
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


def _given(arguments: tuple[str, ...], *, references: bool = False) -> dict[str, str | None]:
    """Refund ids, each once, with the reference that stands beside it; - reads them from stdin."""
    found: dict[str, str | None] = {}
    for argument in arguments:
        pairs = _from_stdin(references) if argument == "-" else [(argument, None)]
        for refund, ref in pairs:
            if found.setdefault(refund, ref) != ref:
                raise BadInput(
                    f"{refund} is given twice, with references {found[refund]} and {ref}. Nothing was changed"
                )
    return found


def _from_stdin(references: bool) -> Iterator[tuple[str, str | None]]:
    """One id a line, with a reference after a comma where references are wanted; or a CSV that names its columns."""
    lines = ([cell.strip() for cell in row] for row in csv.reader(sys.stdin))
    columns = ["refund_id", "gateway_ref"]
    for number, cells in enumerate(lines, start=1):
        if not any(cells) or cells[0].startswith("#"):
            continue
        if number == 1 and "refund_id" in cells:
            columns = cells
            continue
        if len(cells) > len(columns) or (not references and len(cells) > 1 and columns[1:] == ["gateway_ref"]):
            wanted = "REFUND,REF" if references else "one refund id"
            raise BadInput(
                f"line {number} of stdin holds {len(cells)} fields; {wanted} was expected. Nothing was changed"
            )
        row = dict(zip(columns, cells, strict=False))
        yield row["refund_id"], (row.get("gateway_ref") or None) if references else None
