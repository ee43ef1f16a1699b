"""The Redis where the leases live: eviction, persistence, keys without an end, the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from psycopg import Connection
from psycopg.errors import UndefinedTable

from ledger.doctor.server import distance
from ledger.doctor.symptom import Symptom, fault, note

if TYPE_CHECKING:
    from redis import Redis

KEYS = "lock:{*}"
LONGEST = 24 * 60 * 60
"""Seconds, for a lease whose kind isn't on record."""


def not_looked_at(connection: Connection[Any]) -> Iterator[Symptom]:
    """Leases live in a Redis that nobody named."""
    rows = connection.execute("select kind from ledger.kind where lock = 'redis' order by kind").fetchall()
    if rows:
        yield note(
            f"Redis wasn't looked at; the leases of {', '.join(kind for (kind,) in rows)} live there",
            "Give --redis URL or set LEDGER_REDIS_URL",
        )


def eviction(redis: Redis, connection: Connection[Any]) -> Iterator[Symptom]:
    """No lease is thrown away for lack of memory."""
    memory = _info(redis, "memory")
    policy, limit = str(memory.get("maxmemory_policy", "noeviction")), int(memory.get("maxmemory", 0))
    if policy == "noeviction":
        return
    if limit > 0:
        yield fault(
            f"Redis evicts keys ({policy}) at {limit:,} bytes: a lease may be gone while its holder works",
            "maxmemory-policy noeviction, or a Redis of its own for the leases",
        )
    else:
        yield note(
            f"Redis would evict keys ({policy}) once it has a maxmemory, leases among them",
            "maxmemory-policy noeviction",
        )


def persistence(redis: Redis, connection: Connection[Any]) -> Iterator[Symptom]:
    """Redis can write what it is set to write, or takes no leases."""
    info = _info(redis, "persistence")
    failed = [
        word
        for name, word in (("rdb_last_bgsave_status", "snapshot"), ("aof_last_write_status", "append-only file"))
        if info.get(name, "ok") != "ok"
    ]
    for word in failed:
        yield fault(
            f"Redis could not write its {word}: it refuses writes, and so every lease (MISCONF)",
            "Look at its disk and its log",
        )
    if not failed and not int(info.get("aof_enabled", 0)):
        yield note(
            "Redis keeps no append-only file: a restart gives every lease away; whoever held one is fenced out",
            "Nothing, where that is rare enough: no promise depends on Redis",
        )


def endless_leases(redis: Redis, connection: Connection[Any]) -> Iterator[Symptom]:
    """Every lease ends by itself, within what its kind allows."""
    longest = _lease_seconds(connection)
    for key in redis.scan_iter(match=KEYS, count=1000):
        left = redis.pttl(key) / 1000
        resource = str(key).removeprefix("lock:{").removesuffix("}")
        allowed = longest.get(resource.partition(":")[0], LONGEST)
        mend = f"ledger lease break {resource} --reason '...' fences its holder out and clears it"
        if left == -0.001:
            yield fault(f"the lease on {resource} has no end: its TTL doesn't fall", mend)
        elif left > allowed:
            yield fault(f"the lease on {resource} lasts {left:,.0f} s more; its kind allows {allowed:,.0f}", mend)


def clock_distance(redis: Redis, clock: Callable[[], float]) -> Iterator[Symptom]:
    """Redis' clock and this machine's tell about the same time."""
    before = clock()
    seconds, microseconds = redis.time()
    yield from distance("Redis", seconds + microseconds / 1e6, before, clock())


def _info(redis: Redis, section: str) -> dict[str, Any]:
    info: dict[str, Any] = redis.info(section)
    return info


def _lease_seconds(connection: Connection[Any]) -> dict[str, float]:
    try:
        rows = connection.execute("select kind, extract(epoch from lease_ttl)::float8 from ledger.kind").fetchall()
    except UndefinedTable:
        return {}
    return dict(rows)
