"""The lease: round trips, rate against others' locks, handover, and what keeping a thousand alive costs."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psycopg_pool
import redis

from bench.measuring import Bench, by_round, interleaved, measures, over, percentile, seconds
from ledger.lease import Lease
from ledger.lease.redis_lock import RedisLock
from ledger.lease.watchdog import Hold, watchdog

RESOURCE = "settle:m_1"
TTL = 30.0
THREADS = 8

spawn = multiprocessing.get_context("spawn")


@measures("lease_round_trips")
def lease_round_trips(bench: Bench) -> None:
    """Round trips to Redis for a whole `Lease`, taken and given back, once its connection is there.

    Counted by the server, as reads from its clients; 100 leases a round. The token costs three more round trips, to
    Postgres: draw, activate, and the record of how long it was held.
    """
    with (
        bench.servers.fast.database() as database,
        psycopg_pool.ConnectionPool(database.worker, min_size=1, kwargs={"autocommit": True}) as pool,
        redis.Redis.from_url(bench.servers.fast.redis_url) as client,
    ):

        def cycle() -> None:
            with Lease(RESOURCE, db=pool, redis=bench.servers.fast.redis_url, ttl=TTL):
                pass

        def trips() -> float:
            before = client.info("stats")["total_reads_processed"]
            for _ in range(100):
                cycle()
            return float(client.info("stats")["total_reads_processed"] - before - 1) / 100

        cycle()
        bench.record("lease_round_trips", [trips() for _ in range(bench.rounds)])


# Rate

CYCLES = 400
TURNS = 4

Cycle = Callable[[], object]
Make = Callable[[str], Cycle]


@measures("lease_vs_redispy", "lease_vs_redispy_8", "lease_vs_pottery")
def lease_rate(bench: Bench) -> None:
    """Locks taken and given back a second, on one Valkey over its socket, each thread its own lock.

    Redis's part of the lease against redis-py's `Lock` (with hiredis), python-redis-lock's `Lock` and pottery's
    `Redlock` on one master; each with a TTL of 30 s, without waiting, the lock object made once.
    `lease_vs_python_redis_lock` is told beside them.
    """
    url = bench.servers.fast.redis_url
    with _others(url) as others:
        makes = {"ours": lambda name: _ours(url, name), **others}
        found = _taking_turns(bench, makes, threads=1)
        eight = _taking_turns(bench, {name: makes[name] for name in ("ours", "redispy", "pottery")}, threads=THREADS)
    for name in ("redispy", "pottery", "python_redis_lock"):
        bench.record(f"lease_vs_{name}", by_round(over(found[name], found["ours"]), TURNS))
    bench.record("lease_vs_redispy_8", by_round(over(eight["redispy"], eight["ours"]), TURNS))
    bench.record("lease_vs_pottery_8", by_round(over(eight["pottery"], eight["ours"]), TURNS))


def _taking_turns(bench: Bench, makes: dict[str, Make], threads: int) -> dict[str, list[float]]:
    with ThreadPoolExecutor(threads) as pool:
        variants = {
            kind: _timed(pool, [make(f"{kind}:{threads}:{number}") for number in range(threads)])
            for kind, make in makes.items()
        }
        interleaved(1, variants)
        return interleaved(bench.rounds * TURNS, variants)


def _timed(pool: ThreadPoolExecutor, cycles: list[Cycle]) -> Callable[[], float]:
    def turn(cycle: Cycle) -> None:
        for _ in range(CYCLES // len(cycles)):
            cycle()

    return lambda: seconds(lambda: list(pool.map(turn, cycles)))


def _ours(url: str, name: str) -> Cycle:
    lock, value = RedisLock(url, name), "bench/1/aaaaaaaaaaaaaaaa:1"
    return lambda: (lock.take(value, TTL), lock.release(value))


@contextmanager
def _others(url: str) -> Iterator[dict[str, Make]]:
    import pottery
    import redis_lock

    with redis.Redis.from_url(url) as client:

        def redispy(name: str) -> Cycle:
            lock = client.lock(name, timeout=TTL, blocking=False)
            return lambda: (lock.acquire(), lock.release())

        def python_redis_lock(name: str) -> Cycle:
            lock = redis_lock.Lock(client, name, expire=int(TTL))
            return lambda: (lock.acquire(blocking=False), lock.release())

        def redlock(name: str) -> Cycle:
            lock = pottery.Redlock(key=name, masters={client}, auto_release_time=TTL)
            return lambda: (lock.acquire(blocking=False), lock.release())

        yield {"redispy": redispy, "python_redis_lock": python_redis_lock, "pottery": redlock}


# Handover

TRIALS = 200


@measures("handover_p50_ms", "handover_p99_ms")
def handover(bench: Bench) -> None:
    """Milliseconds from before the release to the waiter's having the lease, in another process; 200 trials a round.

    `handover_active_p50_ms` is to the end of the waiter's `acquire`, when its token is active in Postgres as well.
    """
    url = bench.servers.fast.redis_url
    taken, active = [], []
    with (
        bench.servers.fast.database() as database,
        psycopg_pool.ConnectionPool(database.worker, min_size=1, kwargs={"autocommit": True}) as pool,
    ):
        mine, theirs = spawn.Pipe()
        waiter = spawn.Process(target=_wait_for_it, args=(theirs, database.worker, url), daemon=True)
        waiter.start()
        theirs.close()
        mine.recv()
        for _ in range(bench.rounds):
            waits = [_hand_over(pool, url, mine) for _ in range(TRIALS)]
            taken.append([(had - released) * 1000 for released, had, _ in waits])
            active.append([(done - released) * 1000 for released, _, done in waits])
        mine.send("end")
        waiter.join()
    bench.record("handover_p50_ms", [percentile(waits, 0.5) for waits in taken])
    bench.record("handover_p99_ms", [percentile(waits, 0.99) for waits in taken])
    bench.record("handover_active_p50_ms", [percentile(waits, 0.5) for waits in active])


def _hand_over(pool: Any, url: str, waiter: Pipe) -> tuple[float, float, float]:
    """When the lease was about to be released, when the waiter had it, and when its token was active."""
    with Lease(RESOURCE, db=pool, redis=url, ttl=TTL) as lease:
        waiter.send("wait")
        _until_somebody_waits(url)
        released = time.monotonic()
        lease.release()
        had, done = waiter.recv()
    return released, had, done


def _until_somebody_waits(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        while not client.info("clients")["blocked_clients"]:
            time.sleep(0.001)


class _Noting(Lease):
    """A lease that notes when it is taken."""

    taken_at = 0.0

    def _keep(self, *arguments: Any) -> None:
        self.taken_at = time.monotonic()
        super()._keep(*arguments)


def _wait_for_it(pipe: Pipe, dsn: str, url: str) -> None:
    with psycopg_pool.ConnectionPool(dsn, min_size=1, kwargs={"autocommit": True}) as pool:
        pool.wait()
        pipe.send("ready")
        while pipe.recv() == "wait":
            with _Noting(RESOURCE, db=pool, redis=url, ttl=TTL, wait=10) as lease:
                done = time.monotonic()
            pipe.send((lease.taken_at, done))


# The watchdog

LEASES = 1000
WINDOW = 10.0


@measures("watchdog_1000")
def watchdog_1000(bench: Bench) -> None:
    """CPU seconds a minute that a process spends on keeping 1,000 leases of 30 s alive, and nothing else.

    A round is 10 s: each lease is renewed once in it, at a third of its TTL. All of them are still held at the end.
    """
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=_keep_alive, args=(theirs, bench.servers.fast.redis_url, bench.rounds), daemon=True)
    process.start()
    theirs.close()
    found = mine.recv()
    process.join()
    bench.record("watchdog_1000", found)


def _keep_alive(pipe: Pipe, url: str, rounds: int) -> None:
    holds = []
    for number in range(LEASES):
        lock, value, sent_at = (
            RedisLock(url, f"settle:w_{number}"),
            f"bench/1/aaaaaaaaaaaaaaaa:{number}",
            time.monotonic(),
        )
        lock.take(value, TTL)
        holds.append(Hold(lock.server, lock, lock.resource, value, TTL, sent_at))
        watchdog().watch(holds[-1])
    threading.Event().wait(TTL / 3)
    found = []
    for _ in range(rounds):
        used = time.process_time()
        time.sleep(WINDOW)
        found.append((time.process_time() - used) * 60 / WINDOW)
    lost = [hold for hold in holds if hold.lost]
    if lost:
        raise RuntimeError(f"{len(lost)} leases were lost")
    pipe.send(found)
