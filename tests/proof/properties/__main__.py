"""Arbitrary calls for a good while, and the same with one function broken at a time: each must be noticed."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ledger import dev
from tests.proof.properties import faults
from tests.proof.properties.machine import OFTEN, Machine
from tests.proof.properties.world import PUBLIC, prepare

STEPS = 40
SETTINGS = {"plpgsql.extra_errors": "all"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when nothing broke a rule and every planted fault was noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.properties", description=__doc__)
    parser.add_argument("--examples", type=int, default=300, help=f"how many stories of {STEPS} steps (300)")
    parser.add_argument("--random", action="store_true", help="other stories than last time")
    parser.add_argument("--fault", action="append", choices=faults.planted(), help="only this planted fault")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was checked")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    failed, found = [], 0
    planted = {name: fault for name, fault in faults.planted().items() if name in (given.fault or faults.planted())}
    with dev.temporary(settings=SETTINGS) as servers:
        prepare(servers)
        if not given.fault:
            broke = stories(servers, given.examples, derandomize=not given.random)
            failed += [broke] if broke else []
            print(f"the functions as they are: {broke or 'nothing broke a rule'}", flush=True)
        seen = dict(Machine.seen)
        for name, fault in planted.items():
            broke = stories(servers, 1500, fault, derandomize=not given.random)
            found += bool(broke)
            failed += [] if broke else [f"not noticed: {name}"]
            print(f"{name}: {broke.splitlines()[0] if broke else 'NOT NOTICED'}", flush=True)
    checked = counts(seen)
    if not given.fault:
        never = sorted(PUBLIC - {key.removeprefix("call ") for key in seen if key.startswith("call ")})
        failed += [f"never called: {', '.join(never)}"] if never else []
        print(*(f"NEVER CALLED: {name}" for name in never), sep="\n", end="\n" if never else "")
        print(", ".join(f"{count:,} {label}" for label, count in checked.items()))
    if given.json:
        report = {
            "part": "properties",
            "checked": checked,
            "controls": {"expected": len(planted), "found": found},
            "seconds": round(time.monotonic() - began, 1),
            "failed": failed,
            "skipped": [],
        }
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if failed else 0


def stories(servers: dev.Servers, examples: int, fault: faults.Fault | None = None, *, derandomize: bool = True) -> str:
    """Run the machine. Returns what broke a rule, with the calls that lead there; nothing when nothing did."""
    Machine.servers = servers
    Machine.broken = (fault.statement,) if fault else ()
    Machine.often = OFTEN + fault.often * (12 // len(fault.often)) if fault else OFTEN
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *([] if fault else [Phase.shrink])],
        report_multiple_bugs=False,
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run_state_machine_as_test(Machine, settings=chosen)
    except AssertionError as broke:
        return "\n".join([str(broke).splitlines()[0], *getattr(broke, "__notes__", [])])
    return ""


def counts(seen: dict[str, int]) -> dict[str, int]:
    """What a run saw, for the table of the proof."""
    return {
        "stories": seen.get("examples", 0),
        "calls": seen.get("steps", 0),
        "refusals": sum(count for key, count in seen.items() if key.startswith("refusal ")),
        "codes": sum(key.startswith("refusal ") for key in seen),
        "functions": sum(key.startswith("call ") for key in seen),
    }


if __name__ == "__main__":
    sys.exit(main())
