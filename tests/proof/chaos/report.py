"""Runs the scenarios and the controls, and says what came of them: a table, and JSON for programs."""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Iterable, Sequence

from tests.proof.chaos import controls, sometimes
from tests.proof.chaos.runs import Outcome, run_all
from tests.proof.chaos.scenario import Scenario

REPLAY = "python -m tests.proof.chaos --scenario {} --seed {}"
say = functools.partial(print, flush=True)

HEAD = ("scenario", "seeds", "faults", "movements", "refusals", "recovery", "")
LINE = "{:<28} {:>5} {:>7} {:>10} {:>9} {:>9}  {}"


def table(known: Iterable[Scenario]) -> list[str]:
    """The scenarios as docs/proof.md has them."""
    return ["| scenario | what breaks |", "|---|---|", *(f"| `{each.name}` | {each.breaks} |" for each in known)]


def reported(asked: argparse.Namespace, chosen: Sequence[Scenario]) -> int:
    """Run, report, and give the exit code."""
    began = time.monotonic()
    skipped = {each.name: reason for each in chosen if each.needs is not None and (reason := each.needs())}
    seeds = [asked.seed] if asked.seed is not None else list(range(1, asked.seeds + 1))
    outcomes: list[Outcome] = []
    failed: list[str] = []
    if asked.controls != "only":
        outcomes = _scenarios(asked, [each for each in chosen if each.name not in skipped], seeds)
        failed = failures(outcomes)
        if not asked.scenario:
            failed += _never(outcomes)
    for name, reason in skipped.items():
        say(f"{name} is skipped: {reason}")
    expected = found = 0
    if asked.controls:
        expected, found, blind = controls.checked(asked.pg, asked.jobs)
        failed += blind
    seconds = time.monotonic() - began
    _sum_up(outcomes, expected, found, failed, seconds)
    if asked.json is not None:
        _write(asked, outcomes, expected, found, failed, skipped, seconds)
    return 1 if failed else 0


def _scenarios(asked: argparse.Namespace, chosen: Sequence[Scenario], seeds: Sequence[int]) -> list[Outcome]:
    say(LINE.format(*HEAD))
    work = [(each, seed) for each in chosen for seed in seeds]
    outcomes: dict[str, list[Outcome]] = {each.name: [] for each in chosen}
    for outcome in run_all(work, min(asked.jobs, len(work)) or 1, asked.pg):
        of_scenario = outcomes[outcome.scenario]
        of_scenario.append(outcome)
        if outcome.breaches or asked.story:
            _tell(outcome, whole=asked.story or sum(bool(each.breaches) for each in of_scenario) == 1)
        if len(of_scenario) == len(seeds):
            _row(outcome.scenario, of_scenario)
    return [outcome for each in outcomes.values() for outcome in each]


def _row(name: str, outcomes: Sequence[Outcome]) -> None:
    broken = sum(bool(outcome.breaches) for outcome in outcomes)
    say(
        LINE.format(
            name,
            len(outcomes),
            sum(outcome.faults for outcome in outcomes),
            sum(outcome.movements for outcome in outcomes),
            sum(outcome.refusals for outcome in outcomes),
            f"{max(outcome.recovery for outcome in outcomes):.2f} s",
            f"{broken} FAILED" if broken else "ok",
        ),
    )


def _tell(outcome: Outcome, *, whole: bool) -> None:
    say(f"\n{outcome.scenario}, seed {outcome.seed}")
    if whole:
        say("\n".join(f"  {line}" for line in outcome.story))
    for breach in outcome.breaches:
        say(f"  BROKEN  {breach}")
    say(f"  again: {REPLAY.format(outcome.scenario, outcome.seed)}\n")


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """What broke in them, each with the command that shows it again."""
    return [
        f"{outcome.scenario}: {breach.splitlines()[-1]}; {REPLAY.format(outcome.scenario, outcome.seed)}"
        for outcome in outcomes
        for breach in outcome.breaches
    ]


def _never(outcomes: Sequence[Outcome]) -> list[str]:
    def together(sets: Iterable[set]) -> set:  # type: ignore[type-arg]
        return set().union(*sets)

    never = sometimes.missing(
        together(outcome.codes for outcome in outcomes),
        together(outcome.transitions for outcome in outcomes),
        together(outcome.legal for outcome in outcomes),
        together(outcome.hits for outcome in outcomes),
    )
    say("\n" + ("\n".join(never) if never else "every code, every move and every lost answer happened at least once"))
    return never


def _sum_up(outcomes: Sequence[Outcome], expected: int, found: int, failed: Sequence[str], seconds: float) -> None:
    say(
        f"\n{len(outcomes)} runs of {len({outcome.scenario for outcome in outcomes})} scenarios, "
        f"{sum(outcome.faults for outcome in outcomes)} faults, "
        f"{sum(outcome.movements for outcome in outcomes)} movements, "
        f"{sum(outcome.refusals for outcome in outcomes)} refusals; "
        + (f"{found} of {expected} guards were noticed to be gone; " if expected else "")
        + f"{seconds:.0f} s"
    )
    for failure in failed:
        say(f"failed: {failure}")


def _write(
    asked: argparse.Namespace,
    outcomes: Sequence[Outcome],
    expected: int,
    found: int,
    failed: Sequence[str],
    skipped: dict[str, str],
    seconds: float,
) -> None:
    checked = {
        "runs": len(outcomes),
        "scenarios": len({outcome.scenario for outcome in outcomes}),
        "faults": sum(outcome.faults for outcome in outcomes),
        "movements": sum(outcome.movements for outcome in outcomes),
        "refusals": sum(outcome.refusals for outcome in outcomes),
    }
    told = {
        "part": "chaos",
        "checked": checked,
        "controls": {"expected": expected, "found": found},
        "seconds": round(seconds, 1),
        "failed": list(failed),
        "skipped": [f"{name}: {reason}" for name, reason in skipped.items()],
    }
    asked.json.write_text(json.dumps(told, indent=2) + "\n")
