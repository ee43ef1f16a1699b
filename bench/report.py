"""What a run found, as a table for people and as JSON."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from bench.measuring import Bench, median
from bench.targets import TARGETS, Target


def as_data(bench: Bench, seconds: float, load: float) -> dict[str, Any]:
    """The flat object: each name to its ratio, with the rounds' `.min` and `.max`; then what it was measured on."""
    data: dict[str, Any] = {}
    for name, values in bench.figures.items():
        data[name] = _rounded(median(values))
        data[f"{name}.min"], data[f"{name}.max"] = _rounded(min(values)), _rounded(max(values))
    data["environment"] = environment(bench, seconds, load)
    data["not_measured"] = bench.missing
    data["seconds"] = bench.took
    data["beside"] = bench.beside
    data["curves"] = bench.curves
    data["shares"] = bench.shares
    return data


def environment(bench: Bench, seconds: float, load: float) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgres": bench.servers.pg,
        "psycopg": f"{version('psycopg')}, {psycopg.pq.__impl__}",
        "redis_py": version("redis"),
        "rounds": bench.rounds,
        "seconds": round(seconds),
        "load_at_start": round(load, 1),
        "day": datetime.now(UTC).date().isoformat(),
    }


def line(target: Target | None, name: str, values: list[float]) -> str:
    """One figure, as the table prints it."""
    value = median(values)
    spread = f"{_shown(min(values))} .. {_shown(max(values))}"
    bound = "" if target is None else target.bound
    met = "" if target is None else "yes" if target.is_met_by(_rounded(value)) else "no"
    return f"{name:<30} {_shown(value):>10}   {spread:<22} {bound:<9} {met}"


HEADING = f"{'name':<30} {'median':>10}   {'rounds':<22} {'target':<9} met"
BY_NAME = {target.name: target for target in TARGETS}


def _shown(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else platform.machine()
