"""WAL bytes: what a fenced call adds to a plain UPDATE, and what a refusal writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

import psycopg

from bench import plain
from bench.measuring import Bench, interleaved, measures, over
from bench.parts.single import MERCHANT, Fenced, Worker
from bench.servers import activated, load, numbered
from ledger.client import Ledger

PAIRS = 200


@measures("wal_vs_raw", "refusal_wal")
def wal(bench: Bench) -> None:
    """The growth of the WAL over 200 pairs of calls, each committed by itself, over the same with plain UPDATEs of a
    table with the same columns and indexes; a call is the mean of claim and confirm. No full-page images: no
    checkpoint falls between. `refusal_wal` is of a claim under a superseded token, by plain SQL, without the
    record of it that a second connection may write: the bytes a call, of 200 calls.
    """
    pair, refunds = bench.servers.fast, numbered(0, (bench.rounds + 1) * PAIRS)
    with ExitStack() as stack:
        database = stack.enter_context(pair.database())
        plain.create(database.admin)
        admin = stack.enter_context(psycopg.connect(database.admin, autocommit=True))
        connection = stack.enter_context(psycopg.connect(database.worker, autocommit=True))
        ledger = Ledger(connection)
        stale, token = activated(ledger, MERCHANT), activated(ledger, MERCHANT)
        load(ledger, MERCHANT, refunds)
        plain.load(connection, MERCHANT, refunds)
        admin.execute("vacuum analyze")

        def settling(worker: Worker) -> Callable[[], float]:
            left = iter(refunds)

            def some() -> None:
                for _ in range(PAIRS):
                    refund_id = next(left)
                    worker.claim(refund_id)
                    worker.confirm(refund_id)

            some()
            return lambda: written(admin, some) / (2 * PAIRS)

        turns = {
            "fenced": settling(Fenced(connection, MERCHANT, token)),
            "plain": settling(plain.Plain(connection, MERCHANT, token)),
            "refused": lambda: written(admin, lambda: refuse(Fenced(connection, MERCHANT, stale))) / PAIRS,
        }
        found = interleaved(bench.rounds, turns)
    bench.record("wal_vs_raw", over(found["fenced"], found["plain"]))
    bench.record("wal_bytes", found["fenced"])
    bench.record("refusal_wal", found["refused"])


def written(admin: psycopg.Connection, run: Callable[[], None]) -> float:
    """By how many bytes the WAL grew."""
    before = admin.execute("select pg_current_wal_insert_lsn()").fetchall()[0][0]
    run()
    row = admin.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::float", [before]).fetchone()
    assert row is not None
    return float(row[0])


def refuse(worker: Fenced) -> None:
    """Claims that are all refused."""
    for refund_id in numbered(0, PAIRS):
        with suppress(psycopg.DatabaseError):
            worker.claim(refund_id)
