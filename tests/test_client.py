"""The client on the caller's own connection or pool, blocking and on an event loop: both tell one story."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from ledger import calls, client
from ledger.client import AsyncLedger, Ledger
from ledger.errors import BadArgument, Busy, NoSuchRefund, Refused, StaleToken
from tests.conftest import Connect
from tests.story import ALICE, BOB, RESOURCE, activated, added, as_ledger_fn, refund, unchanged

Connection = psycopg.Connection[Any]
BUILDERS = sorted(
    name
    for name, function in inspect.getmembers(calls, inspect.isfunction)
    if function.__module__ == calls.__name__ and not name.startswith("_")
)


class Sync:
    """The blocking world."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.opened: list[Any] = []

    def run(self, result: Any) -> Any:
        return result

    def ledger(self, source: Any, **options: Any) -> Any:
        return Ledger(source, **options)

    def connect(self, **options: Any) -> Any:
        connection = psycopg.connect(self.dsn, **options)
        self.opened.append(connection)
        return connection

    def pool(self, **options: Any) -> Any:
        pool = ConnectionPool(self.dsn, min_size=1, max_size=2, open=True, **options)
        self.opened.append(pool)
        return pool

    def rows(self, connection: Any, query: str) -> list[tuple[Any, ...]]:
        cursor = self.run(connection.execute(query))
        return self.run(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def pipeline(self, connection: Any) -> Iterator[None]:
        with connection.pipeline():
            yield

    def close(self) -> None:
        for opened in self.opened:
            self.run(opened.close())


class Async(Sync):
    """The other one, on an event loop that runs whenever something is awaited."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.runner = asyncio.Runner()

    def run(self, result: Any) -> Any:
        async def wait() -> Any:
            return await result

        return self.runner.run(wait())

    def ledger(self, source: Any, **options: Any) -> Any:
        return Awaited(AsyncLedger(source, **options), self.run)

    def connect(self, **options: Any) -> Any:
        connection = self.run(psycopg.AsyncConnection.connect(self.dsn, **options))
        self.opened.append(connection)
        return connection

    def pool(self, **options: Any) -> Any:
        async def make() -> Any:
            pool = AsyncConnectionPool(self.dsn, min_size=1, max_size=2, open=False, **options)
            await pool.open()
            return pool

        pool = self.run(make())
        self.opened.append(pool)
        return pool

    @contextmanager
    def pipeline(self, connection: Any) -> Iterator[None]:
        pipeline = connection.pipeline()
        self.run(pipeline.__aenter__())
        yield
        self.run(pipeline.__aexit__(None, None, None))

    def close(self) -> None:
        super().close()
        self.runner.close()


class Awaited:
    """An AsyncLedger whose calls are awaited at once."""

    def __init__(self, ledger: AsyncLedger, run: Callable[[Any], Any]) -> None:
        self.ledger = ledger
        self.run = run

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.ledger, name)
        return lambda *args, **kwargs: self.run(method(*args, **kwargs))


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def world(request: pytest.FixtureRequest, dsn: str) -> Iterator[Sync]:
    world: Sync = request.param(dsn)
    yield world
    world.close()


@pytest.fixture
def stale(connection: Connection) -> int:
    """Alice's token; Bob has taken over."""
    ledger = Ledger(connection)
    added(ledger, "r_1", "r_2")
    token = activated(ledger, ALICE)
    activated(ledger, BOB)
    return token


def refusals(admin: Connection) -> list[tuple[Any, ...]]:
    return admin.execute("select number, code, token from ledger.refusal order by refusal_id").fetchall()


# What it is


@pytest.mark.parametrize("name", BUILDERS)
def test_both_clients_have_every_call_with_its_parameters_and_its_words(name: str) -> None:
    builder = getattr(calls, name)
    expected = list(inspect.signature(builder).parameters)
    for method in (getattr(Ledger, name), getattr(AsyncLedger, name)):
        assert list(inspect.signature(method).parameters) == expected
        assert method.__doc__ == builder.__doc__
    assert inspect.iscoroutinefunction(getattr(AsyncLedger, name))


def test_a_refund_goes_all_the_way(world: Sync) -> None:
    ledger = world.ledger(world.connect(autocommit=True))
    assert ledger.add_refund("m_1", "r_1", 7025, "EUR").outcome == "added"
    token = ledger.draw_token(RESOURCE)
    assert ledger.activate_token(RESOURCE, token, ALICE) is None

    (claim,) = ledger.claim_refunds("m_1", token, 10)
    assert (claim.refund_id, claim.outcome, claim.amount_minor, claim.attempt) == ("r_1", "claimed", 7025, 1)
    assert claim.first_claimed_at.tzinfo is not None
    evidence = {"amount_minor": 7025, "seen": ["é", None]}
    move = ledger.confirm_refund("m_1", "r_1", token, "re_1", evidence)
    assert (move.outcome, move.state, move.gateway_ref) == ("confirmed", "sent", "re_1")
    assert move.changed_at.astimezone(UTC) > claim.first_claimed_at
    ((kept,),) = world.rows(
        world.connect(), "select evidence from ledger.journal where refund_id = 'r_1' and to_state = 'sent'"
    )
    assert kept == evidence
    assert ledger.verify() == []


def test_limits_are_durations(world: Sync) -> None:
    kind = world.ledger(world.connect()).get_kind("settle")
    assert (kind.lease_ttl, kind.transaction_limit) == (timedelta(seconds=30), None)


# Whose transaction it is


def test_a_call_never_commits(world: Sync, admin: Connection) -> None:
    connection = world.connect()
    with unchanged(admin):
        ledger = world.ledger(connection)
        ledger.add_refund("m_1", "r_1", 7025, "EUR")
        token = ledger.draw_token(RESOURCE)
        ledger.activate_token(RESOURCE, token, ALICE)
        ledger.claim_refund("m_1", "r_1", token)
        assert connection.info.transaction_status is TransactionStatus.INTRANS
        world.run(connection.rollback())


def test_what_the_caller_commits_stays(world: Sync, admin: Connection) -> None:
    connection = world.connect()
    world.ledger(connection).add_refund("m_1", "r_1", 7025, "EUR")
    world.run(connection.commit())
    assert refund(admin, "r_1", "state") == "pending"


def test_in_autocommit_each_call_is_a_transaction(world: Sync, admin: Connection) -> None:
    connection = world.connect(autocommit=True)
    world.ledger(connection).add_refund("m_1", "r_1", 7025, "EUR")
    assert connection.info.transaction_status is TransactionStatus.IDLE
    assert refund(admin, "r_1", "state") == "pending"


def test_a_refusal_takes_the_callers_transaction_with_it(world: Sync, stale: int, admin: Connection) -> None:
    connection = world.connect()
    ledger = world.ledger(connection)
    with unchanged(admin):
        ledger.add_refund("m_1", "r_9", 7025, "EUR")
        with pytest.raises(StaleToken):
            ledger.claim_refund("m_1", "r_1", stale)
        assert connection.info.transaction_status is TransactionStatus.INERROR
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            ledger.get_kind("settle")
        world.run(connection.rollback())
    assert ledger.get_kind("settle").known


def test_a_callers_savepoint_keeps_what_came_before_a_refusal(world: Sync, stale: int, admin: Connection) -> None:
    connection = world.connect()
    ledger = world.ledger(connection)
    ledger.add_refund("m_1", "r_9", 7025, "EUR")
    world.rows(connection, "savepoint before")
    with pytest.raises(StaleToken):
        ledger.claim_refund("m_1", "r_1", stale)
    world.rows(connection, "rollback to savepoint before")
    world.run(connection.commit())
    assert refund(admin, "r_9", "state") == "pending"


def test_over_a_pool_each_call_is_a_transaction(world: Sync, admin: Connection) -> None:
    ledger = world.ledger(world.pool())
    ledger.add_refund("m_1", "r_1", 7025, "EUR")
    token = ledger.draw_token(RESOURCE)
    ledger.activate_token(RESOURCE, token, ALICE)
    assert ledger.claim_refund("m_1", "r_1", token).outcome == "claimed"
    assert refund(admin, "r_1", "state") == "sending"


def test_a_refusal_gives_a_pools_connection_back(world: Sync, stale: int) -> None:
    ledger = world.ledger(world.pool(timeout=5.0))
    for _ in range(3):
        with pytest.raises(StaleToken):
            ledger.claim_refund("m_1", "r_1", stale)
    assert ledger.get_kind("settle").known


# Refusals


def test_a_refusal_is_an_exception_with_the_detail_as_data(world: Sync, stale: int, admin: Connection) -> None:
    ledger = world.ledger(world.connect(autocommit=True))
    with unchanged(admin), pytest.raises(StaleToken) as caught:
        ledger.claim_refund("m_1", "r_1", stale)
    refusal = caught.value
    (active,) = admin.execute("select active from ledger.fence").fetchone() or (0,)
    assert (refusal.code, refusal.reason) == ("LG101", "superseded")
    assert (refusal.detail["token"], refusal.detail["active"]) == (stale, active)
    assert (refusal.detail["holder"], refusal.detail["active_holder"]) == (ALICE, BOB)
    assert (refusal.detail["merchant_id"], refusal.detail["refund_id"]) == ("m_1", "r_1")
    assert refusal.message.startswith(f"claim_refund of m_1 r_1 refused: token {stale} is superseded; {active} is ")
    assert refusal.hint == "Stop this batch: another holder has taken over. Draw a new token to try again."
    assert str(refusal) == f"{refusal.message}. {refusal.hint}"
    assert isinstance(refusal.__cause__, psycopg.DatabaseError)
    assert refusal.__cause__.sqlstate == "LG101"


def test_a_row_that_a_set_based_call_refuses_is_an_outcome(world: Sync, connection: Connection) -> None:
    plain = Ledger(connection)
    added(plain, "r_1", "r_2")
    token = activated(plain)
    plain.claim_refund("m_1", "r_1", token)
    ledger = world.ledger(world.connect(autocommit=True))
    rows = ledger.confirm_refunds("m_1", token, ["r_2", "r_1", "r_9"], ["re_2", "re_1", "re_9"])
    assert [(row.position, row.outcome) for row in rows] == [(1, "LG203"), (2, "confirmed"), (3, "LG201")]


@pytest.mark.parametrize("through", ["connection", "pool"])
def test_a_refusal_is_recorded_on_a_second_connection(
    through: str, world: Sync, stale: int, admin: Connection
) -> None:
    second = world.pool() if through == "pool" else world.connect(autocommit=True)
    ledger = world.ledger(world.connect(), refusals=second)
    with pytest.raises(StaleToken) as caught:
        ledger.claim_refund("m_1", "r_1", stale)
    assert refusals(admin) == [(caught.value.detail["refusal"], "LG101", stale)]
    row = admin.execute(
        "select reason, function, resource, merchant_id, refund_id, holder, active_holder, message, detail "
        "from ledger.refusal"
    ).fetchone()
    assert row == (
        "superseded", "claim_refund", RESOURCE, "m_1", "r_1", ALICE, BOB, caught.value.message, caught.value.detail,
    )  # fmt: skip


def test_one_pool_serves_the_calls_and_the_records(world: Sync, stale: int, admin: Connection) -> None:
    pool = world.pool()
    with pytest.raises(NoSuchRefund):
        token = world.ledger(pool).draw_token(RESOURCE)
        world.ledger(pool).activate_token(RESOURCE, token, ALICE)
        world.ledger(pool, refusals=pool).claim_refund("m_1", "r_404", token)
    assert [code for _, code, _ in refusals(admin)] == ["LG201"]


def test_without_a_second_connection_no_record_is_kept_and_that_is_said_once(
    world: Sync, stale: int, admin: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    client._say_once_that_refusals_are_not_recorded.cache_clear()
    with caplog.at_level(logging.WARNING, "ledger.client"):
        for _ in range(2):
            with pytest.raises(StaleToken):
                world.ledger(world.connect()).claim_refund("m_1", "r_1", stale)
    assert refusals(admin) == []
    (said,) = caplog.records
    assert said.message == "refusals_not_recorded"
    assert "refusals=pool" in said.__dict__["note"]


class Unwilling:
    """A pool that has nothing to give."""

    def connection(self) -> Any:
        raise TimeoutError("no connection within 30 s")


@pytest.mark.parametrize("recorder", ["closed", "unwilling", "busy"])
def test_a_recorder_that_fails_does_not_hide_the_refusal(
    recorder: str, world: Sync, stale: int, admin: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    second: Any = Unwilling()
    if recorder == "closed":
        second = world.connect(autocommit=True)
        world.run(second.close())
    elif recorder == "busy":
        second = world.connect(autocommit=True, options="-c lock_timeout=20ms")
        admin.execute("begin; lock table ledger.refusal in exclusive mode")
    ledger = world.ledger(world.connect(), refusals=second)
    with caplog.at_level(logging.WARNING, "ledger.client"), pytest.raises(StaleToken) as caught:
        ledger.claim_refund("m_1", "r_1", stale)
    admin.execute("rollback" if recorder == "busy" else "select")
    assert caught.value.detail["token"] == stale
    assert refusals(admin) == []
    assert [record.message for record in caplog.records] == ["refusal_not_recorded"]
    assert caplog.records[0].__dict__["code"] == "LG101"


def test_a_recorder_that_would_wait_for_a_commit_is_not_taken(world: Sync) -> None:
    with pytest.raises(ValueError, match="refusals needs a pool or a connection in autocommit"):
        world.ledger(world.connect(), refusals=world.connect())


# Other errors


def test_a_gate_that_stays_closed_is_busy(world: Sync, stale: int, admin: Connection, connect: Connect) -> None:
    connection = world.connect(autocommit=True, options="-c lock_timeout=50ms")
    holder = connect(autocommit=False, application_name="a long job")
    holder.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [RESOURCE])
    ledger = world.ledger(connection, refusals=world.connect(autocommit=True))
    with unchanged(admin), pytest.raises(Busy) as caught:
        ledger.claim_refund("m_1", "r_1", stale)
    (held_by,) = caught.value.detail["held_by"]
    assert (held_by["pid"], held_by["application"]) == (holder.info.backend_pid, "a long job")
    assert f"held by pid {holder.info.backend_pid} (ledger_worker, a long job)" in caught.value.message
    assert "docs/errors.md, 55P03" in (caught.value.hint or "")
    assert not isinstance(caught.value, Refused)
    holder.rollback()


def test_a_lost_race_comes_through_as_it_is(world: Sync, connection: Connection) -> None:
    plain = Ledger(connection)
    added(plain, "r_1")
    token = activated(plain, ALICE)
    late = world.connect(autocommit=True)
    world.rows(late, "begin isolation level repeatable read; select 1")
    activated(plain, BOB)
    with pytest.raises(psycopg.errors.SerializationFailure):
        world.ledger(late).claim_refund("m_1", "r_1", token)


def test_psycopgs_other_errors_come_through_as_they_are(world: Sync, admin: Connection) -> None:
    impatient = world.connect(autocommit=True, options="-c statement_timeout=50ms")
    admin.execute("begin; lock table ledger.refund in access exclusive mode")
    with pytest.raises(psycopg.errors.QueryCanceled):
        world.ledger(impatient).add_refund("m_1", "r_1", 7025, "EUR")
    admin.execute("rollback")

    world.run(impatient.close())
    with pytest.raises(psycopg.OperationalError):
        world.ledger(impatient).get_kind("settle")


def test_a_worker_without_the_right_is_told_by_postgres(world: Sync) -> None:
    ledger = world.ledger(world.connect(autocommit=True))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ledger.set_kind("settle", max_attempts=9, actor="worker", reason="more")


# How statements travel


@pytest.mark.parametrize("threshold", [0, 2, 5, None])
def test_statements_may_be_prepared_or_not(threshold: int | None, world: Sync, stale: int) -> None:
    connection = world.connect(autocommit=True, prepare_threshold=threshold)
    ledger = world.ledger(connection)
    for number in range(8):
        assert ledger.add_refund("m_2", f"r_{number}", 100 + number, "JPY").outcome == "added"
        with pytest.raises(StaleToken):
            ledger.claim_refund("m_1", "r_1", stale)
    ((prepared,),) = world.rows(connection, "select count(*) from pg_prepared_statements where statement ~ 'ledger'")
    assert (prepared > 0) == (threshold is not None)


@pytest.mark.parametrize("options", [
    {"row_factory": dict_row},
    {"cursor_factory": "client"},
], ids=["rows as dicts", "parameters bound by the client"])  # fmt: skip
def test_the_callers_own_way_with_rows_and_cursors_is_no_matter(options: dict[str, Any], world: Sync) -> None:
    if options == {"cursor_factory": "client"}:
        options = {"cursor_factory": psycopg.AsyncClientCursor if isinstance(world, Async) else psycopg.ClientCursor}
    ledger = world.ledger(world.connect(autocommit=True, **options))
    assert ledger.add_refund("m_1", "it's 100%", 7025, "EUR").refund_id == "it's 100%"
    rows = ledger.add_refunds("m_1", ['a "b", {c', "d\\e"][1:], [1], ["EUR"], idempotency_keys=[None])
    assert [row.outcome for row in rows] == ["added"]


def test_calls_may_go_through_a_pipeline(world: Sync, stale: int) -> None:
    connection = world.connect(autocommit=True)
    ledger = world.ledger(connection)
    with world.pipeline(connection):
        token = ledger.draw_token("settle:m_2")
        ledger.activate_token("settle:m_2", token, ALICE)
        assert ledger.add_refund("m_2", "r_1", 7025, "EUR").outcome == "added"
        assert ledger.claim_refund("m_2", "r_1", token).outcome == "claimed"
        with pytest.raises(StaleToken):
            ledger.claim_refund("m_1", "r_1", stale)
    assert ledger.get_kind("settle").known


def test_a_column_that_is_added_later_does_not_break_an_older_client(world: Sync, admin: Connection) -> None:
    connection = world.connect(autocommit=True, prepare_threshold=0)
    ledger = world.ledger(connection)
    assert ledger.verify() == []

    admin.execute("alter type ledger.finding add attribute since timestamptz")
    admin.execute(
        """
        create or replace function ledger.verify(merchant_id text default null) returns setof ledger.finding
        language sql as $$ select 'c', null::text, null::text, null::text, 'f', '{}'::jsonb, now() $$
        """
    )

    assert [(finding.check, finding.finding) for finding in ledger.verify()] == [("c", "f")]
    assert [finding.check for finding in world.ledger(world.connect()).verify()] == ["c"]


def test_bad_input_is_told_by_the_ledger_and_not_by_the_driver(world: Sync, admin: Connection) -> None:
    ledger = world.ledger(world.connect(autocommit=True))
    with unchanged(admin), pytest.raises(BadArgument) as caught:
        ledger.add_refund("m/1", "r_1", 7025, "EUR")
    assert "without slash" in caught.value.message
    assert json.dumps(caught.value.detail)


def test_a_new_timeline_reaches_the_caller_of_either_world(world: Sync, stale: int, admin: Connection) -> None:
    as_ledger_fn(admin, "update ledger.server set timeline = 'FFFFFFFF'")
    ledger = world.ledger(world.connect(autocommit=True))
    with pytest.raises(Refused) as caught:
        ledger.claim_refund("m_1", "r_1", stale)
    assert caught.value.code == "LG106"


@pytest.mark.parametrize("amount_minor", [70.25, "7025", True])
def test_an_amount_in_other_than_whole_minor_units_is_not_sent(connection: Connection, amount_minor: Any) -> None:
    with pytest.raises(TypeError, match="whole minor units"):
        Ledger(connection).add_refund("m_1", "r_1", amount_minor, "EUR")
    with pytest.raises(TypeError, match="whole minor units"):
        Ledger(connection).add_refunds("m_1", ["r_1"], [amount_minor], ["EUR"])
