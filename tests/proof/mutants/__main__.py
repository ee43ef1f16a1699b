"""Break the SQL in one place after another, and see that a test fails each time.

    python -m tests.proof.mutants                       each by the test that killed it before
    python -m tests.proof.mutants --update              the same, and look for a test where none is known; remember it
    python -m tests.proof.mutants --only claim_refund   the mutants of one function
    python -m tests.proof.mutants --list                what would be broken

Each mutant must be killed twice: with the triggers of guard_write, and without them, since one layer hides what the
other lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.proof.mutants import generate, killers
from tests.proof.mutants.bench import Bench, share_out
from tests.proof.mutants.hunt import Found, Hunt
from tests.proof.mutants.reach import Reach


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="FUNCTION", action="append", help="the mutants of this function")
    parser.add_argument("--id", metavar="ID", help="this mutant alone")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="that many servers at once (default 2)")
    parser.add_argument("--update", action="store_true", help="look for killers that aren't known, and remember them")
    parser.add_argument("--new", action="store_true", help="only those for which no killer is known")
    parser.add_argument("--tries", type=int, default=300, metavar="N", help="tests to try for each (default 300)")
    parser.add_argument("--list", action="store_true", help="print the mutants and break nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[generate.Mutant]:
    """The mutants that are asked for. An open one is tried again only when there is a search."""
    spared = killers.spared()
    alive, known = killers.still_open(), killers.remembered()
    return [
        mutant
        for mutant in generate.mutants()
        if mutant.id not in spared
        and (options.update or options.list or mutant.id not in alive)
        and (not options.only or mutant.function in options.only)
        and (not options.id or mutant.id == options.id)
        and not (options.new and all((mutant.id, setting) in known for setting in mutant.settings))
    ]


class Scores:
    """What became of the mutants so far; told and remembered as they come."""

    def __init__(self, total: int, *, remember: bool) -> None:
        self.found: list[Found] = []
        self._total, self._remember = total, remember
        self._lock = threading.Lock()

    def add(self, one: Found) -> None:
        """Print it if it isn't killed, and now and then how far it has come."""
        with self._lock:
            self.found.append(one)
            if one.survived:
                print(f"  {one.status}  {one.mutant.id}  {one.mutant.shows}", flush=True)
            if len(self.found) % 100 == 0:
                print(f"  {len(self.found)} of {self._total} mutants tried", flush=True)
                if self._remember:
                    killers.remember(self.found)


def kill_all(mutants: list[generate.Mutant], hunt: Hunt, jobs: int) -> list[Found]:
    """Share the mutants out among the benches."""
    scores = Scores(len(mutants), remember=hunt.updates)
    benches = [Bench() for _ in range(min(jobs, len(mutants)))]
    try:
        if hunt.updates and benches:
            hunt.reach = Reach(benches)
        share_out(mutants, benches, lambda bench, mutant: scores.add(hunt.kill(bench, mutant)))
    finally:
        for bench in benches:
            bench.close()
    return scores.found


def main() -> int:
    """Run what the command line asks for."""
    options = arguments()
    mutants = chosen(options)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.id:60} {mutant.shows}")
        return 0
    began = time.monotonic()
    hunt = Hunt(killers.remembered(), update=options.update, tries=options.tries)
    found = kill_all(mutants, hunt, options.jobs)
    if options.update:
        killers.remember(found)
    return report(options, mutants, found, time.monotonic() - began)


def report(options: argparse.Namespace, mutants: list[generate.Mutant], found: list[Found], seconds: float) -> int:
    """The table, and the object for `--json`; 1 where a mutant lives."""
    alive = sorted(f"{one.mutant.id} ({one.status})" for one in found if one.survived)
    if len(found) < len(mutants):
        alive.append(f"{len(mutants) - len(found)} mutants weren't tried: a bench died")
    if not mutants:
        alive.append("there is no such mutant")
    runs = sum(len(mutant.settings) for mutant in mutants)
    killed = sum(len(one.killers) for one in found)
    still_open = killers.still_open()

    tried = Counter(one.mutant.function for one in found)
    living = Counter(one.mutant.function for one in found if one.survived)
    print(f"\n  {'function':28} {'mutants':>8} {'alive':>6}")
    for function in dict.fromkeys(mutant.function for mutant in mutants):
        print(f"  {function:28} {tried[function]:8} {living[function]:6}")
    print(
        f"\n  {len(mutants)} mutants, with the guard triggers and without: {killed} of {runs} killed; {seconds:.0f} s"
    )
    print(f"  {len(still_open)} more are open: no test is known that kills them (open.json)")
    print(f"  {len(killers.spared())} are equivalent (spared.toml)")
    for one in alive:
        print(f"  ALIVE {one}")
    if alive:
        print("  make mutants UPDATE=1 looks for tests that kill them; where there is none, write one")
    if options.json:
        checked = {"mutants": len(mutants), "runs": runs}
        if still_open:
            checked["mutants left open, not tried"] = len(still_open)
        told = {
            "part": "mutants",
            "checked": checked,
            "controls": {"expected": runs, "found": killed},
            "seconds": round(seconds, 1),
            "failed": alive,
            "skipped": [],
        }
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
