"""Measure, print a table, and write bench.json: `python -m bench [--only PART ...]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path

from bench.measuring import Bench, Measure, all_measures
from bench.report import BY_NAME, HEADING, as_data, line
from bench.servers import Servers


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that were asked for. The exit status says whether all of them ran, not whether targets were met."""
    measures = all_measures()
    parts = list(dict.fromkeys(measure.part for measure in measures))
    options = _options(parts).parse_args(arguments)
    wanted = [measure for measure in measures if measure.part in (options.only or parts)]
    begun, load = time.monotonic(), os.getloadavg()[0]
    print(HEADING)
    with Servers(options.pg) as servers:
        bench = Bench(servers, options.rounds)
        for measure in wanted:
            _run(measure, bench)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    data = as_data(bench, time.monotonic() - begun, load)
    options.json.write_text(json.dumps(data, indent=1) + "\n")
    print(f"{data['environment']['seconds']} s; written to {options.json}", file=sys.stderr)
    return 1 if bench.missing else 0


def _run(measure: Measure, bench: Bench) -> None:
    before, begun = set(bench.figures), time.monotonic()
    try:
        measure.run(bench)
    except Exception as error:  # what was measured so far is worth keeping
        traceback.print_exc(limit=-4, chain=False)
        for name in measure.names:
            bench.skip(name, f"failed with {type(error).__name__}")
    bench.took[measure.key] = round(time.monotonic() - begun)
    found = [name for name in bench.figures if name not in before]
    bench.beside[measure.key] = [name for name in found if name not in BY_NAME]
    for name in found:
        print(line(BY_NAME.get(name), name, bench.figures[name]), flush=True)
    for name in measure.names:
        if name in bench.missing:
            print(f"{name:<30} not measured: {bench.missing[name]}", flush=True)


def _options(parts: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the ledger against what people run without a fence. Ratios only: absolute times are "
        "the machine's. It starts its own servers and leaves nothing behind but the JSON.",
    )
    parser.add_argument("--only", nargs="+", choices=parts, metavar="PART", help=f"these parts: {', '.join(parts)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each variant has its turn (default 5)")
    parser.add_argument("--pg", default="18", help="major version of the Postgres (default 18)")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="default build/bench.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
