from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest

from ledger import dev
from ledger.errors import BadArgument, Busy, LeaseLost, LockHeld
from ledger.lease import AdvisoryLease, AsyncAdvisoryLease
from ledger.lease.advisory import refuse_pooler
from tests.faults import FaultProxy

JOB = "job:nightly"
TTL = 0.6
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

Take = Callable[..., AdvisoryLease]
TakeAsync = Callable[..., AsyncAdvisoryLease]
Until = Callable[..., None]
Fence = Callable[..., Any]
Holders = Callable[[], list[int]]


@pytest.fixture
def take_job(dsn: str, short_kinds: None) -> Take:
    def make(**options: Any) -> AdvisoryLease:
        return AdvisoryLease(options.pop("resource", JOB), **{"db": dsn, **options})

    return make


@pytest.fixture
def take_job_async(dsn: str, short_kinds: None) -> TakeAsync:
    def make(**options: Any) -> AsyncAdvisoryLease:
        return AsyncAdvisoryLease(JOB, **{"db": dsn, **options})

    return make


@pytest.fixture
def holders(admin: psycopg.Connection[Any]) -> Holders:
    """The sessions of this database that hold an advisory lock."""

    def read() -> list[int]:
        rows = admin.execute(
            "select pid from pg_locks where locktype = 'advisory' and granted and database ="
            " (select oid from pg_database where datname = current_database())"
        )
        return [pid for (pid,) in rows]

    return read


@pytest.fixture
def dark_dsn(servers: dev.Servers, database: str) -> Iterator[tuple[str, FaultProxy]]:
    """The database behind a network that can fail."""
    path = str(servers.sockets / f".s.PGSQL.{servers.postgres.port}")
    with FaultProxy(path) as proxy:
        yield (
            f"postgresql://ledger_worker@{proxy.host}:{proxy.port}/{database}?sslmode=disable&gssencmode=disable",
            proxy,
        )


def test_a_job_is_held_with_its_token_active_and_given_back(take_job: Take, fence: Fence, holders: Holders) -> None:
    with take_job() as lease:
        assert fence(JOB) == (lease.token, lease.holder)
        assert len(holders()) == 1
        lease.ensure(need=TTL / 2)

    assert holders() == []
    assert lease.release() is False


def test_a_held_job_is_busy_and_keeps_what_postgres_said(take_job: Take, fence: Fence) -> None:
    with take_job() as held:
        with pytest.raises(Busy) as busy:
            take_job().acquire()

        assert busy.value.detail["resource"] == JOB
        assert isinstance(busy.value.__cause__, LockHeld)
        assert fence(JOB) == (held.token, held.holder)


def test_a_waiter_is_woken_by_the_release(take_job: Take, until: Until, admin: Any) -> None:
    held = take_job().acquire()
    waiter = take_job(wait=10)
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    until(
        lambda: admin.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'"
        ).fetchone()
    )

    held.release()
    thread.join(5)

    waiter.ensure()
    waiter.release()


def test_a_wait_that_runs_out_is_busy(take_job: Take) -> None:
    with take_job(), pytest.raises(Busy):
        take_job(wait=0.1).acquire()


def test_the_watchdog_keeps_the_session_alive_past_the_ttl(take_job: Take, holders: Holders) -> None:
    with take_job() as lease:
        time.sleep(2 * TTL)
        lease.ensure()
        assert len(holders()) == 1


def test_the_server_is_told_to_end_a_silent_session_after_the_ttl(take_job: Take) -> None:
    with take_job(ttl=12.5) as lease:
        assert lease._session is not None
        connection = lease._session.connection
        assert isinstance(connection, psycopg.Connection)
        with lease._session.asking:
            assert connection.execute("show idle_session_timeout").fetchone() == ("12500ms",)


HOLDER = """
import sys
from ledger.lease import AdvisoryLease
with AdvisoryLease("job:nightly", db=sys.argv[1]) as lease:
    print(lease.token, flush=True)
    sys.stdin.readline()
    print(lease.lost, lease.remaining(), flush=True)
"""


def test_a_frozen_holder_loses_the_job_within_its_ttl(take_job: Take, dsn: str, fence: Fence) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        token = int(holder.stdout.readline())
        holder.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        try:
            with take_job(wait=10) as lease:
                assert time.monotonic() - start < TTL + 0.5
                holder.send_signal(signal.SIGCONT)
                holder.stdin.write("\n")
                holder.stdin.flush()

                assert holder.stdout.readline().split() == ["expired", "0.0"]
                assert holder.wait(5) == 0
                assert lease.token > token
                lease.ensure()
        finally:
            holder.kill()


def test_a_job_whose_session_an_operator_ended_is_broken(
    take_job: Take, holders: Holders, admin: psycopg.Connection[Any], until: Until
) -> None:
    with take_job() as lease:
        admin.execute("select pg_terminate_backend(%s)", holders())
        until(lambda: lease.lost)

        assert lease.lost == "broken"
        with pytest.raises(LeaseLost, match="an operator broke it"):
            lease.ensure()


def test_a_silent_postgres_loses_the_job_at_its_deadline_and_stops_nobody(
    take_job: Take, dark_dsn: tuple[str, FaultProxy], until: Until
) -> None:
    dsn, proxy = dark_dsn
    far = [take_job(resource=f"job:far_{number}", db=dsn).acquire() for number in range(5)]
    with take_job() as near:
        proxy.mode = "blackhole"
        until(lambda: all(lease.lost for lease in far))

        assert {lease.lost for lease in far} == {"unreachable"}
        near.ensure()
    start = time.monotonic()
    assert [lease.release() for lease in far] == [False] * 5
    assert time.monotonic() - start < 2


def test_a_late_answer_is_not_taken_for_a_new_one(
    take_job: Take, dark_dsn: tuple[str, FaultProxy], connect: Any
) -> None:
    dsn, proxy = dark_dsn
    with take_job(db=dsn, ttl=1.2) as lease:
        session = lease._session
        assert session is not None
        with session.asking:
            session.start()
            time.sleep(0.05)  # the answer is there, but nobody has read it
        proxy.mode = "blackhole"

        assert session.ping(0.1).value == "no answer"


def test_the_watchdog_keeps_off_a_session_that_is_being_given_back(take_job: Take) -> None:
    with take_job(ttl=30) as lease:
        session = lease._session
        assert session is not None

        assert session.retire(1.0).value == "held"

        assert session.ping(1.0).value == "no answer"
        assert not session._pending


def test_a_refused_attempt_leaves_a_record(take_job: Take, admin: psycopg.Connection[Any]) -> None:
    with take_job(), pytest.raises(Busy):
        take_job().acquire()

    assert admin.execute("select code from ledger.refusal").fetchall() == [("LG104",)]


def test_a_cut_connection_is_a_lost_job(take_job: Take, dark_dsn: tuple[str, FaultProxy], until: Until) -> None:
    dsn, proxy = dark_dsn
    with take_job(db=dsn) as lease:
        proxy.mode = "refuse"
        until(lambda: lease.lost)

    assert lease.lost == "unreachable"


def test_a_pools_connection_does_not_go_back_with_the_lock_or_the_timeout(
    take_job: Take, dsn: str, holders: Holders
) -> None:
    with psycopg_pool.ConnectionPool(dsn, min_size=2, max_size=2, open=True) as pool:
        with take_job(db=pool):
            pass
        assert holders() == []
        pool.wait()
        with pool.connection() as one, pool.connection() as other:
            assert one.execute("show idle_session_timeout").fetchone() == ("0",)
            assert other.execute("show idle_session_timeout").fetchone() == ("0",)


def test_a_kind_whose_leases_live_in_redis_is_refused(take_job: Take, holders: Holders) -> None:
    with pytest.raises(BadArgument, match="ledger kind set settle --lock advisory"):
        take_job(resource="settle:m_1").acquire()

    assert holders() == []


def test_a_number_that_became_void_is_replaced(take_job: Take, interfere: Any, fence: Fence, connect: Any) -> None:
    def overtake() -> None:
        rival = connect()
        token = rival.execute("select ledger.draw_token(%s)", [JOB]).fetchone()[0]
        rival.execute("select ledger.activate_token(%s, %s, 'rival')", [JOB, token])

    with take_job(db=interfere({4}, overtake)) as lease:
        assert fence(JOB) == (lease.token, lease.holder)


def test_the_bodys_own_exception_is_kept(take_job: Take, holders: Holders, admin: Any) -> None:
    def body() -> None:
        with take_job():
            admin.execute("select pg_terminate_backend(%s)", holders())
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        body()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_end_its_parents_session(take_job: Take, holders: Holders) -> None:
    with take_job() as lease:
        pid = os.fork()
        if pid == 0:
            try:
                lease.__exit__(None, None, None)
                lost = lease.lost
                del lease
            finally:
                os._exit(0 if lost == "forked" else 1)
        assert os.waitpid(pid, 0)[1] == 0

        time.sleep(TTL)
        lease.ensure()
        assert len(holders()) == 1


def test_an_asyncio_job_is_held_past_its_ttl_and_given_back(
    take_job_async: TakeAsync, fence: Fence, holders: Holders, dsn: str
) -> None:
    async def body() -> None:
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=3, open=False) as pool:
            for db, seconds in ((dsn, 1.2 * TTL), (pool, 0), (lambda: psycopg.connect(dsn), 0)):
                async with take_job_async(db=db) as lease:
                    await asyncio.sleep(seconds)
                    lease.ensure()
                    assert fence(JOB) == (lease.token, lease.holder)
                assert holders() == []

    asyncio.run(body())


def test_losing_an_asyncio_job_cancels_the_body(
    take_job_async: TakeAsync, holders: Holders, admin: psycopg.Connection[Any]
) -> None:
    async def body() -> None:
        async with take_job_async():
            admin.execute("select pg_terminate_backend(%s)", holders())
            await asyncio.sleep(10)

    with pytest.raises(LeaseLost) as lost:
        asyncio.run(body())
    assert lost.value.reason == "broken"


@pytest.mark.parametrize("world", ["asyncio", "blocking"])
def test_a_cancelled_asyncio_waiter_holds_nothing(
    take_job_async: TakeAsync,
    take_job: Take,
    holders: Holders,
    until: Until,
    admin: Any,
    dsn: str,
    world: str,
) -> None:
    db: Any = dsn if world == "asyncio" else lambda: psycopg.connect(dsn)

    def is_waiting() -> object:
        return admin.execute("select 1 from pg_stat_activity where wait_event = 'advisory'").fetchone()

    async def body() -> None:
        waiting = asyncio.create_task(take_job_async(db=db, wait=20).acquire())
        await asyncio.to_thread(until, is_waiting)
        waiting.cancel()
        start = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - start < 2

    with take_job():
        asyncio.run(body())
    until(lambda: holders() == [])


def test_a_session_behind_a_pooler_is_refused_with_the_reason() -> None:
    with pytest.raises(BadArgument, match=r"a connection pooler stands between.*goes straight") as refused:
        refuse_pooler(JOB, told_pid=17, pid=4711)

    assert refused.value.detail["reason"] == "pooler"
    refuse_pooler(JOB, told_pid=4711, pid=4711)


@pytest.fixture(params=["transaction", "session"])
def pooled_dsn(
    request: pytest.FixtureRequest, dark_dsn: tuple[str, FaultProxy], database: str, until: Until
) -> Iterator[str]:
    """The database behind a PgBouncer."""
    if PGBOUNCER is None:
        pytest.skip("there is no pgbouncer here")
    _, proxy = dark_dsn
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        config = Path(folder, "pgbouncer.ini")
        config.write_text(
            f"[databases]\n{database} = host={proxy.host} port={proxy.port} user=ledger_worker\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {request.param}\nignore_startup_parameters = extra_float_digits\n"
        )
        as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
        with subprocess.Popen([PGBOUNCER, "-q", *as_user, str(config)]) as pooler:
            dsn = f"postgresql://anyone@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"
            try:
                until(lambda: accepts(port))
                yield dsn
            finally:
                pooler.terminate()


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_a_pooler_in_between_is_refused_and_nothing_is_held(take_job: Take, pooled_dsn: str, holders: Holders) -> None:
    with pytest.raises(BadArgument, match="a connection pooler stands between") as refused:
        take_job(db=pooled_dsn).acquire()

    assert refused.value.detail["reason"] == "pooler"
    assert holders() == []
