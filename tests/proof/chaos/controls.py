"""Guards taken away, one at a time: the invariant that each holds up must break, or the runs prove nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tests.proof.chaos.runs import run
from tests.proof.chaos.scenario import Run, Scenario
from tests.proof.chaos.world import Stage, World

TRIES = 10

say = functools.partial(print, flush=True)


@dataclass(frozen=True, slots=True)
class Control:
    """A guard that is taken away, what then happens, and the invariants of which one must break."""

    guard: str
    breaks: tuple[str, ...]
    without: Callable[[World], None]
    run: Run


def checked(pg: str) -> tuple[int, int, list[str]]:
    """How many guards there are, how many were missed, and those that weren't."""
    say("\nwithout this guard           breaks    try")
    blind, all_of_them = [], CONTROLS
    with Stage.open(pg) as stage:
        for control in all_of_them:
            broken = _tries(stage, control)
            if broken is None:
                blind.append(f"without {control.guard}: {' or '.join(control.breaks)} held {TRIES} times")
            say(
                f"{control.guard:<28} {broken[0] if broken else 'NOTHING':<9} {broken[1] if broken else TRIES}",
            )
    return len(all_of_them), len(all_of_them) - len(blind), blind


def _tries(stage: Stage, control: Control) -> tuple[str, int] | None:
    scenario = Scenario(f"without {control.guard}", "", control.run)
    for seed in range(1, TRIES + 1):
        outcome = run(stage, scenario, seed, control.without)
        for breach in outcome.breaches:
            name = breach.split(":")[0]
            if name in control.breaks:
                return name, seed
    return None


CONTROLS: tuple[Control, ...] = ()
