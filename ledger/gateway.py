"""What a payment gateway must offer, and the answers it may give.

The fence doesn't guard the gateway: the idempotency key does, for as long as the gateway remembers it.
Whatever a gateway raises counts as `Unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


class Payable(Protocol):
    """What a gateway sees of a refund. A record of `claim_refund` is one."""

    @property
    def merchant_id(self) -> str: ...
    @property
    def refund_id(self) -> str: ...
    @property
    def amount_minor(self) -> int: ...
    @property
    def currency(self) -> str: ...
    @property
    def payment_ref(self) -> str | None: ...
    @property
    def idempotency_key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """The money moved, once, under `ref`.

    `amount_minor` and `currency` are what the gateway says it moved, if it says so.
    """

    ref: str
    amount_minor: int | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The gateway has it and will give its final word later."""

    ref: str


@dataclass(frozen=True, slots=True)
class Declined:
    """The gateway refused.

    `remembered`: it will refuse again under the same key, so no older request can still move the money.
    Only then may the refund be recorded as failed.
    """

    reason: str
    remembered: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """No usable answer: the money may have moved or may still move."""

    reason: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The gateway has no request under that key (now; one may still arrive)."""


Answer: TypeAlias = Sent | Accepted | Declined | Unknown
Found: TypeAlias = Answer | Nothing


class Gateway(Protocol):
    """A gateway for blocking callers. `timeout` is in seconds; calls come from several threads."""

    def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        """Send the refund under its idempotency key. The same key again must not move money again."""
        ...

    def find(self, key: str, timeout: float) -> Found:
        """What the gateway has under that idempotency key."""
        ...


class AsyncGateway(Protocol):
    """The same for asyncio callers."""

    async def refund(self, refund: Payable, token: int, timeout: float) -> Answer: ...

    async def find(self, key: str, timeout: float) -> Found: ...
