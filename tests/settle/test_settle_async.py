"""What only asyncio callers meet: cancellation, their event loop, and connections of both worlds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import psycopg_pool
import pytest
import redis

from ledger.client import Ledger
from ledger.gateway import Answer, Found, Nothing, Payable, Sent
from ledger.sandbox import AsyncSandboxGateway, SandboxProcess, read_movements
from ledger.settle import Options, settle_async
from ledger.settlement import Report
from tests.settle.gateways import KEY, add
from tests.story import MERCHANT

States = Callable[..., dict[str, str]]


class Shop:
    """A gateway on the event loop: each refund waits for what it is told to wait for."""

    def __init__(self, waits: dict[str, Callable[[], Any]] | None = None) -> None:
        self.waits = waits or {}
        self.sent: list[str] = []

    async def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        self.sent.append(refund.refund_id)
        if refund.refund_id in self.waits:
            await self.waits[refund.refund_id]()
        return Sent(f"re_{refund.refund_id}")

    async def find(self, key: str, timeout: float) -> Found:
        return Nothing()


@pytest.fixture
def begin(dsn: str, redis_url: str) -> Callable[..., asyncio.Task[Report]]:
    """Settle m_1 in a task."""

    def begin(gateway: Any, **given: Any) -> asyncio.Task[Report]:
        own: dict[str, Any] = {name: given.pop(name) for name in ("db", "stop") if name in given}
        arguments: dict[str, Any] = {"db": dsn, "redis": redis_url, "options": Options(**given), **own}
        return asyncio.create_task(settle_async(MERCHANT, gateway=gateway, **arguments))

    return begin


Begin = Callable[..., "asyncio.Task[Report]"]


def test_a_cancelled_settlement_gives_back_what_it_did_not_try(
    begin: Begin, ledger: Ledger, states: States, server: redis.Redis
) -> None:
    add(ledger, 10)

    async def body() -> None:
        reached, never = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            reached.set()
            await never.wait()

        task = begin(Shop({"r_003": hang}), in_flight=1, batch=10)
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())

    assert states() == {"r_001": "sent", "r_002": "sent", "r_003": "unknown"} | {
        f"r_{number:03}": "pending" for number in range(4, 11)
    }
    assert server.get(KEY) is None


@pytest.mark.parametrize("after", range(6))
def test_wherever_it_is_cancelled_nothing_is_left_claimed(
    after: int, begin: Begin, ledger: Ledger, states: States, server: redis.Redis
) -> None:
    add(ledger, 12)

    async def body() -> None:
        steps = 0
        reached = asyncio.Event()

        async def step() -> None:
            nonlocal steps
            steps += 1
            if steps > after:
                reached.set()

        shop = Shop({f"r_{number:03}": step for number in range(1, 13)})
        task = begin(shop, in_flight=2, batch=3)
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())

    assert "sending" not in states().values()
    assert server.get(KEY) is None


def test_a_time_limit_around_it_is_a_time_limit(
    begin: Begin, ledger: Ledger, states: States, server: redis.Redis
) -> None:
    add(ledger, 2)

    async def body() -> None:
        async def hang() -> None:
            await asyncio.sleep(30)

        async with asyncio.timeout(0.4):
            await begin(Shop({"r_001": hang, "r_002": hang}), in_flight=1)

    with pytest.raises(TimeoutError):
        asyncio.run(body())
    assert states() == {"r_001": "unknown", "r_002": "pending"}
    assert server.get(KEY) is None


def test_an_adapter_that_is_cancelled_by_its_own_library_has_no_answer(
    begin: Begin, ledger: Ledger, states: States
) -> None:
    add(ledger, 2)

    async def body() -> None:
        async def cancelled() -> None:
            raise asyncio.CancelledError

        await begin(Shop({"r_001": cancelled}))

    asyncio.run(body())
    assert states() == {"r_001": "unknown", "r_002": "sent"}


def test_the_event_loop_goes_on_meanwhile(begin: Begin, ledger: Ledger) -> None:
    add(ledger, 200)

    async def body() -> float:
        longest = 0.0
        loop = asyncio.get_running_loop()
        task = begin(Shop())
        while not task.done():
            before = loop.time()
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - before)
        assert task.result().counts["sent"] == 200
        return longest

    assert asyncio.run(body()) < 0.5


def test_an_event_of_asyncio_stops_it(begin: Begin, ledger: Ledger, states: States) -> None:
    add(ledger, 10)

    async def body() -> Report:
        stop = asyncio.Event()

        async def ask_to_stop() -> None:
            stop.set()
            await asyncio.sleep(0.1)

        return await begin(Shop({"r_002": ask_to_stop}), in_flight=2, batch=10, stop=stop)

    report = asyncio.run(body())
    assert report.stopped
    assert states()["r_002"] == "sent"
    assert states()["r_010"] == "pending"


def test_connections_of_both_worlds_serve(begin: Begin, ledger: Ledger, dsn: str) -> None:
    async def open_async() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(dsn)

    async def body() -> None:
        count = 0
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False) as pool:
            functions = (open_async, lambda: psycopg.AsyncConnection.connect(dsn), lambda: psycopg.connect(dsn))
            for db in (pool, *functions):
                count += 1
                add(ledger, count)
                report = await begin(Shop(), db=db)
                assert report.counts == {"claimed": 1, "sent": 1}

    asyncio.run(body())


def test_an_asyncio_pools_connection_goes_back_open_and_as_it_was(begin: Begin, ledger: Ledger, dsn: str) -> None:
    async def body() -> None:
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:

            async def session() -> tuple[int, bool]:
                async with pool.connection() as connection:
                    return connection.info.backend_pid, connection.autocommit

            before = await session()
            await begin(Shop(), db=pool)
            assert await session() == before

    add(ledger, 1)
    asyncio.run(body())


def test_the_sandbox_is_settled_from_the_event_loop(
    begin: Begin, ledger: Ledger, sandbox: SandboxProcess, states: States
) -> None:
    add(ledger, 50)

    async def body() -> None:
        async with AsyncSandboxGateway(sandbox.url) as gateway:
            await begin(gateway)

    asyncio.run(body())
    assert set(states().values()) == {"sent"}
    assert len(read_movements(sandbox.log)) == 50
