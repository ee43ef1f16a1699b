"""`python -m tests.proof.model`: search the models, and compare what breaks with controls.txt."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.proof.model import search as spin
from tests.proof.model.search import Control, Found, NotBuilt, NotThere


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = parser().parse_args(arguments)
    try:
        if options.what == "trace":
            return show_trace(options)
        return prove(options)
    except NotThere as missing:
        print(missing, file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """What the command understands."""
    top = argparse.ArgumentParser(
        prog="python -m tests.proof.model",
        description="Search the models of the protocol in every state. Each line of controls.txt is one search; what it"
        " finds broken has to be what the line says, no less and no more.",
    )
    top.add_argument("--jobs", type=int, default=2, help="searches at a time (default 2)")
    top.add_argument("--json", type=Path, help="write what was checked to this file")
    what = top.add_subparsers(dest="what", metavar="quick|full|trace")
    for name, words in (
        ("quick", "the searches marked quick (the default)"),
        ("full", "all of them, with larger bounds"),
    ):
        one = what.add_parser(name, help=words, description=f"Run {words}.")
        one.add_argument("--jobs", type=int, default=argparse.SUPPRESS, help="searches at a time")
        one.add_argument("--json", type=Path, default=argparse.SUPPRESS, help="write what was checked to this file")
    one = what.add_parser(
        "trace", help="the shortest way to break a property", description="Print the shortest way to break a property."
    )
    one.add_argument("property", help="its name, as in docs/proof.md")
    one.add_argument("model", help="refund, batch or transaction")
    one.add_argument("flags", nargs="*", metavar="FLAG=VALUE", help="what is changed in the model")
    return top


def show_trace(options: argparse.Namespace) -> int:
    """Print how a property is broken. 0 if it is."""
    steps = spin.trace(options.model, tuple(options.flags), options.property)
    print(steps or f"nothing breaks {options.property} in {options.model} {' '.join(options.flags)}")
    return 0 if steps else 1


def prove(options: argparse.Namespace) -> int:
    """Run the searches. 0 if each found what it should, and every branch was reached."""
    began = time.monotonic()
    chosen = [c for c in spin.controls() if options.what == "full" or c.level == "quick"]
    print(f"{'search':<66} {'broken':<42} {'states':>11} {'s':>6}")
    failed, found = [], {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for control, result in zip(chosen, pool.map(attempt, chosen), strict=True):
            problem = judge(control, result)
            print(row(control, result, problem), flush=True)
            if problem:
                failed.append(f"{control.name}: {problem}. {again(control, result)}")
            found[control] = result
    failed += unreached(found)
    print("\n".join(failed) or "all as expected")
    if options.json:
        options.json.write_text(json.dumps(report(found, failed, time.monotonic() - began)) + "\n")
    return 1 if failed else 0


def attempt(control: Control) -> Found:
    """Run one search; one that can't be built found nothing."""
    try:
        return spin.search(control.model, control.flags, is_large=control.level == "full")
    except NotBuilt as error:
        return Found(frozenset(), frozenset(), 0, complete=False, said=str(error))


def judge(control: Control, found: Found) -> str:
    """What is wrong with what a search found; empty when nothing is."""
    if not found.complete:
        return f"the search isn't complete: {found.said.strip()[-300:]}"
    less, more = control.broken - found.broken, found.broken - control.broken
    words = [f"{name} should break and doesn't" for name in sorted(less)]
    words += [f"{name} breaks and shouldn't" for name in sorted(more)]
    return "; ".join(words)


def again(control: Control, found: Found) -> str:
    """How to see it again."""
    one = min(found.broken - control.broken, default="PROPERTY")
    return f"See it with: python -m tests.proof.model trace {one} {control.name}"


def row(control: Control, found: Found, problem: str) -> str:
    """One search as a line of the table."""
    broken = " ".join(sorted(found.broken)) or "-"
    mark = "  FAILED" if problem else ""
    return f"{control.name:<66} {broken:<42} {found.states:>11,} {found.seconds:>6.1f}{mark}"


def unreached(found: dict[Control, Found]) -> list[str]:
    """The branches of the models that no search reached: what they guard was not tried."""
    problems = []
    for model in sorted({control.model for control in found}):
        reached = {name for control, one in found.items() if control.model == model for name in one.reached}
        problems += [f"{model}: no search reached {name}" for name in sorted(spin.branches_of(model) - reached)]
    return problems


def report(found: dict[Control, Found], failed: list[str], seconds: float) -> dict[str, Any]:
    """What was checked, as data."""
    broken = [control for control in found if control.broken]
    return {
        "part": "model",
        "checked": {"searches": len(found), "states": sum(one.states for one in found.values())},
        "controls": {"expected": len(broken), "found": sum(found[c].broken == c.broken for c in broken)},
        "seconds": round(seconds, 1),
        "failed": failed,
        "skipped": [],
    }


if __name__ == "__main__":
    sys.exit(main())
