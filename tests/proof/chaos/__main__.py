"""`python -m tests.proof.chaos`: run the scenarios, report each, fail if an invariant broke."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.chaos",
        description="Real workers, servers and a gateway; something breaks, and the invariants must hold.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=1, metavar="N", help="run each scenario with seeds 1 to N (1)")
    which.add_argument("--seed", type=int, metavar="K", help="run each scenario with this seed alone")
    parser.add_argument("--scenario", nargs="+", metavar="NAME", help="run only these")
    parser.add_argument(
        "--controls",
        nargs="?",
        choices=("too", "only"),
        const="too",
        help="then take the guards away, one at a time, and see that the invariants break; `only`: nothing else",
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many runs at once (2)")
    parser.add_argument("--pg", default="18", help="major version of Postgres (18)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    parser.add_argument("--list", action="store_true", help="list the scenarios and what each breaks")
    parser.add_argument("--story", action="store_true", help="tell each run's story, not only the first failure's")
    return parser.parse_args(given)


def main() -> int:
    """Run what was asked for; the exit code."""
    asked = arguments()
    from tests.proof.chaos import report
    from tests.proof.chaos.scenario import scenarios

    known = scenarios()
    unknown = [name for name in asked.scenario or () if name not in known]
    if unknown:
        sys.exit(f"there is no scenario {', '.join(unknown)}; --list names all of them")
    if asked.list:
        sys.stdout.write("\n".join(report.table(known.values())) + "\n")
        return 0
    return report.reported(asked, [known[name] for name in asked.scenario] if asked.scenario else list(known.values()))


if __name__ == "__main__":
    sys.exit(main())
