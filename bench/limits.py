"""Why a target isn't met, where one isn't: what the limit is, how it was found, and what was tried."""

from __future__ import annotations

LIMITS: dict[str, str] = {}
