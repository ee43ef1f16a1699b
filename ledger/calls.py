"""One builder per SQL function: the statement, its arguments, the shape of what comes back. No I/O.

The parameters have the names that they have in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Generic, LiteralString, TypeVar, cast

from psycopg.rows import RowFactory, scalar_row
from psycopg.types.json import Jsonb

from ledger.records import Added, Archived, Attempt, Claim, Finding, Kind, Move, OpenCount, Pause, Pruned, RowOutcome

T = TypeVar("T")

# A parameter's name has one type in the whole API, so that every statement can say it.
TYPES = {
    "actor": "text",
    "after_event_id": "bigint",
    "after_refund_id": "text",
    "amount_minor": "bigint",
    "amounts_minor": "bigint[]",
    "before": "timestamp with time zone",
    "code": "text",
    "column_name": "text",
    "currencies": "text[]",
    "currency": "text",
    "detail": "jsonb",
    "evidence": "jsonb",
    "failover": "text",
    "forced": "boolean",
    "gateway": "text",
    "gateway_ref": "text",
    "gateway_refs": "text[]",
    "gateways": "text[]",
    "held": "interval",
    "holder": "text",
    "idempotency_key": "text",
    "idempotency_keys": "text[]",
    "idle_limit": "interval",
    "key_window": "interval",
    "kind": "text",
    "late": "integer",
    "lease_ttl": "interval",
    "lock": "text",
    "lock_limit": "interval",
    "max_attempts": "integer",
    "max_rows": "integer",
    "merchant_id": "text",
    "message": "text",
    "mode": "text",
    "nothing_lost": "boolean",
    "outcome": "text",
    "payment_ref": "text",
    "payment_refs": "text[]",
    "quiet_for": "interval",
    "reason": "text",
    "reclaim": "boolean",
    "refund_id": "text",
    "refund_ids": "text[]",
    "relation": "regclass",
    "renewals": "integer",
    "resource": "text",
    "stamp": "boolean",
    "target": "text",
    "to_state": "text",
    "token": "bigint",
    "tokens": "jsonb",
    "transaction_limit": "interval",
    "wait": "interval",
    "work_id": "text",
}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A statement for one SQL function. `name` is the function's."""

    name: str
    statement: str
    arguments: Mapping[str, Any]
    row: RowFactory[T]


def _scalar(name: LiteralString, **arguments: Any) -> Call[Any]:
    return Call(name, _select(name, tuple(arguments)), arguments, scalar_row)


def _void(name: LiteralString, **arguments: Any) -> Call[None]:
    return Call(name, _select(name, tuple(arguments)), arguments, lambda cursor: lambda values: None)


def _rows(name: LiteralString, record: type[T], **arguments: Any) -> Call[T]:
    kind = cast("Any", record)
    return Call(name, _select_from(name, kind, tuple(arguments)), arguments, _as(kind))


# What a call says is the same each time: it is put together once, and not for each refund.


@cache
def _select(name: LiteralString, parameters: tuple[str, ...]) -> str:
    return f"select ledger.{name}({_named(parameters)})"


@cache
def _select_from(name: LiteralString, record: type, parameters: tuple[str, ...]) -> str:
    # Columns are named, never *: a column that is added later must not break an older worker.
    columns = ", ".join(f'"{field.name}"' for field in fields(cast("Any", record)))
    return f"select {columns} from ledger.{name}({_named(parameters)})"  # noqa: S608 -- only names from this file


@cache
def _as(record: Callable[..., T]) -> RowFactory[T]:
    """Records made from rows whose columns are their fields, in their order."""

    def make(values: Sequence[Any]) -> T:
        return record(*values)

    return lambda cursor: make


def _named(parameters: tuple[str, ...]) -> str:
    return ", ".join(f"{name} => %({name})s::{TYPES[name]}" for name in parameters)


def _json(evidence: Mapping[str, Any] | None) -> Jsonb | None:
    return None if evidence is None else Jsonb(dict(evidence))


def _whole(amount_minor: int) -> int:
    # The cast to bigint would round what isn't whole, and money with it. None is for Postgres to refuse.
    if isinstance(amount_minor, bool) or not isinstance(amount_minor, int | None):
        raise TypeError(f"an amount is {amount_minor!r}. Give whole minor units, 7025 for 70.25 EUR")
    return amount_minor


def draw_token(resource: str) -> Call[int]:
    """Draw a number for one attempt at a resource. Draw before taking the lease, activate after it.

    Raises BadArgument, RecoveryNeeded or Paused.
    """
    return _scalar("draw_token", resource=resource)


def activate_token(resource: str, token: int, holder: str) -> Call[None]:
    """Make a drawn token the only valid one of its resource; waits for writes under the older one to end.

    Raises BadArgument, Busy, RecoveryNeeded, Paused, TokenNotDrawn or StaleToken.
    """
    return _void("activate_token", resource=resource, token=token, holder=holder)


def get_kind(kind: str) -> Call[Kind]:
    """A kind's limits, or the defaults of one that was never used."""
    return _rows("get_kind", Kind, kind=kind)


def set_kind(
    kind: str,
    *,
    lock: str | None = None,
    lease_ttl: timedelta | None = None,
    idle_limit: timedelta | None = None,
    lock_limit: timedelta | None = None,
    transaction_limit: timedelta | None = None,
    max_attempts: int | None = None,
    key_window: timedelta | None = None,
    actor: str | None = None,
    reason: str | None = None,
) -> Call[Kind]:
    """Change a kind's limits or where its leases live; None leaves a value as it is.

    Raises BadArgument.
    """
    return _rows(
        "set_kind",
        Kind,
        kind=kind,
        lock=lock,
        lease_ttl=lease_ttl,
        idle_limit=idle_limit,
        lock_limit=lock_limit,
        transaction_limit=transaction_limit,
        max_attempts=max_attempts,
        key_window=key_window,
        actor=actor,
        reason=reason,
    )


def lock_job(resource: str, holder: str) -> Call[int]:
    """Take a job's advisory lock and return an active token, all in the caller's transaction.

    Raises BadArgument, RecoveryNeeded, Paused, LockHeld or Busy.
    """
    return _scalar("lock_job", resource=resource, holder=holder)


def hold_job(resource: str, wait: timedelta = timedelta(0)) -> Call[None]:
    """Hold a job's advisory lock for the session, waiting up to `wait` for it.

    Raises BadArgument, RecoveryNeeded or LockHeld.
    """
    return _void("hold_job", resource=resource, wait=wait)


def job_holders(resource: str) -> Call[list[dict[str, Any]]]:
    """The sessions that hold a job's advisory lock: pid, user, application, since."""
    return _scalar("job_holders", resource=resource)


def free_job(resource: str) -> Call[bool]:
    """Give back a lock that hold_job took; False if this session doesn't hold it."""
    return _scalar("free_job", resource=resource)


def add_refund(
    merchant_id: str,
    refund_id: str,
    amount_minor: int,
    currency: str,
    payment_ref: str | None = None,
    gateway: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Added]:
    """Record a refund that is to be sent, once.

    Raises BadArgument, BadAmount or ConflictingDuplicate.
    """
    return _rows(
        "add_refund",
        Added,
        merchant_id=merchant_id,
        refund_id=refund_id,
        amount_minor=_whole(amount_minor),
        currency=currency,
        payment_ref=payment_ref,
        gateway=gateway,
        idempotency_key=idempotency_key,
    )


def add_refunds(
    merchant_id: str,
    refund_ids: Sequence[str],
    amounts_minor: Sequence[int],
    currencies: Sequence[str],
    payment_refs: Sequence[str | None] | None = None,
    gateways: Sequence[str | None] | None = None,
    idempotency_keys: Sequence[str | None] | None = None,
) -> Call[RowOutcome]:
    """Record many refunds of one merchant, 1,000 at most. A row with other content comes back as LG301.

    Raises BadArgument or BadAmount.
    """
    return _rows(
        "add_refunds",
        RowOutcome,
        merchant_id=merchant_id,
        refund_ids=list(refund_ids),
        amounts_minor=[_whole(amount_minor) for amount_minor in amounts_minor],
        currencies=list(currencies),
        payment_refs=None if payment_refs is None else list(payment_refs),
        gateways=None if gateways is None else list(gateways),
        idempotency_keys=None if idempotency_keys is None else list(idempotency_keys),
    )


def claim_refund(merchant_id: str, refund_id: str, token: int) -> Call[Claim]:
    """Take one refund for sending. Commit the claim before the gateway is called.

    Raises BadArgument, Busy, RecoveryNeeded, Paused, TokenNotDrawn, TokenNotActive, StaleToken, NoSuchRefund,
    RefundFinished or IllegalTransition.
    """
    return _rows("claim_refund", Claim, merchant_id=merchant_id, refund_id=refund_id, token=token)


def claim_refunds(
    merchant_id: str, token: int, max_rows: int, after_refund_id: str = "", reclaim: bool = False
) -> Call[Claim]:
    """Take a merchant's next refunds for sending, in the order of their ids, after a cursor.

    A short or empty answer isn't the end of the work: rows that someone has locked are passed over.
    Raises BadArgument, Busy, RecoveryNeeded, Paused, TokenNotDrawn, TokenNotActive or StaleToken.
    """
    return _rows(
        "claim_refunds",
        Claim,
        merchant_id=merchant_id,
        token=token,
        max_rows=max_rows,
        after_refund_id=after_refund_id,
        reclaim=reclaim,
    )


def confirm_refund(
    merchant_id: str,
    refund_id: str,
    token: int,
    gateway_ref: str,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Record that the gateway sent a refund. Evidence that names another amount or currency leads to review.

    Raises BadArgument, Busy, RecoveryNeeded, TokenNotDrawn, TokenNotActive, StaleToken, NoSuchRefund,
    GatewayRefConflict, RefundFinished or NotClaimed.
    """
    return _rows(
        "confirm_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        token=token,
        gateway_ref=gateway_ref,
        evidence=_json(evidence),
    )


def confirm_refunds(
    merchant_id: str, token: int, refund_ids: Sequence[str], gateway_refs: Sequence[str]
) -> Call[RowOutcome]:
    """Record many refunds of one merchant as sent, 1,000 at most. A row that can't be comes back as its code.

    Raises BadArgument, Busy, RecoveryNeeded, TokenNotDrawn, TokenNotActive or StaleToken.
    """
    return _rows(
        "confirm_refunds",
        RowOutcome,
        merchant_id=merchant_id,
        token=token,
        refund_ids=list(refund_ids),
        gateway_refs=list(gateway_refs),
    )


def fail_refund(
    merchant_id: str,
    refund_id: str,
    token: int,
    reason: str,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Record that the gateway refused a refund for good, and remembers it under the refund's key.

    Raises what confirm_refund raises, except GatewayRefConflict.
    """
    return _rows(
        "fail_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        token=token,
        reason=reason,
        evidence=_json(evidence),
    )


def release_refund(
    merchant_id: str,
    refund_id: str,
    token: int,
    reason: str,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Give a claimed refund back, proven not sent. One that may have been sent before becomes unknown.

    Raises what confirm_refund raises, except GatewayRefConflict.
    """
    return _rows(
        "release_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        token=token,
        reason=reason,
        evidence=_json(evidence),
    )


def mark_unknown(
    merchant_id: str,
    refund_id: str,
    token: int,
    reason: str,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Record that the outcome at the gateway isn't known; the next claim is told so.

    Raises what confirm_refund raises, except GatewayRefConflict.
    """
    return _rows(
        "mark_unknown",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        token=token,
        reason=reason,
        evidence=_json(evidence),
    )


def accept_refund(
    merchant_id: str,
    refund_id: str,
    token: int,
    gateway_ref: str,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Record that the gateway has a refund and will give its final word later.

    Raises what confirm_refund raises.
    """
    return _rows(
        "accept_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        token=token,
        gateway_ref=gateway_ref,
        evidence=_json(evidence),
    )


def record_refusal(code: str, message: str, detail: Mapping[str, Any]) -> Call[int]:
    """Keep a record of a refusal, on another connection than the one it happened on.

    Raises BadArgument.
    """
    return _scalar("record_refusal", code=code, message=message, detail=_json(detail))


def record_hold(resource: str, token: int, held: timedelta, renewals: int, late: int) -> Call[None]:
    """Keep a record of how long a lease was held, how often it was renewed and how often that was late.

    Raises BadArgument.
    """
    return _void("record_hold", resource=resource, token=token, held=held, renewals=renewals, late=late)


def begin_attempt(resource: str, work_id: str, token: int) -> Call[Attempt]:
    """Count an attempt at a piece of work, before it begins; commit it first. Past the kind's limit: review.

    Raises BadArgument, RecoveryNeeded, Paused, Busy, TokenNotDrawn, TokenNotActive or StaleToken.
    """
    return _rows("begin_attempt", Attempt, resource=resource, work_id=work_id, token=token)


def end_attempt(resource: str, work_id: str, token: int, outcome: str, reason: str | None = None) -> Call[Attempt]:
    """Say how an attempt ended: `done`, `failed` (may be tried again) or `review` (a person must look).

    Raises BadArgument, RecoveryNeeded, Busy, TokenNotDrawn, TokenNotActive or StaleToken.
    """
    return _rows(
        "end_attempt", Attempt, resource=resource, work_id=work_id, token=token, outcome=outcome, reason=reason
    )


def requeue_work(resource: str, work_id: str, actor: str | None = None, reason: str | None = None) -> Call[bool]:
    """Put work in review back, its attempts begun anew; False if it wasn't in review. Raises BadArgument."""
    return _scalar("requeue_work", resource=resource, work_id=work_id, actor=actor, reason=reason)


def cancel_refund(
    merchant_id: str,
    refund_id: str,
    actor: str | None = None,
    reason: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Cancel a refund that was certainly never sent; by a person.

    Raises BadArgument, RecoveryNeeded, NoSuchRefund, RefundFinished or IllegalTransition.
    """
    return _rows(
        "cancel_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        actor=actor,
        reason=reason,
        evidence=_json(evidence),
    )


def review_refund(
    merchant_id: str,
    refund_id: str,
    actor: str | None = None,
    reason: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Take a refund out of the work until a person has looked at it. Raises what cancel_refund raises."""
    return _rows(
        "review_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        actor=actor,
        reason=reason,
        evidence=_json(evidence),
    )


def resolve_refund(
    merchant_id: str,
    refund_id: str,
    to_state: str,
    gateway_ref: str | None = None,
    actor: str | None = None,
    reason: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Record what became of a refund in review or accepted: `sent`, `failed` or `returned`; by a person or a webhook.

    Raises BadArgument, RecoveryNeeded, NoSuchRefund, GatewayRefConflict, RefundFinished or IllegalTransition.
    """
    return _rows(
        "resolve_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        to_state=to_state,
        gateway_ref=gateway_ref,
        actor=actor,
        reason=reason,
        evidence=_json(evidence),
    )


def return_refund(
    merchant_id: str,
    refund_id: str,
    gateway_ref: str | None = None,
    actor: str | None = None,
    reason: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Record that a sent refund came back. Raises what resolve_refund raises."""
    return _rows(
        "return_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        gateway_ref=gateway_ref,
        actor=actor,
        reason=reason,
        evidence=_json(evidence),
    )


def requeue_refund(
    merchant_id: str,
    refund_id: str,
    actor: str | None = None,
    reason: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Call[Move]:
    """Put a refund in review back to work; the evidence must say `{"not_at_gateway": true}`.

    Raises what cancel_refund raises.
    """
    return _rows(
        "requeue_refund",
        Move,
        merchant_id=merchant_id,
        refund_id=refund_id,
        actor=actor,
        reason=reason,
        evidence=_json(evidence),
    )


def pause(target: str, actor: str | None = None, reason: str | None = None) -> Call[Pause]:
    """Stop a kind or a resource from beginning anything; what is out still gets recorded. Raises BadArgument."""
    return _rows("pause", Pause, target=target, actor=actor, reason=reason)


def resume(target: str, actor: str | None = None, reason: str | None = None) -> Call[bool]:
    """Let a paused kind or resource go on; False if it wasn't paused. Raises BadArgument."""
    return _scalar("resume", target=target, actor=actor, reason=reason)


def break_lease(resource: str, holder: str, actor: str | None = None, reason: str | None = None) -> Call[int]:
    """Fence out whoever holds a resource, by a person; returns the token, under which to go on. Then clear the lease.

    Raises BadArgument, RecoveryNeeded, Paused or Busy.
    """
    return _scalar("break_lease", resource=resource, holder=holder, actor=actor, reason=reason)


def present_token(resource: str, token: int) -> Call[None]:
    """Present a token for this transaction's writes to protected tables.

    Raises BadArgument, Busy, RecoveryNeeded, TokenNotDrawn, TokenNotActive or StaleToken.
    """
    return _scalar("present_token", resource=resource, token=token)


def present_tokens(tokens: Mapping[str, int]) -> Call[None]:
    """Present several tokens, by resource, 500 at most. Raises what present_token raises."""
    return _scalar("present_tokens", tokens=_json(tokens))


def protect_table(
    relation: str,
    resource: str | None = None,
    kind: str | None = None,
    column_name: str | None = None,
    stamp: bool = False,
) -> Call[None]:
    """Fence an existing table; run by its owner. Raises BadArgument, or Busy when the table can't be had in 2 s."""
    return _scalar(
        "protect_table", relation=relation, resource=resource, kind=kind, column_name=column_name, stamp=stamp
    )


def unprotect_table(relation: str) -> Call[None]:
    """Take a table's protection off; run by its owner. Raises BadArgument, or Busy."""
    return _scalar("unprotect_table", relation=relation)


def exempt_transaction(relation: str, actor: str | None = None, reason: str | None = None) -> Call[None]:
    """Let this transaction write to a protected table without a token, on record. Raises BadArgument or Busy."""
    return _scalar("exempt_transaction", relation=relation, actor=actor, reason=reason)


def set_mode(
    kind: str,
    mode: str,
    actor: str | None = None,
    reason: str | None = None,
    forced: bool = False,
    quiet_for: timedelta = timedelta(hours=24),
) -> Call[Kind]:
    """Change how a kind's protected tables are checked: `off`, `shadow` or `enforce`. Raises BadArgument or Busy."""
    return _rows("set_mode", Kind, kind=kind, mode=mode, actor=actor, reason=reason, forced=forced, quiet_for=quiet_for)


def set_failover(failover: str, actor: str | None = None, reason: str | None = None) -> Call[None]:
    """What happens on a new timeline: `hold` or `lift`. Raises BadArgument."""
    return _scalar("set_failover", failover=failover, actor=actor, reason=reason)


def archive_refunds(
    merchant_id: str,
    before: datetime,
    max_rows: int,
    after_refund_id: str = "",
    actor: str | None = None,
    reason: str | None = None,
) -> Call[Archived]:
    """Move finished refunds that last changed before a time into the archive; go on after `last_refund_id`.

    Raises BadArgument.
    """
    return _rows(
        "archive_refunds",
        Archived,
        merchant_id=merchant_id,
        before=before,
        max_rows=max_rows,
        after_refund_id=after_refund_id,
        actor=actor,
        reason=reason,
    )


def prune_refusals(before: datetime, max_rows: int, actor: str | None = None, reason: str | None = None) -> Call[int]:
    """Forget refusals recorded before a time; returns how many. Raises BadArgument."""
    return _scalar("prune_refusals", before=before, max_rows=max_rows, actor=actor, reason=reason)


def prune_draws(before: datetime, max_rows: int, actor: str | None = None, reason: str | None = None) -> Call[int]:
    """Forget numbers drawn before a time and never activated; returns how many. Raises BadArgument."""
    return _scalar("prune_draws", before=before, max_rows=max_rows, actor=actor, reason=reason)


def prune_events(
    before: datetime,
    max_rows: int,
    after_event_id: int = 0,
    actor: str | None = None,
    reason: str | None = None,
) -> Call[Pruned]:
    """Forget how workers came and went before a time, where nothing was moved; go on after `last_event_id`.

    Raises BadArgument.
    """
    return _rows(
        "prune_events",
        Pruned,
        before=before,
        max_rows=max_rows,
        after_event_id=after_event_id,
        actor=actor,
        reason=reason,
    )


def prune_work(before: datetime, max_rows: int, actor: str | None = None, reason: str | None = None) -> Call[int]:
    """Forget work that was done before a time; returns how many pieces. Raises BadArgument."""
    return _scalar("prune_work", before=before, max_rows=max_rows, actor=actor, reason=reason)


def count_open(merchant_id: str, token: int | None = None) -> Call[OpenCount]:
    """A merchant's open refunds by state, and whether a claim under `token` could take them."""
    return _rows("count_open", OpenCount, merchant_id=merchant_id, token=token)


def verify(merchant_id: str | None = None) -> Call[Finding]:
    """Compare everything that is written down twice; no finding means that nothing is wrong."""
    return _rows("verify", Finding, merchant_id=merchant_id)


def recover_failover(nothing_lost: bool = False, actor: str | None = None, reason: str | None = None) -> Call[str]:
    """Let work go on after a promotion or a restore.

    Returns `nothing_to_do`, `acknowledged` or `recovered`. Raises BadArgument.
    """
    return _scalar("recover_failover", nothing_lost=nothing_lost, actor=actor, reason=reason)
