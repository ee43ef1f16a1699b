"""Many at once: deadlocks, several workers, activations among writers."""

from __future__ import annotations

import logging
import multiprocessing
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg

from bench.measuring import Bench, interleaved, measures, median, over, percentile, seconds
from bench.servers import HOLDER, Database, activated, load, numbered
from ledger.client import Ledger
from ledger.errors import StaleToken, TokenNotActive

Connection = psycopg.Connection[Any]

WORKERS = 8
MERCHANT = "m_1"
RESOURCE = f"settle:{MERCHANT}"

spawn = multiprocessing.get_context("spawn")


# Deadlocks

CALLS = 5000
WINDOW = 24


@measures("deadlocks")
def deadlocks(bench: Bench) -> None:
    """Deadlocks in 5,000 calls of 8 workers on one merchant, all under its token.

    Each worker adds 24 refunds that others add at that moment, claims, and confirms the 24, each
    time in an order of its own: at random, backwards or forwards.
    """
    with bench.servers.fast.database() as database, ExitStack() as stack:
        opened = [stack.enter_context(_connected(database)) for _ in range(WORKERS)]
        token = activated(Ledger(opened[0]), MERCHANT)
        with ThreadPoolExecutor(WORKERS) as threads:
            met = sum(threads.map(lambda number: _in_adverse_order(opened[number], token, number), range(WORKERS)))
    bench.record("deadlocks", [float(met)])


def _in_adverse_order(connection: Connection, token: int, seed: int) -> int:
    ledger, chance, met = Ledger(connection), random.Random(seed), 0
    for step in range(CALLS // WORKERS // 3 + 1):
        ids = numbered(step * WINDOW // 2, step * WINDOW // 2 + WINDOW)
        chance.choice([chance.shuffle, list.reverse, list.sort])(ids)
        for call in (_add, _claim, _confirm):
            try:
                call(ledger, token, ids)
            except psycopg.errors.DeadlockDetected:
                met += 1
    return met


def _add(ledger: Ledger, _: int, ids: list[str]) -> None:
    ledger.add_refunds(MERCHANT, ids, [7025] * len(ids), ["EUR"] * len(ids))


def _claim(ledger: Ledger, token: int, ids: list[str]) -> None:
    ledger.claim_refunds(MERCHANT, token, len(ids))


def _confirm(ledger: Ledger, token: int, ids: list[str]) -> None:
    ledger.confirm_refunds(MERCHANT, token, ids, [f"re_{one}" for one in ids])


# Several workers

REFUNDS_A_WORKER = 6000


@measures("workers8_vs_1")
def workers8_vs_1(bench: Bench) -> None:
    """Refunds a second, claimed and confirmed by hundreds: 8 processes on 8 merchants over one on one merchant.

    Each has 6,000 refunds. The clients' own work is in it, on the same cores as the server's.
    """
    with bench.servers.fast.database() as database, _connected(database) as connection:
        ledger = Ledger(connection)
        merchants = iter(range(1_000_000))

        def rate(workers: int) -> float:
            names = [f"m_{next(merchants)}" for _ in range(workers)]
            for name in names:
                load(ledger, name, numbered(0, REFUNDS_A_WORKER))
            jobs = [(name, activated(ledger, name)) for name in names]
            return workers * REFUNDS_A_WORKER / _all_at_once(database, jobs)

        found = interleaved(bench.rounds, {"eight": lambda: rate(WORKERS), "one": lambda: rate(1)})
    bench.record("workers8_vs_1", over(found["eight"], found["one"]))


def _all_at_once(database: Database, jobs: list[tuple[str, int]]) -> float:
    """The seconds from the common start of processes, one for each merchant, to the end of the last one."""
    start, end = spawn.Barrier(len(jobs) + 1), spawn.Barrier(len(jobs) + 1)
    processes = [
        spawn.Process(target=_settle_all, args=(database.worker, *job, start, end), daemon=True) for job in jobs
    ]
    for process in processes:
        process.start()
    start.wait(60)
    took = seconds(lambda: end.wait(60))
    for process in processes:
        process.join()
    return took


def _settle_all(dsn: str, merchant_id: str, token: int, start: Barrier, end: Barrier) -> None:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        ledger = Ledger(connection)
        start.wait(60)
        after = ""
        while claims := ledger.claim_refunds(merchant_id, token, 100, after):
            ids = [claim.refund_id for claim in claims]
            ledger.confirm_refunds(merchant_id, token, ids, [f"re_{one}" for one in ids])
            after = ids[-1]
        end.wait(60)


# Activation

ACTIVATIONS = 100
IN_A_BATCH = 20
REFUNDS_A_WRITER = 2000


@measures("activate_wait_vs_tx")
def activate_wait_vs_tx(bench: Bench) -> None:
    """How long an activation waits for writers in flight, in lengths of their transactions: 99th percentiles of both.

    8 processes claim without pause under the active token, and go on under the next one when they are refused: once in
    batches of 20, once one by one in transactions that last 5 ms more. 100 activations a round, of each. Lengths are
    those of transactions that committed, from their begin. The figure is the worse of the two.
    """
    with bench.servers.fast.database() as database:
        with psycopg.connect(database.operator, autocommit=True) as operator:
            Ledger(operator).set_kind("settle", max_attempts=1_000_000, actor="bench", reason="claimed again and again")
        with _connected(database) as connection:
            load(Ledger(connection), MERCHANT, numbered(0, WORKERS * REFUNDS_A_WRITER))
        batches = _waits(database, bench.rounds, pause=0.0)
        pauses = _waits(database, bench.rounds, pause=0.005)
    bench.record("activate_wait_vs_tx", max(batches, pauses, key=median))
    bench.record("activate_wait_vs_tx_batches", batches)
    bench.record("activate_wait_vs_tx_5ms", pauses)


def _waits(database: Database, rounds: int, pause: float) -> list[float]:
    """Of each round, the 99th percentile of the waits over that of the lengths."""
    token, ready = spawn.Value("q", 0), spawn.Barrier(WORKERS + 1)
    pipes = [spawn.Pipe() for _ in range(WORKERS)]
    writers = [
        spawn.Process(target=_write_on, args=(database.worker, number, pause, token, ready, theirs), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for writer in writers:
        writer.start()
    with _connected(database) as connection:
        ledger = Ledger(connection)
        token.value = activated(ledger, MERCHANT)
        ready.wait(60)
        found = []
        for _ in range(rounds):
            begun, waits = time.monotonic(), []
            for _ in range(ACTIVATIONS):
                time.sleep(0.02)
                drawn = ledger.draw_token(RESOURCE)
                waits.append(seconds(lambda drawn=drawn: ledger.activate_token(RESOURCE, drawn, HOLDER)))  # type: ignore[misc]
                token.value = drawn
            found.append((begun, time.monotonic(), percentile(waits, 0.99)))
        token.value = 0
    lengths = [length for mine, _ in pipes for length in mine.recv()]
    for writer in writers:
        writer.join()
    return [
        wait / percentile([took for at, took in lengths if begun <= at < ended], 0.99) for begun, ended, wait in found
    ]


def _write_on(dsn: str, number: int, pause: float, token: Any, ready: Barrier, pipe: Pipe) -> None:
    """Claim without pause until the token is 0; then send when each transaction ended, and how long it took."""
    logging.getLogger("ledger").setLevel(logging.ERROR)  # each activation refuses eight calls
    lengths: list[tuple[float, float]] = []
    first = number * REFUNDS_A_WRITER
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        ledger = Ledger(connection)
        ready.wait(60)
        place = first
        while mine := token.value:
            begun = time.monotonic()
            try:
                with connection.transaction():
                    if pause:
                        ledger.claim_refund(MERCHANT, numbered(place, place + 1)[0], mine)
                        connection.execute("select pg_sleep(%s)", [pause])
                    else:
                        ledger.claim_refunds(MERCHANT, mine, IN_A_BATCH, numbered(place, place + 1)[0])
            except (StaleToken, TokenNotActive):
                continue
            ended = time.monotonic()
            lengths.append((ended, ended - begun))
            place = first + (place - first + (1 if pause else IN_A_BATCH)) % (REFUNDS_A_WRITER - IN_A_BATCH)
    pipe.send(lengths)


def _connected(database: Database) -> Connection:
    return psycopg.connect(database.worker, autocommit=True, prepare_threshold=0)
