"""The lease and the gateway, as exact doubles: values that never change, and functions that return the next one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ledger.gateway import Declined, Found, Nothing, Sent

Lease = tuple[str, int] | None
"""What the key of the lease holds: a holder and its token; None where there is no key."""


def take(lease: Lease, value: tuple[str, int]) -> Lease:
    """SET NX; a key that holds this very value is success."""
    return lease or value


def swap(lease: Lease, old: tuple[str, int], new: tuple[str, int]) -> Lease:
    """Compare and set."""
    return new if lease in (old, new) else lease


def give_back(lease: Lease, value: tuple[str, int]) -> Lease:
    """Compare and delete."""
    return None if lease == value else lease


class Request(NamedTuple):
    """A refund on its way to the gateway."""

    key: str
    amount_minor: int


class Gateway(NamedTuple):
    """A gateway that remembers keys for ever, the money it moved, and the requests that have not arrived yet."""

    remembers: tuple[tuple[str, Sent | Declined], ...] = ()
    movements: tuple[Request, ...] = ()
    late: tuple[Request, ...] = ()
    keyed: bool = True

    def find(self, key: str) -> Found:
        """What it has under a key."""
        return next((answer for known, answer in self.remembers if known == key), Nothing())

    def sends(self, request: Request) -> tuple[Gateway, Found]:
        """Move the money, once for each key."""
        known = self.find(request.key)
        if self.keyed and not isinstance(known, Nothing):
            return self, known
        answer = Sent(f"re_{request.key.rpartition('/')[2]}", request.amount_minor, "EUR")
        return self._remembering(request.key, answer)._replace(movements=(*self.movements, request)), answer

    def declines(self, request: Request, *, remembered: bool) -> tuple[Gateway, Found]:
        """Refuse for good, or for now. Not what is remembered already."""
        known = self.find(request.key)
        if not isinstance(known, Nothing):
            return self, known
        answer = Declined("card closed" if remembered else "try later", remembered)
        return self._remembering(request.key, answer) if remembered else self, answer

    def delays(self, request: Request) -> Gateway:
        """Nothing arrives yet."""
        return self._replace(late=(*self.late, request))

    def delivers(self) -> Gateway:
        """The oldest late request arrives; nobody waits for its answer."""
        return self._replace(late=self.late[1:]).sends(self.late[0])[0]

    def _remembering(self, key: str, answer: Sent | Declined) -> Gateway:
        others = tuple(one for one in self.remembers if one[0] != key)
        return self._replace(remembers=tuple(sorted((*others, (key, answer)), key=lambda one: one[0])))


def plainly(answer: Found) -> Found:
    """The answer to a request, where the gateway names only its reference. To a question it tells all."""
    return replace(answer, amount_minor=None, currency=None) if isinstance(answer, Sent) else answer
