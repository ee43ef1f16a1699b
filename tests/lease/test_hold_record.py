"""How long leases were held is on record, and recording it stands in nobody's way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import redis

from ledger.lease import AdvisoryLease, AsyncAdvisoryLease, AsyncLease, Lease
from ledger.lease.watchdog import Hold, Reply
from tests.lease.conftest import RESOURCE, TTL, Interferer

Holds = Callable[[], list[Any]]


@pytest.fixture
def holds(admin: psycopg.Connection[Any]) -> Holds:
    """What is on record: resource, token, holder, renewals, late, and whether the seconds make sense."""
    return lambda: admin.execute(
        "select resource, token, holder, (detail ->> 'renewals')::integer, (detail ->> 'late')::integer,"
        " (detail ->> 'seconds')::numeric between 0 and 60 from ledger.event where event = 'held' order by event_id"
    ).fetchall()


def test_a_lease_in_redis_leaves_how_long_it_was_held(take: Callable[..., Lease], holds: Holds) -> None:
    with take() as lease:
        assert holds() == []
    assert holds() == [(RESOURCE, lease.token, lease.holder, 0, 0, True)]


def test_so_does_one_in_postgres(dsn: str, short_kinds: None, holds: Holds) -> None:
    with AdvisoryLease("job:daily", db=dsn) as lease:
        pass
    assert holds() == [("job:daily", lease.token, lease.holder, 0, 0, True)]


def test_so_do_those_of_asyncio(dsn: str, redis_url: str, short_kinds: None, holds: Holds) -> None:
    async def both() -> None:
        async with AsyncLease(RESOURCE, db=dsn, redis=redis_url):
            pass
        async with AsyncAdvisoryLease("job:daily", db=dsn):
            pass

    asyncio.run(both())
    assert [resource for resource, *_ in holds()] == [RESOURCE, "job:daily"]


def test_a_release_that_is_repeated_is_recorded_once(take: Callable[..., Lease], holds: Holds) -> None:
    with take() as lease:
        assert lease.release()
    lease.release()
    assert len(holds()) == 1


def test_renewals_are_counted(
    take: Callable[..., Lease], holds: Holds, until: Callable[[Callable[[], object]], None]
) -> None:
    with take() as lease:
        until(lambda: lease._hold is not None and lease._hold.renewals >= 2)
    assert holds()[0][3] >= 2


class Unasked:
    """A keeper that nobody asks."""

    def renew(self, holds: object, patience: float) -> list[Reply]:
        raise AssertionError


def test_a_renewal_is_late_when_it_comes_a_whole_interval_after_it_was_due() -> None:
    now = time.monotonic()
    hold = Hold(Unasked(), None, RESOURCE, "value", 30.0, now)

    hold.heard(Reply.HELD, "value", now + 11)
    hold.heard(Reply.HELD, "value", now + 11 + 20.5)
    hold.heard(Reply.NO_ANSWER, "value", now + 11 + 20.5 + 10)
    hold.heard(Reply.HELD, "value", now + 11 + 20.5 + 19)

    assert (hold.renewals, hold.late) == (3, 1)


def test_a_lease_that_was_never_activated_leaves_nothing(
    take: Callable[..., Lease], interfere: Callable[..., Interferer], holds: Holds
) -> None:
    def fail() -> None:
        raise psycopg.OperationalError("no room")

    with pytest.raises(psycopg.OperationalError):
        take(db=interfere({3}, fail)).acquire()
    assert holds() == []


def test_a_record_that_fails_hides_nothing_and_the_lease_is_free(
    take: Callable[..., Lease], interfere: Callable[..., Interferer], holds: Holds, server: redis.Redis
) -> None:
    def fail() -> None:
        raise psycopg.OperationalError("Postgres is down")

    with pytest.raises(KeyError, match="the body's own"), take(db=interfere({4}, fail)):
        raise KeyError("the body's own")
    assert holds() == []
    assert not server.exists("lock:{settle:m_1}")


def test_a_lease_that_was_lost_leaves_how_long_the_job_went_on(
    take: Callable[..., Lease], holds: Holds, server: redis.Redis, until: Callable[[Callable[[], object]], None]
) -> None:
    with take(ttl=TTL) as lease:
        server.flushall()
        until(lambda: lease.lost)
    assert [token for _, token, *_ in holds()] == [lease.token]
