"""What the tests of settling share: both worlds behind one call, and gateways that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from ledger.client import Ledger
from ledger.lease.redis_lock import PEEK, RELEASE, RENEW, SWAP, TAKE
from ledger.sandbox import AsyncSandboxGateway, SandboxControl, SandboxGateway, SandboxProcess
from ledger.settle import Options, settle, settle_async
from ledger.settlement import Report
from tests.faults import FaultProxy
from tests.settle.gateways import InThreads
from tests.story import MERCHANT


class Settle(Protocol):
    """Settle m_1 in one of the two worlds."""

    def __call__(self, gateway: Any, **options: Any) -> Report: ...


@pytest.fixture(params=["threads", "tasks"])
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settled(world: str, dsn: str, redis_url: str) -> Settle:
    """Settle m_1: Options' fields and settle's own arguments by their names."""

    def settled(gateway: Any, **given: Any) -> Report:
        ours = ("db", "redis", "stop", "notify", "ttl", "wait")
        own: dict[str, Any] = {name: given.pop(name) for name in ours if name in given}
        merchant_id = given.pop("merchant_id", MERCHANT)
        options = Options(**given)
        arguments: dict[str, Any] = {"db": dsn, "redis": redis_url, "options": options, **own}
        if world == "threads":
            return settle(merchant_id, gateway=gateway, **arguments)
        waits = gateway if isinstance(gateway, AsyncSandboxGateway) else InThreads(gateway)
        return asyncio.run(settle_async(merchant_id, gateway=waits, **arguments))

    return settled


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[SandboxProcess]:
    """A sandbox gateway in its own process, with a log of its own."""
    with SandboxProcess(tmp_path / "gateway.log") as process:
        yield process


@pytest.fixture
def control(sandbox: SandboxProcess) -> Iterator[SandboxControl]:
    with SandboxControl(sandbox.url) as control:
        yield control


@pytest.fixture
def at_sandbox(sandbox: SandboxProcess) -> Iterator[SandboxGateway]:
    with SandboxGateway(sandbox.url) as gateway:
        yield gateway


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """A client to look at the lease's key with."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def redis_proxy(redis_url: str, server: redis.Redis) -> Iterator[FaultProxy]:
    """The network between a settlement and its Redis."""
    for script in (TAKE, SWAP, RENEW, RELEASE, PEEK):
        server.script_load(script.text)
    with FaultProxy(_place(redis_url)) as proxy:
        yield proxy


@pytest.fixture
def postgres_proxy(dsn: str) -> Iterator[FaultProxy]:
    """The network between a settlement and its Postgres."""
    place = psycopg.conninfo.conninfo_to_dict(dsn)
    with FaultProxy(f"{place['host']}/.s.PGSQL.{place['port']}") as proxy:
        yield proxy


@pytest.fixture
def proxied_dsn(postgres_proxy: FaultProxy, dsn: str) -> str:
    return psycopg.conninfo.make_conninfo(
        dsn, host=postgres_proxy.host, port=postgres_proxy.port, sslmode="disable", gssencmode="disable"
    )


def _place(redis_url: str) -> tuple[str, int] | str:
    parts = urlsplit(redis_url)
    return parts.path if parts.scheme == "unix" else (parts.hostname or "", parts.port or 6379)


@pytest.fixture
def short_lease(operators: Ledger) -> float:
    """The kind's leases are as short as a test can wait for: so many seconds."""
    ttl = 0.6
    operators.set_kind(
        "settle",
        lease_ttl=timedelta(seconds=ttl),
        idle_limit=timedelta(seconds=0.3),
        lock_limit=timedelta(seconds=0.5),
        actor="tests",
        reason="short limits",
    )
    return ttl


@pytest.fixture
def states(admin: psycopg.Connection[Any]) -> Callable[..., dict[str, str]]:
    """The refunds of m_1 and their states."""

    def read(merchant_id: str = MERCHANT) -> dict[str, str]:
        return dict(
            admin.execute(
                "select refund_id, state from ledger.refund where merchant_id = %s order by 1", [merchant_id]
            ).fetchall()
        )

    return read


@pytest.fixture
def in_order(admin: psycopg.Connection[Any]) -> Callable[[], bool]:
    """Whether nothing that is written down twice disagrees."""
    return lambda: Ledger(admin).verify() == []
