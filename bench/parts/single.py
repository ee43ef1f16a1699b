"""One refund at a time: a fenced, journaled, guarded call against a plain UPDATE."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from bench import plain
from bench.measuring import LINUX, Bench, by_round, cpu_seconds, interleaved, measures, over
from bench.servers import Pair, activated, load, numbered
from ledger import calls
from ledger.client import Ledger

MERCHANT = "m_1"
SLICE = 100
TURNS = 12
WARM = 30


class Worker(Protocol):
    """Who claims and confirms refunds one by one."""

    def claim(self, refund_id: str) -> Any:
        """Take it."""

    def confirm(self, refund_id: str) -> Any:
        """Record that it was sent."""


class Fenced:
    """The functions, called as Plain calls its UPDATEs: nothing of ours in Python but the statement."""

    def __init__(self, connection: psycopg.Connection, merchant_id: str, token: int) -> None:
        self._cursor = connection.cursor()
        self._claim = calls.claim_refund(merchant_id, "", token)
        self._confirm = calls.confirm_refund(merchant_id, "", token, "")

    def claim(self, refund_id: str) -> Any:
        """One round trip."""
        arguments = {**self._claim.arguments, "refund_id": refund_id}
        return self._cursor.execute(self._claim.statement, arguments, prepare=True).fetchone()

    def confirm(self, refund_id: str) -> Any:
        """One round trip."""
        arguments = {**self._confirm.arguments, "refund_id": refund_id, "gateway_ref": f"re_{refund_id}"}
        return self._cursor.execute(self._confirm.statement, arguments, prepare=True).fetchone()


class Client:
    """The same through `Ledger`, as an application calls it."""

    def __init__(self, connection: psycopg.Connection, merchant_id: str, token: int) -> None:
        self._ledger = Ledger(connection)
        self._merchant_id = merchant_id
        self._token = token

    def claim(self, refund_id: str) -> Any:
        """A record comes back."""
        return self._ledger.claim_refund(self._merchant_id, refund_id, self._token)

    def confirm(self, refund_id: str) -> Any:
        """A record comes back."""
        return self._ledger.confirm_refund(self._merchant_id, refund_id, self._token, f"re_{refund_id}")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call takes on average, in microseconds: the client's wall time, and the backend's CPU."""

    wall: float
    cpu: float


class Slices:
    """A worker on a connection of its own, run a slice at a time."""

    def __init__(self, connection: psycopg.Connection, worker: Worker, refund_ids: list[str]) -> None:
        self._pid = connection.info.backend_pid
        self._worker = worker
        self._refunds = iter(refund_ids)
        self.run(WARM)

    def run(self, count: int = SLICE) -> Cost:
        """Claim and confirm this many."""
        ids = [next(self._refunds) for _ in range(count)]
        used, begun = self._cpu(), time.perf_counter()
        for refund_id in ids:
            self._worker.claim(refund_id)
            self._worker.confirm(refund_id)
        wall, used = time.perf_counter() - begun, self._cpu() - used
        return Cost(wall / (2 * count) * 1e6, used / (2 * count) * 1e6)

    def _cpu(self) -> float:
        return cpu_seconds(self._pid) if LINUX else 0.0


KINDS: dict[str, Callable[[psycopg.Connection, str, int], Worker]] = {
    "plain": plain.Plain,
    "journaled": plain.Journaled,
    "fenced": Fenced,
    "client": Client,
}


@contextmanager
def workers(pair: Pair, slices: int) -> Iterator[dict[str, Slices]]:
    """Each kind of worker in a database of its own, with refunds for this many slices."""
    ids = numbered(0, WARM + slices * SLICE)
    with ExitStack() as stack:
        found = {}
        for name, kind in KINDS.items():
            database = stack.enter_context(pair.database())
            plain.create(database.admin)
            connection = stack.enter_context(psycopg.connect(database.worker, autocommit=True))
            token = activated(Ledger(connection), MERCHANT)
            plain.load(connection, MERCHANT, ids)
            load(Ledger(connection), MERCHANT, ids)
            found[name] = Slices(connection, kind(connection, MERCHANT, token), ids)
        yield found


@measures("single_cpu_vs_raw", "single_wall_vs_raw", "single_vs_client_txn")
def single(bench: Bench) -> None:
    """Pairs of claim and confirm, each committed by itself, against pairs of plain UPDATEs by primary key
    (to sending, to sent) of a table with the same columns, checks and indexes, through the same driver, prepared,
    in autocommit, over a socket, with fsync off. A round is 12 slices of 100 pairs of each variant, in shuffled turns.
    The CPU is the backend's, by the scheduler. `single_vs_client_txn` is against a client that keeps its own journal
    in four round trips, unfenced and unguarded. `single_client_vs_raw` is `single_wall_vs_raw` through
    `Ledger`, with its records and errors.
    """
    turns = bench.rounds * TURNS
    with workers(bench.servers.fast, turns) as found:
        costs = interleaved(turns, {name: slices.run for name, slices in found.items()})
    wall = {name: [cost.wall for cost in costs[name]] for name in costs}
    cpu = {name: [cost.cpu for cost in costs[name]] for name in costs}

    def ratio(values: list[float], others: list[float]) -> list[float]:
        return by_round(over(values, others), TURNS)

    if LINUX:
        bench.record("single_cpu_vs_raw", ratio(cpu["plain"], cpu["fenced"]))
        bench.record("single_cpu_us", by_round(cpu["fenced"], TURNS))
        bench.record("single_cpu_us_raw", by_round(cpu["plain"], TURNS))
    else:
        bench.skip("single_cpu_vs_raw", "a backend's CPU is read from /proc/PID/schedstat, which is Linux's")
    bench.record("single_wall_vs_raw", ratio(wall["plain"], wall["fenced"]))
    bench.record("single_client_vs_raw", ratio(wall["plain"], wall["client"]))
    bench.record("single_vs_client_txn", ratio(wall["journaled"], wall["fenced"]))
    bench.record("single_wall_us", by_round(wall["fenced"], TURNS))
    bench.record("single_wall_us_client", by_round(wall["client"], TURNS))
    bench.record("single_wall_us_raw", by_round(wall["plain"], TURNS))
