"""The movements of money at a sandbox gateway, read from its log: the judge of every double send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .log import Entry, parse

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Movement:
    """Money that moved, once. `amount_minor` is in the currency's minor unit, `at` seconds since 1970."""

    ref: str
    key: str
    merchant_id: str
    refund_id: str
    amount_minor: int
    currency: str
    payment_ref: str | None
    token: int
    at: float


@dataclass(frozen=True, slots=True)
class Movements:
    """Movements in the order they happened. `torn`: the log ends in a line that a crash cut off."""

    items: tuple[Movement, ...]
    torn: bool = False

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Movement]:
        return iter(self.items)

    def of(
        self,
        merchant_id: str | None = None,
        refund_id: str | None = None,
        key: str | None = None,
        ref: str | None = None,
    ) -> Movements:
        """Those that fit everything given."""
        wanted = {"merchant_id": merchant_id, "refund_id": refund_id, "key": key, "ref": ref}
        given = {name: value for name, value in wanted.items() if value is not None}
        fitting = (m for m in self.items if all(getattr(m, name) == value for name, value in given.items()))
        return Movements(tuple(fitting), self.torn)

    @property
    def sums(self) -> dict[str, int]:
        """What moved in all, in minor units by currency."""
        sums: Counter[str] = Counter()
        for movement in self.items:
            sums[movement.currency] += movement.amount_minor
        return dict(sums)

    @property
    def keys_moved_twice(self) -> dict[str, int]:
        """Idempotency keys under which money moved more than once, and how often."""
        return _repeated(Counter(movement.key for movement in self.items))

    @property
    def refunds_moved_twice(self) -> dict[tuple[str, str], int]:
        """Refunds, as (merchant_id, refund_id), for which money moved more than once, and how often."""
        return _repeated(Counter((movement.merchant_id, movement.refund_id) for movement in self.items))


def read_movements(path: str | Path) -> Movements:
    """The movements in the log at `path`, of a gateway that runs or doesn't.

    Raises SandboxError if the file isn't such a log, OSError if it can't be read.
    """
    content = Path(path).read_bytes()
    entries, end = parse(content, Path(path))
    return Movements(
        tuple(movement(entry) for entry in entries if entry.event == "moved"), end < len(content)
    )


def movement(entry: Entry) -> Movement:
    """The movement that a `moved` line tells of."""
    order, ref, token = entry.order, entry.ref, entry.token
    assert order is not None
    assert ref is not None
    assert token is not None
    return Movement(
        ref=ref,
        key=entry.key,
        merchant_id=order.merchant_id,
        refund_id=order.refund_id,
        amount_minor=order.amount_minor,
        currency=order.currency,
        payment_ref=order.payment_ref,
        token=token,
        at=entry.at,
    )


def _repeated(counts: Counter[T]) -> dict[T, int]:
    return {item: count for item, count in counts.items() if count > 1}
