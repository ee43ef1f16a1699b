"""Explore every schedule of the protocol on the real functions, and every order of lock and commit."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.proof.schedules import waits
from tests.proof.schedules.replay import parse, replay, story
from tests.proof.schedules.tasks import TEMPLATE, database, explored, servers


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when no schedule breaks an invariant, every planted fault is found, and every order is right."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.schedules", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the smallest bounds, in seconds")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many processes work at it (2)")
    parser.add_argument("--pg", default="18", metavar="VERSION", help="which Postgres (18)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was checked to FILE")
    parser.add_argument(
        "--replay", metavar="CODE", help="tell one schedule or order again: its code, or the file of its script"
    )
    given = parser.parse_args(arguments)
    logging.getLogger("ledger").setLevel(logging.CRITICAL)  # refusals are what this is about
    if given.replay:
        try:
            return replayed(given.replay, given.pg)
        except ValueError as error:
            parser.error(str(error))
    began = time.monotonic()
    result = explored(given.pg, given.jobs, quick=given.quick)
    seconds = time.monotonic() - began
    print("\n".join(["", *result.summary(seconds)]))
    if given.json:
        given.json.write_text(json.dumps(result.as_json(seconds), indent=2) + "\n")
    return 0 if result.holds else 1


def replayed(code: str, pg: str) -> int:
    """Tell a schedule step by step. Returns 1 when it breaks an invariant. Raises ValueError for what is no code."""
    order = waits.parse(code)
    if order is not None:
        return _met(*order, pg)
    control, bounds, choices = parse(code)
    with servers(pg) as pair:
        turns, broken = replay(database(pair, f"{TEMPLATE}_0"), control, bounds, choices)
    print("\n".join(story(turns)))
    print("breaks: " + ", ".join(broken) if broken else "breaks nothing")
    return 1 if broken else 0


def _met(meeting: waits.Meeting, steps: Sequence[int], pg: str) -> int:
    with servers(pg) as pair:
        ring = waits.Ring(database(pair, f"{TEMPLATE}_0"))
        lines, right = ring.tell(meeting, steps)
        ring.close()
    print("\n".join([*lines, "as one after the other" if right else "NOT as one after the other"]))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
