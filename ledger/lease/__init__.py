"""The lease: the right to try, kept alive by a watchdog. The fence in Postgres does the rest."""

from __future__ import annotations

from ledger.lease.lease import AdvisoryLease, AsyncAdvisoryLease, AsyncLease, Lease, new_holder

__all__ = ["AdvisoryLease", "AsyncAdvisoryLease", "AsyncLease", "Lease", "new_holder"]
