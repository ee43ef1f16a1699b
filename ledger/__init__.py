"""Refunds sent once, from rows in Postgres that refuse a worker which has lost its lock.

The names here are those that most callers need; the rest is in `ledger.errors`, `ledger.gateway` and
`ledger.records`. They are loaded at their first use, so that `ledger --help` needs no database driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.client import AsyncLedger, Ledger
    from ledger.errors import Busy, LeaseLost, LeaseUnreachable, LedgerError, Refused, TransactionEnded
    from ledger.fencing import fenced
    from ledger.lease import AdvisoryLease, AsyncAdvisoryLease, AsyncLease, Lease

__version__ = "0.1.0"

__all__ = [
    "AdvisoryLease",
    "AsyncAdvisoryLease",
    "AsyncLease",
    "AsyncLedger",
    "Busy",
    "Lease",
    "LeaseLost",
    "LeaseUnreachable",
    "Ledger",
    "LedgerError",
    "Refused",
    "TransactionEnded",
    "fenced",
]

_HOMES = {
    "ledger.client": ("AsyncLedger", "Ledger"),
    "ledger.errors": ("Busy", "LeaseLost", "LeaseUnreachable", "LedgerError", "Refused", "TransactionEnded"),
    "ledger.fencing": ("fenced",),
    "ledger.lease": ("AdvisoryLease", "AsyncAdvisoryLease", "AsyncLease", "Lease"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'ledger' has no attribute {name!r}")
