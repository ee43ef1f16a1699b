from __future__ import annotations

import math
import threading
import time

import pytest
import redis

from ledger.errors import LeaseUnreachable
from ledger.lease.redis_lock import Entry, RedisLock
from ledger.lease.watchdog import Reply
from tests.faults import FaultProxy

RESOURCE = "settle:m_1"
KEY = "lock:{settle:m_1}"
MINE, OTHER = "host/1/aa:7", "host/2/bb:8"


@pytest.fixture
def lock(redis_url: str) -> RedisLock:
    return RedisLock(redis_url, RESOURCE)


def test_a_free_lease_is_taken_with_its_ttl(lock: RedisLock, server: redis.Redis) -> None:
    assert lock.take(MINE, 5) is None

    assert server.get(KEY) == MINE
    assert 4900 < server.pttl(KEY) <= 5000


def test_a_held_lease_is_shown_with_its_holder_token_and_time(lock: RedisLock) -> None:
    lock.take(OTHER, 5)

    entry = lock.take(MINE, 5)

    assert entry is not None
    assert (entry.holder, entry.token) == ("host/2/bb", 8)
    assert 4.9 < entry.ttl_left <= 5


def test_a_key_that_something_else_wrote_is_in_the_way_all_the_same(lock: RedisLock, server: redis.Redis) -> None:
    server.set(KEY, "hello")

    entry = lock.take(MINE, 5)

    assert entry == Entry("hello", 0.0)
    assert (entry.holder, entry.token) == ("", None)


def test_taking_again_what_is_ours_succeeds_and_lasts_from_now(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(MINE, 2)

    assert lock.take(MINE, 5) is None
    assert server.pttl(KEY) > 4900


def test_a_lost_reply_of_acquire_is_found_to_be_our_own(
    proxy: FaultProxy, proxied_url: str, server: redis.Redis
) -> None:
    lock = RedisLock(proxied_url, RESOURCE)
    lock.peek()
    proxy.lose_replies(1)

    assert lock.take(MINE, 5) is None
    assert proxy.replies_lost == 1
    assert server.get(KEY) == MINE


def test_a_lost_reply_of_release_counts_as_released(proxy: FaultProxy, proxied_url: str, server: redis.Redis) -> None:
    lock = RedisLock(proxied_url, RESOURCE)
    lock.take(MINE, 5)
    proxy.lose_replies(1)

    assert lock.release(MINE) is False  # the second question found nothing to remove

    assert proxy.replies_lost == 1
    assert server.get(KEY) is None


def test_a_lost_reply_of_swap_is_found_to_be_our_own(proxy: FaultProxy, proxied_url: str) -> None:
    lock = RedisLock(proxied_url, RESOURCE)
    lock.take(MINE, 5)
    proxy.lose_replies(1)

    assert lock.swap(MINE, "host/1/aa:9", 5)
    assert proxy.replies_lost == 1


def test_a_lost_reply_of_renew_is_asked_for_again(proxy: FaultProxy, proxied_url: str) -> None:
    lock = RedisLock(proxied_url, RESOURCE)
    lock.take(MINE, 5)
    proxy.lose_replies(1)

    assert lock.renew(MINE, 6) is Reply.HELD


def test_a_server_that_never_answers_is_unreachable_within_two_timeouts(proxy: FaultProxy, proxied_url: str) -> None:
    lock = RedisLock(proxied_url, RESOURCE, timeout=0.05)
    lock.peek()
    proxy.mode = "blackhole"
    start = time.monotonic()

    with pytest.raises(LeaseUnreachable, match="no usable answer about the lease on settle:m_1"):
        lock.take(MINE, 5)
    assert time.monotonic() - start < 1


def test_a_refused_connection_is_unreachable_and_names_no_password() -> None:
    with pytest.raises(LeaseUnreachable) as refused:
        RedisLock("redis://user:hunter2@127.0.0.1:1/0", RESOURCE).take(MINE, 5)

    assert "127.0.0.1:1" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_server_that_takes_no_writes_is_unreachable_in_its_own_words(lock: RedisLock, server: redis.Redis) -> None:
    server.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(LeaseUnreachable, match="read only replica"):
            lock.take(MINE, 5)
    finally:
        server.replicaof("no", "one")


def test_a_connection_that_died_while_idle_is_replaced(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(MINE, 5)
    server.client_kill_filter(_type="normal", skipme=True)

    assert lock.renew(MINE, 5) is Reply.HELD


def test_scripts_that_the_server_forgot_are_sent_again(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(MINE, 5)
    server.script_flush()

    assert lock.renew(MINE, 5) is Reply.HELD
    assert lock.release(MINE)


def test_renewing_lets_the_lease_last_from_now(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(MINE, 1)

    assert lock.renew(MINE, 5) is Reply.HELD
    assert server.pttl(KEY) > 4900


def test_renewing_never_shortens(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(MINE, 5)

    assert lock.renew(MINE, 1) is Reply.HELD
    assert server.pttl(KEY) > 4900


def test_renewing_after_expiry_revives_nothing(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(MINE, 5)
    server.delete(KEY)

    assert lock.renew(MINE, 5) is Reply.BROKEN
    assert server.get(KEY) is None


def test_renewing_too_late_leaves_the_next_holders_lease_alone(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(OTHER, 5)

    assert lock.renew(MINE, 50) is Reply.SUPERSEDED
    assert server.get(KEY) == OTHER
    assert server.pttl(KEY) <= 5000


@pytest.mark.parametrize("ttl", [0, -100, math.nan, math.inf, 0.0001])
def test_a_ttl_that_is_not_above_zero_is_refused_and_changes_nothing(
    lock: RedisLock, server: redis.Redis, ttl: float
) -> None:
    lock.take(MINE, 5)

    for attempt in (lock.renew, lock.take, lambda value, ttl: lock.swap(value, OTHER, ttl)):
        with pytest.raises(ValueError, match="Give a ttl above zero"):
            attempt(MINE, ttl)
    assert server.pttl(KEY) > 4900


def test_swapping_replaces_our_value_and_never_shortens(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(MINE, 5)

    assert lock.swap(MINE, "host/1/aa:9", 1)
    assert server.get(KEY) == "host/1/aa:9"
    assert server.pttl(KEY) > 4900


def test_swapping_takes_nothing_that_is_not_ours(lock: RedisLock, server: redis.Redis) -> None:
    assert not lock.swap(MINE, "host/1/aa:9", 5)
    assert server.get(KEY) is None

    lock.take(OTHER, 5)
    assert not lock.swap(MINE, "host/1/aa:9", 5)
    assert server.get(KEY) == OTHER


def test_anothers_lease_is_never_released(lock: RedisLock, server: redis.Redis) -> None:
    lock.take(OTHER, 5)

    assert not lock.release(MINE)
    assert server.get(KEY) == OTHER


def test_a_token_above_two_to_the_53_is_kept_exactly(lock: RedisLock) -> None:
    value = f"host/1/aa:{2**63 - 1}"
    lock.take(value, 5)

    entry = lock.peek()

    assert entry is not None
    assert entry.token == 2**63 - 1
    assert lock.release(value)


def test_a_release_wakes_a_waiter_at_once(lock: RedisLock, server: redis.Redis, redis_url: str) -> None:
    lock.take(MINE, 30)
    waited: list[float] = []

    def wait() -> None:
        waiter = RedisLock(redis_url, RESOURCE)
        start = time.monotonic()
        waiter.wait(30)
        waited.append(time.monotonic() - start)

    thread = threading.Thread(target=wait)
    thread.start()
    while server.info("clients")["blocked_clients"] == 0:
        time.sleep(0.001)
    lock.release(MINE)
    thread.join(5)

    assert waited[0] < 0.45  # without a wake-up it would have looked again after 0.5 s at the earliest


def test_a_wake_up_that_nobody_waited_for_goes_away(lock: RedisLock, server: redis.Redis) -> None:
    for _ in range(3):
        lock.take(MINE, 5)
        lock.release(MINE)

    assert server.llen("wake:{settle:m_1}") == 1
    assert 0 < server.pttl("wake:{settle:m_1}") <= 1000


def test_every_key_of_a_resource_is_in_one_hash_slot(lock: RedisLock, server: redis.Redis) -> None:
    assert lock.key == KEY
    assert redis.cluster.key_slot(lock.key.encode()) == redis.cluster.key_slot(lock.wake_key.encode())


def test_taking_and_releasing_are_two_round_trips_when_warm(
    proxy: FaultProxy, proxied_url: str, server: redis.Redis
) -> None:
    lock = RedisLock(proxied_url, RESOURCE)
    lock.take(MINE, 5)
    lock.release(MINE)
    before = server.info("commandstats")["cmdstat_evalsha"]["calls"], proxy.replies_passed

    lock.take(MINE, 5)
    lock.release(MINE)

    after = server.info("commandstats")["cmdstat_evalsha"]["calls"], proxy.replies_passed
    assert (after[0] - before[0], after[1] - before[1]) == (2, 2)


def test_a_clients_settings_are_used_and_its_connections_are_not(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url, db=3, decode_responses=True, socket_timeout=60)
    lock = RedisLock(client, RESOURCE)

    lock.take(MINE, 5)

    assert client.get(KEY) == MINE
    assert client.connection_pool._created_connections == 1  # by the line above
    client.close()


def test_an_asyncio_clients_settings_are_used_as_well(redis_url: str, server: redis.Redis) -> None:
    RedisLock(redis.asyncio.Redis.from_url(redis_url), RESOURCE).take(MINE, 5)

    assert server.get(KEY) == MINE


@pytest.mark.parametrize(
    "url", ["localhost", "http://localhost", "redis://:hunter2/x@localhost", "redis://localhost:port"]
)
def test_a_url_that_cannot_be_read_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="the Redis URL can't be read") as refused:
        RedisLock(url, RESOURCE)

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("resource", ["", "settle:{m_1}", "settle:m\n1"])
def test_a_resource_that_would_change_the_hash_slot_is_refused(redis_url: str, resource: str) -> None:
    with pytest.raises(ValueError, match="not a resource"):
        RedisLock(redis_url, resource)


def test_something_that_is_no_redis_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="a Redis URL or client, not int"):
        RedisLock(42, RESOURCE)  # type: ignore[arg-type]
