from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import psycopg_pool
import pytest
import redis

from ledger.client import Ledger
from ledger.errors import Busy, LeaseLost
from ledger.lease import AsyncLease, Lease
from ledger.lease.lease import _finish
from ledger.lease.redis_lock import Entry
from tests.faults import FaultProxy

RESOURCE = "settle:m_1"
KEY = "lock:{settle:m_1}"
TTL = 0.6

Take = Callable[..., AsyncLease]
TakeBlocking = Callable[..., Lease]
Fence = Callable[..., Any]


@pytest.fixture
def take_async(dsn: str, redis_url: str, short_kinds: None) -> Take:
    def make(**options: Any) -> AsyncLease:
        return AsyncLease(RESOURCE, **{"db": dsn, "redis": redis_url, **options})

    return make


async def so(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


def test_a_lease_is_taken_with_its_token_active_and_given_back(
    take_async: Take, server: redis.Redis, fence: Fence
) -> None:
    async def body() -> None:
        async with take_async() as lease:
            assert server.get(KEY) == f"{lease.holder}:{lease.token}"
            assert fence() == (lease.token, lease.holder)
            lease.ensure(need=TTL / 2)
        assert await lease.release() is False

    asyncio.run(body())

    assert server.get(KEY) is None


def test_pools_and_functions_of_both_worlds_serve(take_async: Take, dsn: str) -> None:
    async def open_async() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(dsn)

    async def body() -> None:
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, open=False) as pool:
            with psycopg_pool.ConnectionPool(dsn, min_size=1, open=True) as blocking:
                functions = (
                    open_async,
                    lambda: psycopg.AsyncConnection.connect(dsn),
                    lambda: psycopg.connect(dsn),
                )
                for db in (pool, blocking, *functions):
                    async with take_async(db=db) as lease:
                        lease.ensure()

    asyncio.run(body())


def test_an_open_connection_is_refused(take_async: Take, dsn: str) -> None:
    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            take_async(db=connection)

    with pytest.raises(TypeError, match="a function that opens"):
        asyncio.run(body())


def test_a_connection_inside_a_transaction_is_refused(take_async: Take, dsn: str) -> None:
    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute("select 1")

            async def same() -> psycopg.AsyncConnection[Any]:
                return connection

            await take_async(db=same).acquire()

    with pytest.raises(ValueError, match="inside a transaction"):
        asyncio.run(body())


def test_a_held_lease_is_busy(take_async: Take, take: TakeBlocking) -> None:
    async def body() -> None:
        await take_async().acquire()

    with take() as held, pytest.raises(Busy) as busy:
        asyncio.run(body())
    assert busy.value.detail["holder"] == held.holder


def test_many_tasks_wait_for_one_lease_and_each_has_it_alone(take_async: Take) -> None:
    inside = 0
    seen: list[int] = []

    async def work() -> None:
        nonlocal inside
        async with take_async(wait=20) as lease:
            inside += 1
            seen.append(inside)
            await asyncio.sleep(0.01)
            lease.ensure()
            inside -= 1

    async def body() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(work())

    asyncio.run(body())

    assert seen == [1] * 8


def test_a_blocked_event_loop_does_not_stop_the_renewal(take_async: Take, server: redis.Redis) -> None:
    async def body() -> None:
        async with take_async() as lease:
            time.sleep(2 * TTL)  # noqa: ASYNC251 (that is what is tested)
            lease.ensure()
            assert server.get(KEY) == f"{lease.holder}:{lease.token}"

    asyncio.run(body())


def test_losing_the_lease_cancels_the_body_and_says_why(take_async: Take, server: redis.Redis) -> None:
    reached_the_end = False

    async def work() -> None:
        nonlocal reached_the_end
        async with take_async():
            server.set(KEY, "other/1/aa:99", px=60_000)
            await asyncio.sleep(10)
            reached_the_end = True

    async def body() -> None:
        with pytest.raises(LeaseLost) as lost:
            await work()
        assert lost.value.reason == "superseded"
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0.01)  # the task goes on

    start = time.monotonic()
    asyncio.run(body())

    assert not reached_the_end
    assert time.monotonic() - start < 2
    assert server.get(KEY) == "other/1/aa:99"


def test_a_body_that_ends_before_it_hears_of_the_loss_ends_well(take_async: Take, server: redis.Redis) -> None:
    async def body() -> None:
        async with take_async() as lease:
            server.delete(KEY)
            while lease.lost is None:
                time.sleep(0.01)  # noqa: ASYNC251 (so that the cancellation can't arrive)
        await asyncio.sleep(0.01)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(body())


def test_the_bodys_own_exception_is_kept_when_the_lease_is_lost(take_async: Take, server: redis.Redis) -> None:
    async def body() -> None:
        async with take_async():
            server.delete(KEY)
            try:
                await asyncio.sleep(10)
            finally:
                _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        asyncio.run(body())


def test_the_bodys_own_exception_is_kept_when_the_release_fails(
    take_async: Take, proxy: FaultProxy, proxied_url: str
) -> None:
    async def body() -> None:
        async with take_async(redis=proxied_url):
            proxy.mode = "refuse"
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        asyncio.run(body())


def test_a_cancellation_from_outside_stays_one_and_releases(take_async: Take, server: redis.Redis) -> None:
    async def work(entered: asyncio.Event) -> None:
        async with take_async(ttl=30):
            entered.set()
            await asyncio.sleep(10)

    async def body() -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(work(entered))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(body())

    assert server.get(KEY) is None


def test_a_cancellation_from_outside_wins_over_the_loss(take_async: Take, server: redis.Redis) -> None:
    async def work(entered: asyncio.Event) -> None:
        async with take_async() as lease:
            entered.set()
            try:
                await asyncio.sleep(10)
            finally:
                await so(lambda: lease.lost)

    async def body() -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(work(entered))
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        server.delete(KEY)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())


def test_an_outer_timeout_is_told_apart_from_the_loss(take_async: Take, server: redis.Redis) -> None:
    async def body() -> None:
        async with asyncio.timeout(0.3):
            async with take_async(ttl=30):
                await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        asyncio.run(body())
    assert server.get(KEY) is None


def test_a_release_is_finished_though_it_is_cancelled(
    take_async: Take, proxy: FaultProxy, proxied_url: str, server: redis.Redis
) -> None:
    async def body() -> None:
        lease = await take_async(redis=proxied_url, ttl=30).acquire()
        releasing = asyncio.create_task(lease.release())
        await asyncio.sleep(0)
        releasing.cancel()
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing

    asyncio.run(body())

    assert server.get(KEY) is None


def test_what_must_be_finished_is_finished_however_often_it_is_cancelled() -> None:
    finished = False

    async def work() -> None:
        nonlocal finished
        await asyncio.sleep(0.1)
        finished = True

    async def body() -> None:
        task = asyncio.create_task(_finish(work()))
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())

    assert finished


def test_a_take_that_is_under_way_when_it_is_cancelled_is_given_back(take_async: Take, server: redis.Redis) -> None:
    lease = take_async(ttl=30)
    take, taking = lease._lock.take, threading.Event()

    def take_slowly(value: str, ttl: float) -> Entry | None:
        taking.set()
        time.sleep(0.2)
        return take(value, ttl)

    lease._lock.take = take_slowly  # type: ignore[method-assign]

    async def body() -> None:
        acquiring = asyncio.create_task(lease.acquire())
        await asyncio.to_thread(taking.wait)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring

    asyncio.run(body())
    time.sleep(0.3)

    assert server.get(KEY) is None


def test_a_body_that_shrugs_off_the_cancellation_ends_as_it_likes(take_async: Take, server: redis.Redis) -> None:
    async def body() -> None:
        async with take_async():
            server.delete(KEY)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(body())


def test_a_cancelled_waiter_leaves_no_lease(take_async: Take, take: TakeBlocking, server: redis.Redis) -> None:
    async def body() -> None:
        waiting = asyncio.create_task(take_async(wait=30).acquire())
        await so(lambda: server.info("clients")["blocked_clients"])
        waiting.cancel()
        start = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - start < 0.3

    with take() as held:
        asyncio.run(body())
        held.ensure()
    assert server.get(KEY) is None


@pytest.mark.parametrize("world", ["asyncio", "blocking"])
def test_an_activation_that_is_cancelled_gives_the_lease_back(
    take_async: Take, take: TakeBlocking, connect: Any, dsn: str, server: redis.Redis, world: str
) -> None:
    db: Any = dsn if world == "asyncio" else lambda: psycopg.connect(dsn)
    with take() as first:
        writer = connect(autocommit=False)
        Ledger(writer).add_refund("m_1", "r_1", 100, "EUR")
        Ledger(writer).claim_refund("m_1", "r_1", first.token)  # holds the gate while it is open

    async def body() -> None:
        activating = asyncio.create_task(take_async(db=db, ttl=30).acquire())
        await so(lambda: server.get(KEY))
        await asyncio.sleep(0.05)
        activating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await activating

    asyncio.run(body())
    assert server.get(KEY) is None
    writer.rollback()


def test_a_lease_that_is_lost_during_its_activation_has_no_body(
    take_async: Take, interfere: Any, server: redis.Redis, until: Any
) -> None:
    def lose_it() -> None:
        server.set(KEY, "other/1/aa:9")
        until(lambda: lease.lost)

    async def body() -> None:
        async with lease:
            pytest.fail("the body must not run")

    lease = take_async(db=interfere({3}, lose_it))
    with pytest.raises(LeaseLost):
        asyncio.run(body())


def test_a_lease_of_an_ended_loop_does_no_harm_when_it_is_lost(
    take_async: Take, server: redis.Redis, until: Any
) -> None:
    lease = take_async()
    asyncio.run(lease.acquire())
    server.delete(KEY)

    until(lambda: lease.lost)

    assert lease.lost == "broken"
