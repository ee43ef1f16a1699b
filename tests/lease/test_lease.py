from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import psycopg_pool
import pytest
import redis

from ledger.client import Ledger
from ledger.errors import BadArgument, Busy, LeaseLost, LeaseUnreachable, StaleToken
from ledger.lease import AdvisoryLease, Lease, new_holder
from tests.faults import FaultProxy

RESOURCE = "settle:m_1"
KEY = "lock:{settle:m_1}"
TTL = 0.6

Take = Callable[..., Lease]
Until = Callable[..., None]
Fence = Callable[..., Any]


def test_a_lease_is_taken_with_its_token_active_and_given_back(take: Take, server: redis.Redis, fence: Fence) -> None:
    with take() as lease:
        assert server.get(KEY) == f"{lease.holder}:{lease.token}"
        assert fence() == (lease.token, lease.holder)
        assert lease.lost is None
        lease.ensure(need=TTL / 2)

    assert server.get(KEY) is None
    assert lease.lost is None


def test_the_ttl_is_the_kinds_unless_given(take: Take, server: redis.Redis) -> None:
    with take() as lease:
        assert lease.ttl == TTL
    with take(ttl=60) as lease:
        assert lease.ttl == 60
        assert server.pttl(KEY) > 59_000


def test_each_attempt_has_a_higher_token_and_a_holder_of_its_own(take: Take) -> None:
    with take() as first:
        pass
    with take() as second:
        pass

    assert second.token > first.token
    assert second.holder != first.holder


def test_a_holder_names_host_process_and_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a:b{c}/d")

    host, pid, attempt = new_holder().split("/")

    assert (host, pid) == ("a-b-c--d", str(os.getpid()))
    assert len(bytes.fromhex(attempt)) == 8


def test_a_pool_a_function_and_a_dsn_all_serve(take: Take, dsn: str) -> None:
    with psycopg_pool.ConnectionPool(dsn, min_size=1, open=True) as pool:
        for db in (pool, lambda: psycopg.connect(dsn), dsn):
            with take(db=db) as lease:
                lease.ensure()


def test_an_open_connection_is_refused_with_what_to_pass(take: Take, dsn: str) -> None:
    with psycopg.connect(dsn) as connection, pytest.raises(TypeError, match="a function that opens"):
        take(db=connection)


def test_a_connection_inside_a_transaction_is_refused_and_left_alone(take: Take, dsn: str, server: redis.Redis) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1")

        with pytest.raises(ValueError, match="inside a transaction"):
            take(db=lambda: connection).acquire()

        assert connection.execute("select 2").fetchone() == (2,)
    assert server.get(KEY) is None


def test_a_ttl_below_the_idle_limit_is_refused_with_both_and_the_remedy(
    take: Take, admin: psycopg.Connection[Any]
) -> None:
    with pytest.raises(BadArgument) as refused:
        take(ttl=0.2).acquire()

    assert refused.value.detail == {"kind": "settle", "ttl": 0.2, "idle_limit": 0.3}
    assert "0.2 s" in str(refused.value)
    assert "0.3 s" in str(refused.value)
    assert "ledger kind set settle --idle-limit 0.2" in str(refused.value)
    assert admin.execute("select count(*) from ledger.draw").fetchone() == (0,)


def test_a_kind_whose_leases_live_in_postgres_is_refused(take: Take, server: redis.Redis) -> None:
    with pytest.raises(BadArgument, match="ledger kind set job --lock redis"):
        take(resource="job:nightly").acquire()

    assert server.keys() == []


@pytest.mark.parametrize(
    "options",
    [{"ttl": 0}, {"ttl": -1}, {"ttl": float("nan")}, {"wait": -1}, {"max_hold": 0}, {"holder": "a:b"}],
)
def test_arguments_that_make_no_sense_are_refused(take: Take, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        take(**options)


def test_a_held_lease_is_busy_and_says_by_whom(take: Take, server: redis.Redis, fence: Fence) -> None:
    with take() as held:
        with pytest.raises(Busy) as busy:
            take().acquire()

        detail = busy.value.detail
        assert (detail["resource"], detail["holder"], detail["token"]) == (
            RESOURCE,
            held.holder,
            held.token,
        )
        assert 0 < detail["ttl_left"] <= TTL
        assert fence() == (held.token, held.holder)
        held.ensure()


def test_a_waiter_is_woken_by_the_release(take: Take, server: redis.Redis, until: Until) -> None:
    held = take(ttl=30).acquire()
    waiter = take(wait=10)
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    until(lambda: server.info("clients")["blocked_clients"])

    start = time.monotonic()
    held.release()
    thread.join(5)

    assert time.monotonic() - start < 0.45  # it would have looked by itself after 0.5 s at the earliest
    waiter.ensure()
    waiter.release()


def test_a_waiter_takes_over_when_a_dead_holders_lease_ends(take: Take, server: redis.Redis) -> None:
    server.set(KEY, "dead/1/aa:1", px=300)
    start = time.monotonic()

    with take(wait=10) as lease:
        lease.ensure()

    assert 0.25 < time.monotonic() - start < 1


def test_a_wait_that_runs_out_is_busy(take: Take) -> None:
    with take(), pytest.raises(Busy, match=r"waited 0\.1 s"):
        take(wait=0.1).acquire()


def test_a_server_that_comes_back_within_the_wait_is_waited_for(
    take: Take, proxy: FaultProxy, proxied_url: str
) -> None:
    proxy.mode = "refuse"
    timer = threading.Timer(0.2, lambda: setattr(proxy, "mode", "pass"))
    timer.start()

    with take(redis=proxied_url, wait=10) as lease:
        lease.ensure()
    timer.join()


def test_without_redis_there_is_no_lease_and_no_activation(take: Take, fence: Fence) -> None:
    with pytest.raises(LeaseUnreachable):
        take(redis="redis://127.0.0.1:1").acquire()

    assert fence() is None


def test_a_lost_reply_of_acquire_is_no_obstacle(
    take: Take, proxy: FaultProxy, proxied_url: str, server: redis.Redis
) -> None:
    first = take(redis=proxied_url)
    first.acquire()
    first.release()
    proxy.lose_replies(1)

    with take(redis=proxied_url) as lease:
        assert proxy.replies_lost == 1
        assert server.get(KEY) == f"{lease.holder}:{lease.token}"


def test_a_number_that_became_void_is_replaced_under_the_same_lease(
    take: Take, interfere: Any, overtake: Callable[[], int], server: redis.Redis, fence: Fence
) -> None:
    with take(db=interfere({3}, overtake)) as lease:
        assert fence() == (lease.token, lease.holder)
        assert server.get(KEY) == f"{lease.holder}:{lease.token}"
        time.sleep(TTL)
        lease.ensure()

    assert server.get(KEY) is None


def test_a_third_void_number_is_busy_and_leaves_no_lease(
    take: Take, interfere: Any, overtake: Callable[[], int], server: redis.Redis, fence: Fence
) -> None:
    database = interfere({3, 5, 7}, overtake)

    with pytest.raises(Busy, match="3 times") as busy:
        take(db=database).acquire()

    assert database.opened == 7
    assert isinstance(busy.value.__cause__, StaleToken)
    assert fence()[1] == "rival"
    assert server.get(KEY) is None


def test_a_lease_lost_before_its_activation_activates_nothing(
    take: Take, interfere: Any, overtake: Callable[[], int], server: redis.Redis, fence: Fence
) -> None:
    def lose_it() -> None:
        overtake()
        server.set(KEY, "other/1/aa:99", px=60_000)

    with pytest.raises(LeaseLost) as lost:
        take(db=interfere({3}, lose_it)).acquire()

    assert lost.value.reason == "superseded"
    assert fence()[1] == "rival"
    assert server.get(KEY) == "other/1/aa:99"


@pytest.mark.parametrize("error", [psycopg.OperationalError("the network"), KeyboardInterrupt()])
def test_an_activation_that_fails_gives_the_lease_back(
    take: Take, interfere: Any, server: redis.Redis, error: BaseException
) -> None:
    def fail() -> None:
        assert server.get(KEY) is not None
        raise error

    with pytest.raises(type(error)):
        take(db=interfere({3}, fail)).acquire()

    assert server.get(KEY) is None


def test_a_lease_is_kept_alive_while_its_activation_waits(
    take: Take, connect: Any, server: redis.Redis, admin: psycopg.Connection[Any], until: Until
) -> None:
    with take() as first:
        writer = connect()
        Ledger(writer).add_refund("m_1", "r_1", 100, "EUR")

        def write_slowly() -> None:
            with writer.transaction():
                Ledger(writer).claim_refund("m_1", "r_1", first.token)
                writer.execute("select pg_sleep(0.6)")

        writing = threading.Thread(target=write_slowly)
        writing.start()
        until(lambda: admin.execute("select 1 from pg_stat_activity where wait_event = 'PgSleep'").fetchone())
        server.delete(KEY)
        start = time.monotonic()

        with take(ttl=0.4) as second:
            assert time.monotonic() - start > 0.4
            second.ensure()
        writing.join()


def test_the_bodys_own_exception_is_kept_when_the_release_fails(
    take: Take, proxy: FaultProxy, proxied_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body() -> None:
        with take(redis=proxied_url):
            proxy.mode = "refuse"
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        body()

    assert "lease_not_given_back" in caplog.messages


def test_a_block_that_ended_well_is_not_spoiled_by_its_release(
    take: Take, proxy: FaultProxy, proxied_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with take(redis=proxied_url):
        proxy.mode = "refuse"

    assert "lease_not_given_back" in caplog.messages


def test_a_release_that_failed_can_be_tried_again(
    take: Take, proxy: FaultProxy, proxied_url: str, server: redis.Redis
) -> None:
    lease = take(redis=proxied_url, ttl=30).acquire()
    proxy.mode = "refuse"
    with pytest.raises(LeaseUnreachable):
        lease.release()
    assert server.get(KEY) is not None
    proxy.mode = "pass"

    assert lease.release() is True
    assert lease.release() is False
    assert server.get(KEY) is None


def test_a_lost_reply_of_release_does_not_keep_the_lease(
    take: Take, proxy: FaultProxy, proxied_url: str, server: redis.Redis
) -> None:
    lease = take(redis=proxied_url, ttl=30).acquire()
    proxy.lose_replies(1)

    lease.release()

    assert proxy.replies_lost == 1
    assert server.get(KEY) is None


def test_leaving_the_block_late_does_not_release_the_next_holders_lease(
    take: Take, server: redis.Redis, until: Until
) -> None:
    with take() as lease:
        server.set(KEY, "other/1/aa:99", px=60_000)
        until(lambda: lease.lost)

    assert lease.lost == "superseded"
    assert server.get(KEY) == "other/1/aa:99"


def test_a_lost_lease_says_why_and_what_to_do(take: Take, server: redis.Redis, until: Until) -> None:
    with take() as lease:
        server.delete(KEY)
        until(lambda: lease.lost)

        with pytest.raises(LeaseLost, match=r"an operator broke it.*Start nothing more") as lost:
            lease.ensure()

        assert lost.value.reason == "broken"
        assert lost.value.detail["token"] == lease.token
        assert lease.remaining() == 0.0


def test_a_call_that_needs_more_time_than_is_left_is_not_begun(take: Take) -> None:
    with take() as lease:
        with pytest.raises(LeaseLost, match="5 are needed"):
            lease.ensure(need=5)
        lease.ensure()


def test_a_lease_is_held_no_longer_than_max_hold(take: Take, until: Until) -> None:
    with take(max_hold=0.2) as lease:
        until(lambda: lease.lost)
        with pytest.raises(LeaseLost) as lost:
            lease.ensure()

    assert lost.value.reason == "max_hold"


def test_a_lease_that_was_given_back_is_not_ours(take: Take) -> None:
    with take() as lease:
        pass

    assert lease.remaining() == 0.0
    with pytest.raises(LeaseLost, match="isn't held"):
        lease.ensure()


def test_a_lease_is_one_attempt(take: Take) -> None:
    with take() as lease:
        pass

    with pytest.raises(RuntimeError, match="Make another one"):
        lease.acquire()


def test_there_is_no_token_before_the_lease_is_taken(take: Take) -> None:
    with pytest.raises(RuntimeError, match="wasn't taken yet"):
        _ = take().token


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_neither_has_nor_releases_the_lease(take: Take, server: redis.Redis) -> None:
    with take() as lease:
        pid = os.fork()
        if pid == 0:
            released = True
            try:
                with pytest.raises(LeaseLost) as lost:
                    lease.ensure()
                assert lost.value.reason == lease.lost == "forked"
                lease.__exit__(None, None, None)
                released = lease.release()
            finally:
                os._exit(1 if released else 0)
        assert os.waitpid(pid, 0)[1] == 0

        assert server.get(KEY) == f"{lease.holder}:{lease.token}"
        time.sleep(TTL)
        lease.ensure()


HOLDER = """
import sys
from ledger.lease import Lease
with Lease("settle:m_1", db=sys.argv[1], redis=sys.argv[2]) as lease:
    print(lease.token, flush=True)
    sys.stdin.readline()
    print(lease.lost, lease.remaining(), flush=True)
"""


def test_a_stopped_holder_delays_the_next_one_by_its_lease_and_knows_when_it_wakes(
    take: Take, dsn: str, redis_url: str, server: redis.Redis, fence: Fence
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, dsn, redis_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        token = int(holder.stdout.readline())
        holder.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        try:
            with take(wait=10) as lease:
                assert time.monotonic() - start < TTL + 0.5
                assert lease.token > token
                holder.send_signal(signal.SIGCONT)
                holder.stdin.write("\n")
                holder.stdin.flush()
                reason, remaining = holder.stdout.readline().split()
                holder.wait(5)

                assert reason in ("expired", "superseded")
                assert float(remaining) == 0
                assert server.get(KEY) == f"{lease.holder}:{lease.token}"
                assert fence() == (lease.token, lease.holder)
        finally:
            holder.kill()


def test_both_leases_have_the_same_face() -> None:
    public = {name for name in dir(Lease) if not name.startswith("_")}

    assert public == {name for name in dir(AdvisoryLease) if not name.startswith("_")}
