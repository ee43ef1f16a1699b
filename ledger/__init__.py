"""Refunds sent once, from rows in Postgres that refuse a worker which has lost its lock."""

from __future__ import annotations

__version__ = "0.1.0"
