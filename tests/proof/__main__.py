"""Run every part of the proof, two at a time, and print one table of what was checked. Fails if any part does."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.proof.parts import CHECKOUT, Outcome, Part, run

# The longest first: two at a time, each with one core, that leaves the least idle at the end. The mutants wait as much
# as they work, so there are two of them.
PARTS = (
    Part("mutants", "tests.proof.mutants", ("--jobs", "2"), has_controls=True),
    Part("model", "tests.proof.model", ("quick", "--jobs", "1")),
    Part("schedules", "tests.proof.schedules", ("--jobs", "1")),
    Part("faults", "tests.proof.chaos", ("--seeds", "1", "--controls", "--jobs", "1")),
    Part("matrix", "tests.proof.matrix"),
    Part("properties", "tests.proof.properties"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every part holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(p.name for p in PARTS)}")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="how many parts run at once (2)")
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "build" / "proof", help="for logs and reports")
    given = parser.parse_args(arguments)
    unknown = set(given.parts) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    return prove([part for part in PARTS if part.name in given.parts or not given.parts], given.folder, given.at_once)


def prove(parts: Sequence[Part], folder: Path, at_once: int = 2) -> int:
    """Run the parts, print the table, write `folder`/proof.json. Returns 0 when every part holds, else 1."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def run_and_tell(part: Part) -> Outcome:
        print(f"{part.name}: begun", flush=True)
        outcome = run(part, folder)
        print(f"{part.name}: {'holds' if outcome.holds else 'DOES NOT HOLD'}, {outcome.seconds:.0f} s", flush=True)
        return outcome

    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(run_and_tell, parts))
    seconds = time.monotonic() - began
    print("\n".join(["", *table(outcomes), "", *complaints(outcomes)]))
    held = all(outcome.holds for outcome in outcomes)
    print(f"{'everything holds' if held else 'NOT everything holds'}: {len(outcomes)} parts in {seconds:.0f} s")
    (folder / "proof.json").write_text(json.dumps([as_json(outcome) for outcome in outcomes], indent=2) + "\n")
    return 0 if held else 1


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Part, what was checked, planted faults found, seconds, verdict."""
    rows = [("part", "checked", "planted faults found", "seconds", "")]
    for outcome in outcomes:
        counts = [f"{count:,} {label}" for label, count in outcome.checked.items()] or ["-"]
        found = f"{outcome.controls[0]} of {outcome.controls[1]}" if outcome.controls else "-"
        rows.append((outcome.name, counts[0], found, f"{outcome.seconds:.0f}", "holds" if outcome.holds else "FAILS"))
        rows += [("", count, "", "", "") for count in counts[1:]]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def complaints(outcomes: Iterable[Outcome]) -> list[str]:
    """What speaks against a part, a line each."""
    return [f"{outcome.name}: {what}" for outcome in outcomes for what in outcome.against]


def as_json(outcome: Outcome) -> dict[str, object]:
    """An outcome, for programs."""
    return {
        "part": outcome.name,
        "holds": outcome.holds,
        "checked": dict(outcome.checked),
        "controls": outcome.controls and {"found": outcome.controls[0], "expected": outcome.controls[1]},
        "seconds": round(outcome.seconds, 1),
        "against": list(outcome.against),
    }


if __name__ == "__main__":
    sys.exit(main())
