"""What is measured, under which name, and what it should come to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A figure's name in bench.json, what it says, and its bound: `>= 0.50`, `<= 2`, `= 0`."""

    name: str
    what: str
    bound: str

    def is_met_by(self, value: float) -> bool:
        """Whether a figure holds the bound."""
        sign, number = self.bound.split()
        limit = float(number)
        return {">=": value >= limit, "<=": value <= limit, "=": value == limit}[sign]


TARGETS = (
    Target(
        "single_cpu_vs_raw",
        "backend CPU of a plain UPDATE by primary key, over that of a fenced call (mean of claim and confirm)",
        ">= 0.50",
    ),
    Target("single_wall_vs_raw", "the same as the client's wall time, prepared", ">= 0.62"),
    Target(
        "single_vs_client_txn",
        "calls a second, over those of a client that sends BEGIN, UPDATE, INSERT, COMMIT",
        ">= 1.6",
    ),
    Target(
        "batch100_vs_raw_on",
        "time for 1,200 refunds claimed and confirmed by hundreds, over 1,200 pairs of plain UPDATEs, with fsync",
        "<= 0.14",
    ),
    Target("batch100_vs_raw_off", "the same without fsync", "<= 0.25"),
    Target("batch_linear", "time a refund at 1,200 (calls of 1,000 at most), over that in calls of 100", "<= 1.1"),
    Target(
        "settle_overhead",
        "`settle` of 1,200 refunds at a gateway that answers at once, over the batch functions alone",
        "<= 1.5",
    ),
    Target(
        "settle_latency_bound",
        "`settle` at a gateway that takes 50 ms, 32 in flight, over 1,200 x 50 ms / 32",
        "<= 1.10",
    ),
    Target("scale_10m", "median time of a claim among 10,000,000 refunds, over among 10,000", "<= 1.2"),
    Target(
        "scale_held_snapshot",
        "last fifth over first fifth of 100,000 claims while an old snapshot is held open",
        "<= 1.3",
    ),
    Target("wal_vs_raw", "WAL bytes of a fenced call, over those of a plain UPDATE", "<= 2.1"),
    Target("refusal_wal", "WAL bytes of a refusal", "<= 64"),
    Target(
        "activate_wait_vs_tx",
        "99th percentile of an activation's wait, over that of the transactions it waits for",
        "<= 3",
    ),
    Target(
        "protected_bulk",
        "microseconds a row that protection adds to an UPDATE of 100,000 rows",
        "<= 0.5",
    ),
    Target("protected_row", "an ORM's transaction with one row, over the same without protection", "<= 2.0"),
    Target("lease_round_trips", "round trips to Redis for acquire and release", "= 2"),
    Target("lease_vs_redispy", "acquire and release a second, over redis-py's Lock, one thread", ">= 1.15"),
    Target("lease_vs_redispy_8", "the same with 8 threads", ">= 1.15"),
    Target("lease_vs_pottery", "acquire and release a second, over pottery's", ">= 4"),
    Target("handover_p50_ms", "milliseconds from a release to the waiter's having the lease, median", "<= 1.5"),
    Target("handover_p99_ms", "the same, 99th percentile", "<= 5"),
    Target("watchdog_1000", "CPU seconds a minute to keep 1,000 leases of 30 s alive in one process", "<= 2"),
    Target("vs_procrastinate", "refunds a second in batches, over procrastinate's jobs a second", ">= 50"),
    Target("vs_pgqueuer_psycopg", "the same, over pgqueuer's with psycopg", ">= 10"),
    Target("vs_pgqueuer_asyncpg", "the same, over pgqueuer's with asyncpg", ">= 3"),
    Target("deadlocks", "deadlocks in 5,000 calls of 8 workers, batches overlapping in adverse order", "= 0"),
    Target("workers8_vs_1", "8 workers on 8 merchants, over one worker", ">= 1.3"),
    Target(
        "import_rate",
        "`ledger import` of 1,000,000 lines, rows a second over the same INSERTs without the guard",
        ">= 0.5",
    ),
    Target("import_rss_mb", "its peak memory, in MB", "<= 80"),
    Target("cli_start_help", "`ledger --help`, over `python -c 'import click'`", "<= 2"),
    Target("cli_start_show", "`ledger show`, over `python -c 'import click'`", "<= 6"),
)
