"""What the lease's tests share: a lease's key, looked at from outside, and a network that can fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from ledger.client import Ledger
from ledger.lease import Lease
from ledger.lease.redis_lock import PEEK, RELEASE, RENEW, SWAP, TAKE
from tests.faults import FaultProxy

RESOURCE = "settle:m_1"
TTL = 0.6


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """A client to look at the keys with."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def proxy(redis_url: str) -> Iterator[FaultProxy]:
    """The network between a lease and its Redis."""
    parts = urlsplit(redis_url)
    upstream = parts.path if parts.scheme == "unix" else (parts.hostname or "", parts.port or 6379)
    with FaultProxy(upstream) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(proxy: FaultProxy, server: redis.Redis) -> str:
    # Known scripts, so that a lost reply is one to the question itself and not to its first mention.
    for script in (TAKE, SWAP, RENEW, RELEASE, PEEK):
        server.script_load(script.text)
    return f"redis://{proxy.host}:{proxy.port}"


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait until something is so."""

    def wait(condition: Callable[[], object], within: float = 5.0) -> None:
        end = time.monotonic() + within
        while not condition():
            assert time.monotonic() < end, "it never came to that"
            time.sleep(0.002)

    return wait


@pytest.fixture
def short_kinds(operator_dsn: str) -> None:
    """Kinds whose limits are as short as the tests' leases: `settle` in Redis, `job` in Postgres."""
    with psycopg.connect(operator_dsn, autocommit=True) as operator:
        for kind, lock in (("settle", "redis"), ("job", "advisory")):
            Ledger(operator).set_kind(
                kind,
                lock=lock,
                lease_ttl=timedelta(seconds=TTL),
                idle_limit=timedelta(seconds=0.3),
                lock_limit=timedelta(seconds=0.5),
                actor="tests",
                reason="short limits",
            )


@pytest.fixture
def take(dsn: str, redis_url: str, short_kinds: None) -> Callable[..., Lease]:
    """Make a lease on settle:m_1, not yet taken."""

    def make(**options: Any) -> Lease:
        return Lease(options.pop("resource", RESOURCE), **{"db": dsn, "redis": redis_url, **options})

    return make


@pytest.fixture
def fence(admin: psycopg.Connection[Any]) -> Callable[[str], tuple[int, str] | None]:
    """A resource's active token and its holder."""

    def read(resource: str = RESOURCE) -> tuple[int, str] | None:
        return admin.execute("select active, holder from ledger.fence where resource = %s", [resource]).fetchone()

    return read


class Interferer:
    """A connect function that does something first, at the times it is told to."""

    def __init__(self, dsn: str, at: Container[int], act: Callable[[], object]) -> None:
        self.dsn = dsn
        self.at = at
        self.act = act
        self.opened = 0

    def __call__(self) -> psycopg.Connection[Any]:
        self.opened += 1
        if self.opened in self.at:
            self.act()
        return psycopg.connect(self.dsn)


@pytest.fixture
def interfere(dsn: str) -> Callable[[Container[int], Callable[[], object]], Interferer]:
    """Do something before the n-th call a lease sends: 1 get_kind, 2 draw, 3 activate, 4 draw, 5 activate."""
    return lambda at, act: Interferer(dsn, at, act)


@pytest.fixture
def overtake(rival: psycopg.Connection[Any]) -> Callable[[], int]:
    """Draw and activate as another holder, without a lease."""

    def overtake() -> int:
        token = Ledger(rival).draw_token(RESOURCE)
        Ledger(rival).activate_token(RESOURCE, token, "rival")
        return token

    return overtake
