"""How things are measured: variants take turns in one run, and a figure is the median of its rounds."""

from __future__ import annotations

import importlib
import pkgutil
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.servers import Servers
from bench.targets import TARGETS

T = TypeVar("T")

LINUX = sys.platform == "linux"


@dataclass
class Bench:
    """One run: its servers, how many rounds, and what has been found so far."""

    servers: Servers
    rounds: int = 5
    figures: dict[str, list[float]] = field(default_factory=dict)
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    beside: dict[str, list[str]] = field(default_factory=dict)
    took: dict[str, int] = field(default_factory=dict)

    def record(self, name: str, values: Sequence[float]) -> None:
        """A figure, one value a round. A name that isn't among the targets is told beside them, with no bound."""
        self.figures[name] = list(values)

    def skip(self, name: str, why: str) -> None:
        """A figure that can't be had on this system."""
        self.missing[name] = why

    def point(self, curve: str, series: str, x: float, y: float) -> None:
        """A point of a plot."""
        self.curves.setdefault(curve, {}).setdefault(series, []).append((x, y))

    def share(self, profile: str, piece: str, value: float) -> None:
        """A piece's part of the time, in microseconds."""
        self.shares.setdefault(profile, {})[piece] = value


@dataclass(frozen=True, slots=True)
class Measure:
    """A function that finds some figures. What its docstring says is what the page says."""

    names: tuple[str, ...]
    part: str
    run: Callable[[Bench], None]

    @property
    def key(self) -> str:
        """Its name in bench.json."""
        return f"{self.part}.{self.run.__name__}"

    @property
    def text(self) -> str:
        """What is measured, and on what."""
        lines = (self.run.__doc__ or "").splitlines()
        return "\n".join(line.strip() for line in lines).strip()


_MEASURES: list[Measure] = []


def measures(*names: str) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Mark a function of a part as the one that finds these figures."""

    def mark(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
        _MEASURES.append(Measure(names, run.__module__.rpartition(".")[2], run))
        return run

    return mark


def all_measures() -> list[Measure]:
    """Every measure of every part, in the order of the targets."""
    from bench import parts

    for module in pkgutil.iter_modules(parts.__path__):
        importlib.import_module(f"bench.parts.{module.name}")
    order = {target.name: position for position, target in enumerate(TARGETS)}
    return sorted(_MEASURES, key=lambda measure: min((order[name] for name in measure.names), default=len(order)))


def interleaved(turns: int, variants: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Every variant has its turn, in another order each time: what disturbs the machine meets all alike."""
    found: dict[str, list[T]] = {name: [] for name in variants}
    names = list(variants)
    for _ in range(turns):
        random.shuffle(names)
        for name in names:
            found[name].append(variants[name]())
    return found


def by_round(values: Sequence[float], turns: int) -> list[float]:
    """Each round's median, where a round is this many turns."""
    return [median(values[start : start + turns]) for start in range(0, len(values), turns)]


def over(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of two variants, round by round."""
    return [value / other for value, other in zip(values, others, strict=True)]


def seconds(run: Callable[[], Any]) -> float:
    """The wall time of a call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used, by the scheduler's count; of Linux alone."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies: `percentile(waits, 0.99)`."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)
