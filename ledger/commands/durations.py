"""Durations as people type them: 30, 1.5s, 500ms, 5m, 23h."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import click

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST = timedelta(days=366)


class Duration(click.ParamType):  # type: ignore[type-arg]  # only the newest click has it generic
    """A duration; without a unit, in seconds. Zero where it makes sense."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse one, or fail with an example."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]*)", str(value).strip())
        if match is None or match[2] not in UNITS:
            self.fail(f"{value!r} is no duration. Give seconds, or 500ms, 30s, 5m, 23h.", param, ctx)
        seconds = float(match[1]) * UNITS[match[2]]
        if seconds > LONGEST.total_seconds():
            self.fail(f"{value!r} is longer than a year.", param, ctx)
        if seconds < 0.001 and not (self._zero and seconds == 0):
            self.fail(f"{value!r} is too short. Give at least 1ms.", param, ctx)
        return timedelta(seconds=seconds)


DURATION = Duration()
DURATION_OR_ZERO = Duration(zero=True)


def readable(duration: timedelta) -> str:
    """A duration in the largest units that say it, to the millisecond: 23h, 1h 30m, 1.5s."""
    seconds = round(duration.total_seconds(), 3)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        # 23h and 24h are read more easily than 1d is.
        if seconds >= size and (unit != "d" or seconds >= 2 * size):
            parts.append(f"{int(seconds // size)}{unit}")
            seconds %= size
    if seconds or not parts:
        parts.append(f"{round(seconds, 3):g}s")
    return " ".join(parts)
