"""Writes to one's own protected tables, under a token: `with fenced(db, resource) as job`."""

from __future__ import annotations

from ledger.fencing.block import Fenced, fenced

__all__ = ["Fenced", "fenced"]
