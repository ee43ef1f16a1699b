"""What a scenario is, and the list of all of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.proof.chaos.world import World

Run = Callable[["World"], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something that breaks.

    `without`: invariants that it can't hold, as I6. `settings`: what servers of its own are set to; None for those
    that the runs share. `needs`: says why it can't run on this machine, or nothing.
    """

    name: str
    breaks: str
    run: Run
    without: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None
    needs: Callable[[], str] | None = None


_ALL: dict[str, Scenario] = {}


def scenario(
    name: str,
    breaks: str,
    *,
    without: tuple[str, ...] = (),
    settings: Mapping[str, str] | None = None,
    needs: Callable[[], str] | None = None,
) -> Callable[[Run], Run]:
    """Put a function on the list."""

    def add(run: Run) -> Run:
        assert name not in _ALL, f"two scenarios are named {name}"
        _ALL[name] = Scenario(name, breaks, run, without, settings, needs)
        return run

    return add


def scenarios() -> dict[str, Scenario]:
    """All of them, by name."""
    folder = Path(__file__).with_name("scenarios")
    for module in sorted(found.name for found in pkgutil.iter_modules([str(folder)])):
        importlib.import_module(f"tests.proof.chaos.scenarios.{module}")
    return dict(_ALL)
