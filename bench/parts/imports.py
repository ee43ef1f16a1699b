"""What `ledger import` takes for a large file: its rate and its memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench import plain
from bench.measuring import LINUX, Bench, measures, over, seconds
from bench.servers import Database

LINES = 1_000_000
MERCHANTS = 10

STAGED = "create temp table staged (position integer, merchant_id text, refund_id text, amount numeric, currency text)"

REFUNDS = """
insert into plain.refund (
    merchant_id, refund_id, amount_minor, currency, idempotency_key, added_at, changed_at
)
select
    s.merchant_id, s.refund_id, (s.amount * 100)::bigint, s.currency, s.merchant_id || '/' || s.refund_id, now(), now()
from staged as s
order by s.position
"""

JOURNAL = """
insert into plain.journal (
    merchant_id, refund_id, number, attempts, at, maybe_sent, to_state, amount_minor, currency, debit, credit
)
select
    s.merchant_id, s.refund_id, 1, 0, now(), false, 'pending', (s.amount * 100)::bigint, s.currency,
    'merchant_available', 'refund_reserved'
from staged as s
order by s.position
"""

# Peak memory of a child, which only its parent can ask for once it has ended: so a parent of its own.
WATCHED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@measures("import_rate", "import_rss_mb")
def imports(bench: Bench) -> None:
    """`ledger import` of a CSV with refunds of 10 merchants, against the INSERTs that it comes to.

    Those fill tables with the same columns, checks and indexes from a table in which the file's lines are staged, in
    one transaction, without guard, functions or a look for duplicates; the staging isn't counted. The memory is the
    peak of the process that imports.
    """
    ours, theirs, peaks = [], [], []
    with _file(LINES) as file:
        for _ in range(bench.rounds):
            with bench.servers.fast.database() as database:
                took, peak = _import(database, file)
                ours.append(took)
                peaks.append(peak)
                theirs.append(_insert(database, file))
    bench.record("import_rate", over(theirs, ours))
    bench.record("import_rss_mb", peaks)


@contextmanager
def _file(lines: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ledger-bench-") as folder:
        file = Path(folder) / "refunds.csv"
        with file.open("w") as out:
            out.write("merchant_id,refund_id,amount,currency\n")
            out.writelines(f"m_{n % MERCHANTS},r_{n // MERCHANTS:08},70.25,EUR\n" for n in range(lines))
        yield file


def _import(database: Database, file: Path) -> tuple[float, float]:
    """Seconds, and the peak of the process in MB."""
    command = [sys.executable, "-m", "ledger", "--dsn", database.worker, "import", str(file)]
    done: list[str] = []

    def run() -> None:
        done.append(
            subprocess.run([sys.executable, "-c", WATCHED, *command], check=True, capture_output=True, text=True).stdout
        )

    took = seconds(run)
    return took, int(done[0]) * (1024 if LINUX else 1) / 1e6  # macOS counts bytes


def _insert(database: Database, file: Path) -> float:
    plain.create(database.admin)
    with psycopg.connect(database.worker) as connection:
        connection.execute(STAGED)
        with connection.cursor().copy("copy staged from stdin") as copy, file.open() as lines:
            next(lines)
            for position, line in enumerate(lines):
                copy.write(f"{position}\t" + line.replace(",", "\t"))
        connection.execute("analyze staged")
        connection.commit()

        def insert() -> None:
            connection.execute(REFUNDS)
            connection.execute(JOURNAL)
            connection.commit()

        return seconds(insert)
