from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import redis

from ledger.lease import watchdog as module
from ledger.lease.redis_lock import RedisLock
from ledger.lease.watchdog import Hold, Reason, Reply, Watchdog, margin, patience_for, watchdog
from tests.faults import FaultProxy

RESOURCE = "settle:m_1"
KEY = "lock:{settle:m_1}"
MINE, OTHER = "host/1/aa:7", "host/2/bb:8"
TTL = 0.6

Until = Callable[..., None]
Keep = Callable[..., Hold]


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Take a lease and have it watched, until the test ends."""
    kept: list[Hold] = []

    def keep(
        url: str,
        resource: str = RESOURCE,
        ttl: float = TTL,
        max_hold: float | None = None,
        on_lost: Callable[[Reason], None] | None = None,
    ) -> Hold:
        lock = RedisLock(url, resource, patience_for(ttl))
        sent_at = time.monotonic()
        assert lock.take(MINE, ttl) is None
        hold = Hold(lock.server, lock, resource, MINE, ttl, sent_at, max_hold, on_lost)
        watchdog().watch(hold)
        kept.append(hold)
        return hold

    yield keep
    for hold in kept:
        hold.close()
        watchdog().forget(hold)


def watchdog_threads() -> int:
    return sum(thread.name == "ledger-lease-watchdog" for thread in threading.enumerate())


def test_a_watched_lease_outlives_its_ttl(keep: Keep, redis_url: str, server: redis.Redis) -> None:
    hold = keep(redis_url)
    time.sleep(2 * TTL)

    assert hold.lost is None
    assert hold.remaining() > TTL / 2
    assert server.get(KEY) == MINE


def test_the_deadline_counts_from_before_the_question(keep: Keep, proxied_url: str, server: redis.Redis) -> None:
    hold = keep(proxied_url)

    assert hold.remaining() < server.pttl(KEY) / 1000


def test_one_thread_serves_every_lease(keep: Keep, redis_url: str, proxied_url: str) -> None:
    for number in range(5):
        keep(redis_url, f"settle:a_{number}")
        keep(proxied_url, f"settle:b_{number}")

    assert watchdog_threads() == 1


def test_leases_on_one_server_are_renewed_together(
    keep: Keep, proxy: FaultProxy, proxied_url: str, server: redis.Redis, until: Until
) -> None:
    holds = [keep(proxied_url, f"settle:m_{number}", ttl=3.0) for number in range(300)]
    first, before = [hold.until for hold in holds], proxy.replies_passed

    until(lambda: all(hold.until > old for hold, old in zip(holds, first, strict=True)))

    assert proxy.replies_passed - before < 30


def test_a_lease_survives_an_outage_shorter_than_its_ttl(
    keep: Keep, proxy: FaultProxy, proxied_url: str, until: Until
) -> None:
    hold = keep(proxied_url, ttl=1.5)
    proxy.mode = "refuse"
    until(lambda: hold.failing)
    proxy.mode = "pass"
    until(lambda: not hold.failing)

    assert hold.lost is None


def test_a_lost_reply_of_a_renewal_is_no_loss(keep: Keep, proxy: FaultProxy, proxied_url: str, until: Until) -> None:
    hold = keep(proxied_url)
    first = hold.until
    proxy.lose_replies(1)

    until(lambda: proxy.replies_lost == 1 and hold.until > first)

    assert hold.lost is None


def test_a_lease_whose_server_stays_silent_is_lost_at_its_deadline_and_not_before(
    keep: Keep, proxy: FaultProxy, proxied_url: str, until: Until
) -> None:
    told: list[tuple[Reason, float]] = []
    hold = keep(proxied_url, on_lost=lambda reason: told.append((reason, time.monotonic())))
    proxy.mode = "blackhole"
    until(lambda: told)

    reason, when = told[0]
    assert (reason, hold.lost, hold.remaining()) == ("unreachable", "unreachable", 0.0)
    assert hold.until <= when < hold.until + 0.4


def test_a_lease_that_another_holds_is_superseded(
    keep: Keep, redis_url: str, server: redis.Redis, until: Until
) -> None:
    hold = keep(redis_url)
    server.set(KEY, OTHER, px=60_000)
    until(lambda: hold.lost)

    assert hold.lost == "superseded"
    assert server.get(KEY) == OTHER


def test_a_lease_that_was_cleared_is_broken(keep: Keep, redis_url: str, server: redis.Redis, until: Until) -> None:
    hold = keep(redis_url)
    server.delete(KEY)
    until(lambda: hold.lost)

    assert hold.lost == "broken"
    assert server.get(KEY) is None


def test_a_lease_is_kept_no_longer_than_max_hold(keep: Keep, redis_url: str, server: redis.Redis, until: Until) -> None:
    hold = keep(redis_url, max_hold=0.3)

    assert hold.remaining() <= 0.3
    until(lambda: hold.lost)
    assert hold.lost == "max_hold"
    until(lambda: server.get(KEY) is None)


def test_a_lease_that_nobody_renews_is_expired_for_whoever_asks() -> None:
    hold = Hold(_Broken(), None, RESOURCE, MINE, 0.05, time.monotonic())
    assert hold.lost is None
    time.sleep(0.06)

    assert hold.lost == "expired"


def test_only_the_first_reason_counts() -> None:
    told: list[Reason] = []
    hold = Hold(_Broken(), None, RESOURCE, MINE, 60, time.monotonic(), on_lost=told.append)

    hold.lose("broken")
    hold.lose("superseded")

    assert (hold.lost, told) == ("broken", ["broken"])


def test_what_comes_after_the_lease_was_given_back_is_no_loss() -> None:
    hold = Hold(_Broken(), None, RESOURCE, MINE, 60, time.monotonic())
    hold.close()

    hold.heard(Reply.BROKEN, MINE, time.monotonic())

    assert hold.lost is None
    assert hold.remaining() == 0.0


def test_a_connection_that_died_while_idle_costs_no_renewal(keep: Keep, redis_url: str, server: redis.Redis) -> None:
    hold = keep(redis_url, ttl=30)
    server.client_kill_filter(_type="normal", skipme=True)

    assert hold.keeper.renew([hold], patience_for(30)) == [Reply.HELD]


def test_a_server_that_falls_silent_in_the_middle_is_waited_for_once_and_not_for_each_lease(
    keep: Keep, proxy: FaultProxy, proxied_url: str, server: redis.Redis
) -> None:
    holds = [keep(proxied_url, f"settle:m_{number}", ttl=30) for number in range(20)]
    server.script_flush()  # so that each has to be asked about again
    proxy.go_dark_after(replies=1)
    start = time.monotonic()

    replies = holds[0].keeper.renew(holds, 0.2)

    assert replies == [Reply.NO_ANSWER] * 20
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("swapping", [True, False])
def test_an_answer_that_crossed_with_a_swap_is_no_loss(swapping: bool) -> None:
    hold = Hold(_Broken(), None, RESOURCE, MINE, 60, time.monotonic())
    if swapping:
        hold.swapping = True
    else:
        hold.value = "host/1/aa:9"

    hold.heard(Reply.SUPERSEDED, MINE, time.monotonic())

    assert hold.lost is None


class _Broken:
    """A keeper with a mistake in it."""

    def __init__(self) -> None:
        self.asked = 0

    def renew(self, holds: Sequence[Hold], patience: float) -> Sequence[Reply]:
        self.asked += 1
        raise RuntimeError("a mistake")


def test_the_watchdog_survives_a_holder_that_cannot_be_told(
    keep: Keep, redis_url: str, server: redis.Redis, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(reason: Reason) -> None:
        raise RuntimeError("a mistake")

    good, bad = keep(redis_url), keep(redis_url, "settle:m_2", on_lost=fail)
    server.delete("lock:{settle:m_2}")
    until(lambda: bad.lost)
    first = good.until

    until(lambda: good.until > first)

    assert "holder_not_told" in caplog.messages


def test_the_watchdog_survives_a_mistake_in_a_renewal(
    keep: Keep, redis_url: str, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    good, keeper = keep(redis_url), _Broken()
    bad = Hold(keeper, None, "settle:m_2", MINE, TTL, time.monotonic())
    watchdog().watch(bad)
    until(lambda: bad.lost)
    first = good.until
    until(lambda: good.until > first)

    assert (bad.lost, good.lost) == ("unreachable", None)
    assert keeper.asked > 1
    assert "lease_renewals_broke" in caplog.messages


def test_a_silent_server_starves_no_lease_on_another(
    keep: Keep, proxy: FaultProxy, proxied_url: str, redis_url: str, until: Until
) -> None:
    silent = [keep(proxied_url, f"settle:far_{number}", ttl=1.2) for number in range(20)]
    near = keep(redis_url, "settle:near", ttl=0.6)
    proxy.mode = "blackhole"

    until(lambda: all(hold.lost for hold in silent))

    assert near.lost is None


def test_a_server_is_waited_for_well_below_the_renewal_interval() -> None:
    for ttl in (0.3, 1, 3, 10, 30, 3600):
        assert 0 < patience_for(ttl) <= min(1.0, ttl / 4)
        assert 0 < margin(ttl) < ttl / 10


def in_child(act: Callable[[], object]) -> str:
    """What `act` returns in a forked child, as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = repr(act())
        except BaseException as error:
            answer = repr(error)
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    os.waitpid(pid, 0)
    return text


pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_a_forked_child_does_not_have_the_lease(keep: Keep, redis_url: str) -> None:
    hold = keep(redis_url)

    assert in_child(lambda: (hold.lost, hold.remaining(), watchdog_threads())) == "('forked', 0.0, 0)"
    assert hold.lost is None


def test_a_forked_child_keeps_leases_of_its_own(keep: Keep, redis_url: str, server: redis.Redis) -> None:
    parents = keep(redis_url)

    def childs_lease() -> object:
        hold = keep(redis_url, "settle:child", ttl=0.4)
        time.sleep(0.8)
        return hold.lost, hold.remaining() > 0, watchdog_threads()

    assert in_child(childs_lease) == "(None, True, 1)"
    assert parents.lost is None
    assert server.get(KEY) == MINE


def test_a_forked_child_does_not_talk_on_its_parents_connections(redis_url: str) -> None:
    lock = RedisLock(redis_url, RESOURCE)

    def connection() -> object:
        return lock.server.call(lock, ("CLIENT", "ID"), 1.0)

    parents = repr(connection())

    assert in_child(connection) != parents
    assert repr(connection()) == parents


def test_a_fork_while_the_watchdog_is_busy_leaves_no_lock_behind() -> None:
    with module.watchdog()._changed:
        answer = in_child(lambda: watchdog().forget(Hold(_Broken(), None, RESOURCE, MINE, 1, 0.0)))

    assert answer == "None"


def test_a_watchdog_without_leases_has_no_thread() -> None:
    assert Watchdog()._thread is None
