"""Every protection under every fault, on servers of its own: what should fail fails, and what should hold holds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ledger import reproduce
from ledger.commands.reproduce import say_matrix
from ledger.reproduce.report import facts


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every cell comes out as it must."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.matrix", description=__doc__)
    parser.add_argument("--pg", default="18", metavar="MAJOR", help="the Postgres to run it on (18)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was checked")
    given = parser.parse_args(arguments)
    with reproduce.embedded(given.pg) as place:
        matrix = reproduce.run(
            place,
            list(reproduce.PROTECTIONS),
            list(reproduce.FAULTS),
            done=lambda cell: print(f"{cell.protection} under {cell.fault}: {cell.counts}", flush=True),
        )
    print()
    say_matrix(matrix)
    for failed in matrix.failed:
        print(f"not as expected: {failed}")
    if given.json is not None:
        given.json.write_text(json.dumps(facts(matrix), indent=2) + "\n")
    return 1 if matrix.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
