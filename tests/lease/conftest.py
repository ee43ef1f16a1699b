"""What the lease's tests share: a lease's key, looked at from outside, and a network that can fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
import redis

from ledger.lease.redis_lock import PEEK, RELEASE, RENEW, SWAP, TAKE
from tests.faults import FaultProxy


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
