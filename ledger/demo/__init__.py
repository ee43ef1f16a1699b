"""The demo: the same two workers, first under a TTL lock alone, then under the fence. Real servers, a real SIGSTOP."""

from __future__ import annotations

from ledger.demo.acts import Result, run

__all__ = ["Result", "run"]
