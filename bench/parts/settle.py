"""The settlement loop, against the batch functions alone, and against the gateway's own latency."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
from psycopg_pool import ConnectionPool

from bench.measuring import Bench, interleaved, measures, over, seconds
from bench.parts.batch import claim_and_confirm
from bench.servers import Pair, activated, load, numbered
from ledger.client import Ledger
from ledger.gateway import Nothing, Sent
from ledger.records import Claim
from ledger.settle import Options, settle

REFUNDS = numbered(0, 1200)
LATENCY = 0.05
IN_FLIGHT = 32
SHORT_LATENCY = 0.01
WIDTHS = (4, 8, 16, 32, 64)


class Instant:
    """A gateway in this process that takes this many seconds and refuses nothing."""

    def __init__(self, latency: float = 0.0) -> None:
        self._latency = latency

    def refund(self, refund: Claim, token: int, timeout: float) -> Sent:
        """Sent, under a reference made from its id."""
        if self._latency:
            time.sleep(self._latency)
        return Sent(f"re_{refund.refund_id}")

    def find(self, key: str, timeout: float) -> Nothing:
        """It remembers nothing."""
        return Nothing()


class Settlements:
    """Merchants with 1,200 refunds each, settled over open connections; each turn takes a fresh merchant."""

    def __init__(self, pair: Pair, pool: ConnectionPool, ledger: Ledger) -> None:
        self._redis_url = pair.redis_url
        self._pool = pool
        self._ledger = ledger
        self._numbers = itertools.count(1)

    def settled(self, latency: float = 0.0, in_flight: int = IN_FLIGHT) -> float:
        """The seconds that `settle` takes, the lease included."""
        merchant_id, gateway = self._merchant(), Instant(latency)
        options = Options(in_flight=in_flight)
        return seconds(
            lambda: settle(merchant_id, db=self._pool, redis=self._redis_url, gateway=gateway, options=options)
        )

    def by_functions(self) -> float:
        """The seconds that the batch functions take, a hundred a call."""
        merchant_id = self._merchant()
        token = activated(self._ledger, merchant_id)
        return seconds(lambda: claim_and_confirm(self._ledger, merchant_id, token, 100))

    def _merchant(self) -> str:
        merchant_id = f"m_{next(self._numbers)}"
        load(self._ledger, merchant_id, REFUNDS)
        return merchant_id


@contextmanager
def settlements(pair: Pair) -> Iterator[Settlements]:
    """A database and open connections to it."""
    with ExitStack() as stack:
        database = stack.enter_context(pair.database())
        pool = stack.enter_context(ConnectionPool(database.worker, min_size=3, kwargs={"autocommit": True}, open=False))
        pool.open(wait=True)
        connection = stack.enter_context(psycopg.connect(database.worker, autocommit=True))
        found = Settlements(pair, pool, Ledger(connection))
        found.settled()
        found.by_functions()
        yield found


@measures("settle_overhead")
def overhead(bench: Bench) -> None:
    """`settle` of 1,200 refunds, 32 in flight, under a lease in Valkey, connections open, at a gateway in the same
    process that answers at once, over `claim_refunds` and `confirm_refunds` by hundreds on one connection. It is
    what the loop, its threads and the lease add, with fsync off. No real gateway is that fast.
    """
    with settlements(bench.servers.fast) as found:
        times = interleaved(bench.rounds, {"settle": found.settled, "functions": found.by_functions})
    bench.record("settle_overhead", over(times["settle"], times["functions"]))
    bench.record("settle_us", [value / len(REFUNDS) * 1e6 for value in times["settle"]])


@measures("settle_latency_bound")
def latency(bench: Bench) -> None:
    """`settle` of 1,200 refunds, 32 in flight, at a gateway that takes 50 ms for each, over the 1.875 s that 1,200
    such calls take, 32 at a time: what is lost where nothing is in flight.
    """
    bound = len(REFUNDS) * LATENCY / IN_FLIGHT
    with settlements(bench.servers.fast) as found:
        times = [found.settled(LATENCY) for _ in range(bench.rounds)]
        for width in WIDTHS:
            each = found.settled(SHORT_LATENCY, width) / len(REFUNDS) * 1e3
            bench.point("in_flight", "settle at a gateway that takes 10 ms", width, each)
            bench.point("in_flight", "10 ms, so many at a time", width, SHORT_LATENCY / width * 1e3)
    bench.record("settle_latency_bound", [value / bound for value in times])
