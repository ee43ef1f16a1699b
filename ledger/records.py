"""What comes back from the ledger's functions, as frozen records. Money is in minor units, times are aware."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Added:
    """What adding a refund came to. `outcome`: `added`, or `already` when the same refund was there."""

    merchant_id: str
    refund_id: str
    outcome: str
    state: str
    amount_minor: int
    currency: str
    payment_ref: str | None
    gateway: str | None
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed refund.

    `outcome`: `claimed`, send it; `reclaimed` or `taken_over`, ask the gateway first; `review`, not taken, a
    person must look (`reason` says why).
    """

    merchant_id: str
    refund_id: str
    amount_minor: int
    currency: str
    payment_ref: str | None
    gateway: str | None
    idempotency_key: str
    attempt: int
    outcome: str
    reason: str | None
    previous_state: str
    previous_token: int | None
    first_claimed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Move:
    """A refund after a call that settles it. `outcome` says what was done, or that it was done before."""

    merchant_id: str
    refund_id: str
    outcome: str
    reason: str | None
    state: str
    previous_state: str
    token: int
    amount_minor: int
    currency: str
    idempotency_key: str
    gateway_ref: str | None
    attempts: int
    maybe_sent: bool
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """One row of a set-based call, in the order given. `outcome`: what was done, or a code like `LG203`."""

    position: int
    refund_id: str
    outcome: str
    reason: str | None
    state: str | None
    amount_minor: int | None
    currency: str | None
    gateway_ref: str | None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job and its limits; `known` is False where these are the defaults of a kind never used."""

    kind: str
    lock: str
    mode: str
    lease_ttl: timedelta
    idle_limit: timedelta
    lock_limit: timedelta
    transaction_limit: timedelta | None
    max_attempts: int
    key_window: timedelta
    known: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """A kind or resource that may begin nothing now, by whom, why and since when."""

    target: str
    paused_at: datetime
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A piece of work after a call on its attempts. `outcome` says what was done; `reason` why it is in review."""

    resource: str
    work_id: str
    outcome: str
    reason: str | None
    state: str
    attempt: int
    max_attempts: int
    token: int | None


@dataclass(frozen=True, slots=True)
class Archived:
    """What one call moved into the archive, and the id after which the next one goes on; None when nothing is left."""

    refunds: int
    entries: int
    last_refund_id: str | None


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many events one call forgot, and the one after which the next call goes on; None when nothing is left."""

    events: int
    last_event_id: int | None


@dataclass(frozen=True, slots=True)
class OpenCount:
    """How many of a merchant's refunds are open in one state, and whether the token could claim them."""

    state: str
    is_claimable: bool
    refunds: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something `verify` found wrong."""

    check: str
    merchant_id: str | None
    refund_id: str | None
    resource: str | None
    finding: str
    detail: dict[str, Any]
