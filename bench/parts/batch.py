"""Refunds by the hundred: the set-based functions against plain UPDATEs, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack

import psycopg

from bench import plain
from bench.measuring import Bench, interleaved, measures, median, over, seconds
from bench.servers import Pair, activated, load, numbered
from ledger.client import Ledger

REFUNDS = numbered(0, 1200)
MOST = 1000
SIZES = (10, 30, 100, 300, MOST)


class Batches:
    """Merchants with 1,200 refunds each, settled in batches or one by one; each turn takes a fresh merchant."""

    def __init__(self, pair: Pair, stack: ExitStack) -> None:
        database = stack.enter_context(pair.database())
        plain.create(database.admin)
        self._connection = stack.enter_context(psycopg.connect(database.worker, autocommit=True))
        self._ledger = Ledger(self._connection)
        self._numbers = itertools.count(1)
        self.by(100)()
        self.one_by_one()

    def by(self, size: int) -> Callable[[], float]:
        """The seconds it takes to claim and confirm them in calls of this many."""

        def settled() -> float:
            merchant_id = f"m_{next(self._numbers)}"
            load(self._ledger, merchant_id, REFUNDS)
            token = activated(self._ledger, merchant_id)
            return seconds(lambda: claim_and_confirm(self._ledger, merchant_id, token, size))

        return settled

    def one_by_one(self) -> float:
        """The seconds that a worker without a fence takes: two plain UPDATEs a refund."""
        merchant_id = f"m_{next(self._numbers)}"
        plain.load(self._connection, merchant_id, REFUNDS)
        worker = plain.Plain(self._connection, merchant_id, 1)
        return seconds(lambda: [(worker.claim(refund_id), worker.confirm(refund_id)) for refund_id in REFUNDS])


def claim_and_confirm(ledger: Ledger, merchant_id: str, token: int, size: int) -> None:
    """All of a merchant's refunds, in calls of this many."""
    after = ""
    while claims := ledger.claim_refunds(merchant_id, token, size, after):
        ids = [claim.refund_id for claim in claims]
        ledger.confirm_refunds(merchant_id, token, ids, [f"re_{refund_id}" for refund_id in ids])
        after = ids[-1]


@measures("batch100_vs_raw_on")
def with_fsync(bench: Bench) -> None:
    """1,200 refunds through `Ledger.claim_refunds` and `confirm_refunds`, a hundred a call, each call committed by
    itself, against 1,200 pairs of plain UPDATEs of a table with the same columns and indexes, prepared and in
    autocommit. With fsync, on a disk: what is gained is mostly that of 24 commits over 2,400.
    """
    with ExitStack() as stack:
        batches = Batches(bench.servers.durable, stack)
        found = interleaved(bench.rounds, {"fenced": batches.by(100), "plain": batches.one_by_one})
    bench.record("batch100_vs_raw_on", over(found["fenced"], found["plain"]))


@measures("batch100_vs_raw_off", "batch_linear")
def without_fsync(bench: Bench) -> None:
    """The same with fsync off, so that only CPU counts. `batch_linear` takes 1,200 refunds in two calls of 1,000 and
    200 (a call takes 1,000 at most), over calls of a hundred: a plan that joins all with all would show here.
    """
    with ExitStack() as stack:
        batches = Batches(bench.servers.fast, stack)
        sizes = {f"{size}": batches.by(size) for size in SIZES}
        found = interleaved(bench.rounds, {**sizes, "plain": batches.one_by_one})
    bench.record("batch100_vs_raw_off", over(found["100"], found["plain"]))
    bench.record("batch_linear", over(found[f"{MOST}"], found["100"]))
    bench.record("batch100_us", [value / len(REFUNDS) * 1e6 for value in found["100"]])
    for size in SIZES:
        bench.point("batch", "claim and confirm in batches", size, median(found[f"{size}"]) / len(REFUNDS) * 1e6)
        bench.point("batch", "two plain UPDATEs a refund", size, median(found["plain"]) / len(REFUNDS) * 1e6)
