"""How long the command line takes to start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import psycopg

from bench.measuring import Bench, by_round, interleaved, measures, over, seconds
from bench.servers import load, numbered
from ledger.client import Ledger

TURNS = 3


@measures("cli_start_help", "cli_start_show")
def cli_start(bench: Bench) -> None:
    """Wall time of `ledger --help` and of `ledger show` of a refund, over that of `python -c 'import click'`.

    Whole processes, with the interpreter's own start and, for `show`, the connection and its queries; everything is in
    the system's cache. A round is 3 turns of each.
    """
    with bench.servers.fast.database() as database:
        with psycopg.connect(database.worker, autocommit=True) as connection:
            load(Ledger(connection), "m_1", numbered(0, 10))
        variants = {
            "click": _run("-c", "import click"),
            "help": _run("-m", "ledger", "--help"),
            "show": _run("-m", "ledger", "--dsn", database.worker, "show", "m_1", numbered(0, 1)[0]),
        }
        interleaved(1, variants)
        found = interleaved(bench.rounds * TURNS, variants)
    bench.record("cli_start_help", by_round(over(found["help"], found["click"]), TURNS))
    bench.record("cli_start_show", by_round(over(found["show"], found["click"]), TURNS))


def _run(*arguments: str) -> Callable[[], float]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")}
    return lambda: seconds(
        lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    )
