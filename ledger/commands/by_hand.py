"""`ledger claim`, `confirm`, `fail`, `release`, `unknown`: putting a refund right by hand.

One command does the whole protocol: lease, draw, activate, claim, settle, release. A worker that held the merchant
before is fenced out from then on. While one holds the lease, nothing is done: it is named, and the exit code is 6.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, command, pass_app
from ledger.commands.exits import PARTLY, describe, exit_code
from ledger.errors import Busy, FenceRefusal, IllegalTransition, LedgerError, RefundFinished
from ledger.lease import AdvisoryLease, Lease, new_holder
from ledger.records import Claim, Move

Settle = Callable[[Ledger, str, str, int], Move]

BUSY_HINT = "Wait until it has ended. A holder that is dead loses its lease by itself within its ttl"

MERCHANT = click.argument("merchant")
REFUNDS = click.argument("refunds", nargs=-1, required=True, metavar="REFUND... | -")
TOKEN = click.option(
    "--token", type=click.IntRange(1, 2**63 - 1), help="Go on with this token, from `ledger claim`, while it is active."
)
WITHOUT_LEASE = click.option(
    "--without-lease", is_flag=True, help="Go on though the leases can't be seen: fences out whoever holds one."
)


@command(name="claim")
@MERCHANT
@REFUNDS
@TOKEN
@WITHOUT_LEASE
@pass_app
def claim_command(app: App, merchant: str, refunds: tuple[str, ...], token: int | None, without_lease: bool) -> int:
    """Take refunds over by hand, and print the token; whoever held the merchant before is fenced out.

    The lease is given back at the end. The token stays active until somebody else activates one: go on with it by
    --token.

    \b
    Example:
      ledger claim m_4471 r_815 --reason 'worker host is down, ticket 91'
    Exit codes: 0 done, 3 refused, 4 unreachable, 5 no such refund, 6 a live holder has the lease, 8 some refused.
    """
    app.need_reason()
    with _holding(app, merchant, token, without_lease) as (connection, active):
        ledger = Ledger(connection, refusals=_second(app))

        def work(refund: str) -> dict[str, Any]:
            with connection.transaction():
                claim = ledger.claim_refund(merchant, refund, active)
            return output.as_row(claim) | {"token": active}

        columns = ["refund_id", "outcome", "reason", "token", "attempt", "previous_state", "previous_token"]
        return _each(app, list(_ids(refunds)), work, columns)


@command(name="confirm")
@MERCHANT
@REFUNDS
@click.option("--gateway-ref", help="The gateway's reference. With -, a second column of stdin may give it.")
@TOKEN
@WITHOUT_LEASE
@pass_app
def confirm_command(
    app: App, merchant: str, refunds: tuple[str, ...], gateway_ref: str | None, token: int | None, without_lease: bool
) -> int:
    """Record by hand that the gateway sent a refund. Confirming what is recorded already changes nothing.

    \b
    Example:
      ledger confirm m_4471 r_815 --gateway-ref re_815 --reason 'seen in the gateway, ticket 91'
    Exit codes: 0 done, 3 refused, 4 unreachable, 5 no such refund, 6 a live holder has the lease, 8 some refused.
    """
    pairs = {name: ref or gateway_ref for name, ref in _pairs(refunds)}
    missing = [name for name, ref in pairs.items() if not ref]
    if missing:
        raise click.UsageError(
            f"no gateway reference for {', '.join(missing)}. Give --gateway-ref. Nothing was changed."
        )
    if gateway_ref and len(pairs) > 1:
        raise click.UsageError("one --gateway-ref can't be that of several refunds. Nothing was changed.")

    def settle(ledger: Ledger, merchant_id: str, refund_id: str, active: int) -> Move:
        return ledger.confirm_refund(merchant_id, refund_id, active, str(pairs[refund_id]))

    return _settle(app, merchant, list(pairs), settle, token, without_lease, done=None)


@command(name="fail")
@MERCHANT
@REFUNDS
@TOKEN
@WITHOUT_LEASE
@pass_app
def fail_command(app: App, merchant: str, refunds: tuple[str, ...], token: int | None, without_lease: bool) -> int:
    """Record by hand that the gateway refused a refund for good, and will refuse it again under its key.

    \b
    Example:
      ledger fail m_4471 r_815 --reason 'declined for good: account closed, ticket 91'
    Exit codes: 0 done, 3 refused, 4 unreachable, 5 no such refund, 6 a live holder has the lease, 8 some refused.
    """

    def settle(ledger: Ledger, merchant_id: str, refund_id: str, active: int) -> Move:
        return ledger.fail_refund(merchant_id, refund_id, active, app.need_reason())

    return _settle(app, merchant, list(_ids(refunds)), settle, token, without_lease, done="failed")


@command(name="release")
@MERCHANT
@REFUNDS
@TOKEN
@WITHOUT_LEASE
@pass_app
def release_command(app: App, merchant: str, refunds: tuple[str, ...], token: int | None, without_lease: bool) -> int:
    """Give back by hand what was certainly not sent by this token.

    A refund that an earlier holder may have sent becomes unknown, and the next claim asks the gateway first.

    \b
    Example:
      ledger release m_4471 r_815 --token 35 --reason 'claimed by mistake'
    Exit codes: 0 done, 3 refused, 4 unreachable, 5 no such refund, 6 a live holder has the lease, 8 some refused.
    """

    def settle(ledger: Ledger, merchant_id: str, refund_id: str, active: int) -> Move:
        return ledger.release_refund(merchant_id, refund_id, active, app.need_reason())

    return _settle(app, merchant, list(_ids(refunds)), settle, token, without_lease, done="pending")


@command(name="unknown")
@MERCHANT
@REFUNDS
@TOKEN
@WITHOUT_LEASE
@pass_app
def unknown_command(app: App, merchant: str, refunds: tuple[str, ...], token: int | None, without_lease: bool) -> int:
    """Record by hand that the outcome at the gateway isn't known. The next claim asks the gateway first.

    \b
    Example:
      ledger unknown m_4471 r_815 --reason 'gateway is down, ticket 91'
    Exit codes: 0 done, 3 refused, 4 unreachable, 5 no such refund, 6 a live holder has the lease, 8 some refused.
    """

    def settle(ledger: Ledger, merchant_id: str, refund_id: str, active: int) -> Move:
        return ledger.mark_unknown(merchant_id, refund_id, active, app.need_reason())

    return _settle(app, merchant, list(_ids(refunds)), settle, token, without_lease, done="unknown")


def _settle(
    app: App,
    merchant: str,
    refunds: Sequence[str],
    settle: Settle,
    token: int | None,
    without_lease: bool,
    *,
    done: str | None,
) -> int:
    """Claim each refund and settle it. One that is in the state `done` already is left as it is."""
    app.need_reason()
    with _holding(app, merchant, token, without_lease) as (connection, active):
        ledger = Ledger(connection, refusals=_second(app))

        def work(refund: str) -> dict[str, Any]:
            facts = {"refund_id": refund, "token": active}
            if done is not None and _state(connection, merchant, refund) == done:
                return facts | {"outcome": f"already_{done}", "state": done}
            claim = None if token else _claim(connection, ledger, merchant, refund, active)
            if claim is not None and claim.outcome == "review":
                return facts | {"outcome": "review", "state": "review", "reason": claim.reason}
            if app.dry_run and claim is not None and claim.outcome == "claimed":
                # What settles it mustn't share the claim's transaction, and a dry run is one transaction.
                return facts | {"outcome": "would be claimed, then settled", "state": "sending"}
            with connection.transaction():
                return output.as_row(settle(ledger, merchant, refund, active))

        columns = ["refund_id", "outcome", "state", "token", "gateway_ref", "reason"]
        return _each(app, refunds, work, columns)


def _claim(connection: Connection[Any], ledger: Ledger, merchant: str, refund: str, active: int) -> Claim | None:
    """Claim it; None where it needs no claim: it is accepted, or it is final and the next call will say so."""
    try:
        with connection.transaction():
            return ledger.claim_refund(merchant, refund, active)
    except RefundFinished:
        return None
    except IllegalTransition as refusal:
        if refusal.detail.get("state") == "accepted":
            return None
        raise


def _state(connection: Connection[Any], merchant: str, refund: str) -> str | None:
    row = connection.execute(
        "select state from ledger.refund where merchant_id = %s and refund_id = %s", (merchant, refund)
    ).fetchone()
    return None if row is None else str(row[0])


@contextmanager
def _holding(app: App, merchant: str, token: int | None, without_lease: bool) -> Iterator[tuple[Connection[Any], int]]:
    """A connection and an active token for the merchant, under its lease; rolled back at the end of a dry run."""
    resource = f"settle:{merchant}"
    with app.connect() as connection:
        if token is not None:
            with connection.transaction(force_rollback=True) if app.dry_run else _nothing():
                yield connection, token
            return
        if without_lease or app.dry_run:
            if not without_lease:
                _refuse_live_holder(app, connection, resource)
            with connection.transaction(force_rollback=True) if app.dry_run else _nothing():
                if without_lease:
                    output.say(f"without a lease: whoever holds {resource} is fenced out from now on")
                yield connection, _activate(connection, resource)
            return
        with _lease(app, connection, resource) as lease:
            yield connection, lease.token


def _lease(app: App, connection: Connection[Any], resource: str) -> Lease | AdvisoryLease:
    kind = Ledger(connection).get_kind("settle")
    if kind.lock == "advisory":
        return AdvisoryLease(resource, db=app.connect)
    url = app.need_redis("the leases of kind settle live in Redis, and a live holder can't be seen without it")
    return Lease(resource, db=app.connect, redis=url)


def _refuse_live_holder(app: App, connection: Connection[Any], resource: str) -> None:
    """For a dry run, which takes no lease: say what the command itself would say. Raises Busy."""
    from ledger.lease.redis_lock import RedisLock

    if Ledger(connection).get_kind("settle").lock == "advisory":
        holders: list[Any] = Ledger(connection).job_holders(resource)
        held = ", ".join(f"pid {holder['pid']}" for holder in holders)
    else:
        url = app.need_redis("the leases of kind settle live in Redis, and a live holder can't be seen without it")
        entry = RedisLock(url, resource).peek()
        held = "" if entry is None else f"{entry.holder} with token {entry.token}, for {entry.ttl_left:.1f} s more"
    if held:
        raise Busy(f"the lease on {resource} is held by {held}; nothing was changed", {"resource": resource}, BUSY_HINT)


def _activate(connection: Connection[Any], resource: str) -> int:
    ledger = Ledger(connection)
    token = ledger.draw_token(resource)
    ledger.activate_token(resource, token, new_holder())
    return token


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _each(app: App, refunds: Sequence[str], work: Callable[[str], dict[str, Any]], columns: Sequence[str]) -> int:
    """Do it for each; one bad row doesn't stop the rest, a refusal by the fence does."""
    results: list[dict[str, Any]] = []
    codes: list[int] = []
    for refund in refunds:
        try:
            results.append(work(refund))
        except LedgerError as error:
            if len(refunds) == 1:
                raise
            message, _, hint = describe(error)
            codes.append(exit_code(error))
            results.append(
                {"refund_id": refund, "outcome": getattr(error, "code", "busy"), "reason": message, "hint": hint}
            )
            if isinstance(error, FenceRefusal):
                break
    output.rows(app, results, columns)
    if app.dry_run:
        output.say("dry run: rolled back, nothing was changed")
    if any(result.get("state") == "review" or result.get("outcome") == "review" for result in results):
        codes.append(PARTLY)
    return PARTLY if codes else 0


def _second(app: App) -> Any:
    """Where refusals are recorded: a connection of its own, opened when there is one to record."""

    class Second:
        @contextmanager
        def connection(self) -> Iterator[Connection[Any]]:
            with app.connect() as connection:
                yield connection

    return Second()


def _ids(arguments: tuple[str, ...]) -> Iterator[str]:
    for name, _ in _pairs(arguments):
        yield name


def _pairs(arguments: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Refund ids, each with what stands beside it; - reads them from stdin, a line each."""
    for argument in arguments:
        if argument != "-":
            yield argument, None
            continue
        for line in sys.stdin:
            cells = line.replace(",", " ").split()
            if cells and not cells[0].startswith("#"):
                yield cells[0], cells[1] if len(cells) > 1 else None
