"""Two queues on Postgres, each set up as its own docs advise for speed, with jobs that do nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
import pgqueuer
import procrastinate
import psycopg
from pgqueuer.db import AsyncpgDriver, Driver, PsycopgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.queries import Queries

from bench.servers import Database

JOBS = 600
CONCURRENCY = 20
PGQUEUER_JOBS = 4000
PGQUEUER_BATCHES = (10, 100)


def install(database: Database) -> None:
    """Give both their tables."""
    asyncio.run(_install(database))


def rate_of_procrastinate(database: Database) -> float:
    """Jobs a second: 20 at a time, finished ones deleted."""
    return asyncio.run(_procrastinate(database))


def rate_of_pgqueuer_with_psycopg(database: Database) -> float:
    """Jobs a second: the better of batches of 10 and of 100."""
    return _pgqueuer(database, _psycopg_driver)


def rate_of_pgqueuer_with_asyncpg(database: Database) -> float:
    """The same with the other driver."""
    return _pgqueuer(database, _asyncpg_driver)


async def _install(database: Database) -> None:
    async with _app(database).open_async() as app:
        await app.schema_manager.apply_schema_async()
    connection = await asyncpg.connect(database.admin)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


class _Clock:
    """Runs from the first job's start: what a worker does before that isn't counted."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self.jobs = 0

    def tick(self) -> None:
        """A job is run."""
        self.jobs += 1
        if self._begun is None:
            self._begun = time.perf_counter()

    def rate(self) -> float:
        """Jobs a second, up to now."""
        assert self._begun is not None
        return self.jobs / (time.perf_counter() - self._begun)


def _app(database: Database) -> procrastinate.App:
    return procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=database.admin, min_size=CONCURRENCY, max_size=CONCURRENCY)
    )


async def _procrastinate(database: Database) -> float:
    clock = _Clock()
    app = _app(database)

    @app.task(name="nothing", queue="nothing")
    async def nothing() -> None:
        clock.tick()

    async with app.open_async():
        await nothing.batch_defer_async(*[{} for _ in range(JOBS)])
        await app.run_worker_async(
            queues=["nothing"], wait=False, concurrency=CONCURRENCY, listen_notify=False, delete_jobs="always",
            install_signal_handlers=False,
        )  # fmt: skip
        return clock.rate()


async def _psycopg_driver(database: Database) -> Driver:
    return PsycopgDriver(await psycopg.AsyncConnection.connect(database.admin, autocommit=True))


async def _asyncpg_driver(database: Database) -> Driver:
    return AsyncpgDriver(await asyncpg.connect(database.admin))


def _pgqueuer(database: Database, connect: Callable[[Database], Awaitable[Driver]]) -> float:
    """The better of the sizes."""
    return max(asyncio.run(_drain(database, connect, size)) for size in PGQUEUER_BATCHES)


async def _drain(database: Database, connect: Callable[[Database], Awaitable[Driver]], size: int) -> float:
    clock = _Clock()
    queue = pgqueuer.PgQueuer(await connect(database))

    @queue.entrypoint("nothing")
    async def nothing(job: pgqueuer.Job) -> None:
        clock.tick()

    count = PGQUEUER_JOBS
    await queue.qm.queries.enqueue(["nothing"] * count, [None] * count, [0] * count)
    await queue.qm.run(batch_size=size, mode=QueueExecutionMode.drain)
    return clock.rate()
