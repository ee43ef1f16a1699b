"""Claim and confirm in batches, against what the fastest queues on Postgres do with jobs that do nothing."""

from __future__ import annotations

import logging
import queue
from concurrent.futures import ThreadPoolExecutor

import psycopg

from bench.measuring import Bench, interleaved, measures, over, seconds
from bench.servers import Database, activated, load, numbered
from ledger.client import Ledger

REFUNDS = 12_000
BATCH = 1000
CONFIRMERS = 2


@measures("vs_procrastinate", "vs_pgqueuer_psycopg", "vs_pgqueuer_asyncpg")
def peers(bench: Bench) -> None:
    """Refunds a second, claimed by thousands on one connection and confirmed on two, over queues' jobs a second.

    Their jobs do nothing, and wait before the clock starts at the first of them; one process each, the same
    server, fsync off. Each queue as its own docs advise for speed: procrastinate with 20 jobs at a time, finished ones
    deleted; pgqueuer with its autovacuum settings and a connection of its own, in the better of batches of 10 (its
    default) and of 100. Their guarantees are others: this bounds what a queue costs, and compares no like with like.
    """
    from bench import queues  # of the extra `bench`

    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    with bench.servers.fast.database() as database, bench.servers.fast.database() as theirs:
        queues.install(theirs)
        found = interleaved(
            bench.rounds,
            {
                "ours": _Ours(database).rate,
                "procrastinate": lambda: queues.rate_of_procrastinate(theirs),
                "psycopg": lambda: queues.rate_of_pgqueuer_with_psycopg(theirs),
                "asyncpg": lambda: queues.rate_of_pgqueuer_with_asyncpg(theirs),
            },
        )
    bench.record("vs_procrastinate", over(found["ours"], found["procrastinate"]))
    bench.record("vs_pgqueuer_psycopg", over(found["ours"], found["psycopg"]))
    bench.record("vs_pgqueuer_asyncpg", over(found["ours"], found["asyncpg"]))


class _Ours:
    """A merchant after the other, each with its refunds."""

    def __init__(self, database: Database) -> None:
        self._dsn = database.worker
        self._merchant = 0

    def rate(self) -> float:
        """Refunds a second."""
        self._merchant += 1
        merchant_id = f"m_{self._merchant}"
        with self._connected() as connection:
            ledger = Ledger(connection)
            load(ledger, merchant_id, numbered(0, REFUNDS))
            token = activated(ledger, merchant_id)
        return REFUNDS / seconds(lambda: self._settle(merchant_id, token))

    def _settle(self, merchant_id: str, token: int) -> None:
        claimed: queue.Queue[list[str]] = queue.Queue()

        def claim() -> None:
            with self._connected() as connection:
                ledger, after = Ledger(connection), ""
                while claims := ledger.claim_refunds(merchant_id, token, BATCH, after):
                    claimed.put([claim.refund_id for claim in claims])
                    after = claims[-1].refund_id
            for _ in range(CONFIRMERS):
                claimed.put([])

        def confirm() -> None:
            with self._connected() as connection:
                ledger = Ledger(connection)
                while ids := claimed.get(timeout=60):
                    ledger.confirm_refunds(merchant_id, token, ids, [f"re_{one}" for one in ids])

        with ThreadPoolExecutor(1 + CONFIRMERS) as threads:
            for done in [threads.submit(work) for work in (claim, *[confirm] * CONFIRMERS)]:
                done.result()

    def _connected(self) -> psycopg.Connection:
        return psycopg.connect(self._dsn, autocommit=True, prepare_threshold=0)
