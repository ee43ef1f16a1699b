"""`async with fenced(db, resource)`: the same for asyncio, over psycopg and asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
import pytest

from ledger import LedgerError, TransactionEnded, fenced
from ledger.client import Ledger
from ledger.errors import LockHeld, StaleToken, UnfencedWrite
from tests.fenced.conftest import ORG, RESOURCE
from tests.fenced.test_fenced import the_one_in_a_transaction
from tests.fenced.worlds import ASYNC_WORLDS, Charge, async_psycopg, async_sqlalchemy_over_asyncpg
from tests.story import BOB, activated, until

World = Callable[[str], AbstractAsyncContextManager[tuple[Any, Callable[..., Any]]]]

everywhere = pytest.mark.parametrize("world", ASYNC_WORLDS, ids=lambda world: world.__name__)


@everywhere
def test_the_block_runs_under_the_jobs_lock(
    world: World, dsn: str, charges: Callable[[], list[str]], admin: psycopg.Connection[Any]
) -> None:
    async def work() -> tuple[int, str | None]:
        async with world(dsn) as (db, add), fenced(db, RESOURCE) as job:
            await add(ORG)
        return job.token, job.holder

    fence = asyncio.run(work())
    assert charges() == [ORG]
    assert fence == admin.execute("select active, holder from ledger.fence where resource = %s", [RESOURCE]).fetchone()


@everywhere
def test_a_stale_token_gets_no_further_than_the_door(
    world: World, dsn: str, ledger: Ledger, recorded: Callable[[], list[Any]]
) -> None:
    stale = activated(ledger, resource=RESOURCE)
    active = activated(ledger, BOB, RESOURCE)

    async def work() -> None:
        async with world(dsn) as (db, add), fenced(db, RESOURCE, stale, refusals=dsn):
            await add(ORG)

    with pytest.raises(StaleToken) as refused:
        asyncio.run(work())
    assert (refused.value.detail["token"], refused.value.detail["active"]) == (stale, active)
    assert recorded() == [("LG101", RESOURCE)]


@everywhere
def test_a_job_that_runs_already_is_told_so(world: World, dsn: str, connection: psycopg.Connection[Any]) -> None:
    async def work() -> None:
        async with world(dsn) as (db, _), fenced(db, RESOURCE):
            pytest.fail("it got in")

    with connection.transaction(), fenced(connection, RESOURCE), pytest.raises(LockHeld):
        asyncio.run(work())


@everywhere
def test_a_write_to_anothers_rows_comes_out_as_our_exception(
    world: World, dsn: str, charges: Callable[[], list[str]], recorded: Callable[[], list[Any]]
) -> None:
    async def work() -> None:
        async with world(dsn) as (db, add), fenced(db, RESOURCE, refusals=dsn):
            await add(ORG)
            await add("org_8")

    with pytest.raises(UnfencedWrite) as refused:
        asyncio.run(work())
    assert refused.value.detail["resource"] == "charges:org_8"
    assert refused.value.message.startswith("insert on public.charge")
    assert refused.value.hint
    assert not isinstance(refused.value.__cause__, LedgerError)
    assert recorded() == [("LG103", "charges:org_8")]
    assert charges() == []


def test_a_flush_at_the_end_of_the_block_is_refused_as_ours(dsn: str, charges: Callable[[], list[str]]) -> None:
    async def work(org: str) -> None:
        async with async_sqlalchemy_over_asyncpg(dsn) as (session, _), fenced(session, RESOURCE):
            session.add(Charge(org_id=org, amount=1))

    asyncio.run(work(ORG))
    with pytest.raises(UnfencedWrite):
        asyncio.run(work("org_8"))
    assert charges() == [ORG]


@everywhere
def test_what_is_not_the_ledgers_comes_out_as_it_is(world: World, dsn: str) -> None:
    async def work() -> None:
        async with world(dsn) as (db, add), fenced(db, RESOURCE):
            await add(ORG, amount=-1)

    with pytest.raises(Exception, match="charge_amount_check") as caught:
        asyncio.run(work())
    assert not isinstance(caught.value, LedgerError)


@everywhere
def test_a_block_that_was_silent_too_long_says_which_limit_ended_it(
    world: World, dsn: str, short_silence: None, gone: Callable[[int], bool], admin: psycopg.Connection[Any]
) -> None:
    async def work() -> None:
        async with world(dsn) as (db, add), fenced(db, RESOURCE):
            (pid,) = the_one_in_a_transaction(admin)
            until(lambda: gone(pid))
            await add(ORG)

    with pytest.raises(TransactionEnded) as ended:
        asyncio.run(work())
    # asyncpg doesn't pass on what Postgres said while it wasn't asked.
    assert ended.value.reason == ("connection_lost" if "asyncpg" in world.__name__ else "idle_limit")
    assert "silent for longer than the idle limit, 500ms" in ended.value.message


def test_each_kind_of_block_says_when_the_other_is_wanted(dsn: str, connection: psycopg.Connection[Any]) -> None:
    async def work() -> None:
        async with async_psycopg(dsn) as (db, _):
            with pytest.raises(TypeError, match="async with fenced"):
                fenced(db, RESOURCE).__enter__()
        with pytest.raises(TypeError, match=r"Use: with fenced"):
            await fenced(connection, RESOURCE).__aenter__()

    asyncio.run(work())
