"""Durations as people type them: 30, 1.5s, 500ms, 5m, 23h."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import click

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType[timedelta]):
    """A duration; without a unit, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse one, or fail with an example."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]*)", str(value).strip())
        if match is None or match[2] not in UNITS:
            self.fail(f"{value!r} is no duration. Give seconds, or 500ms, 30s, 5m, 23h.", param, ctx)
        return timedelta(seconds=float(match[1]) * UNITS[match[2]])


DURATION = Duration()
