from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.functions.test_activate_token import MALFORMED_HOLDERS
from tests.functions.test_draw_token import MALFORMED
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    in_background,
    is_waiting,
    limited,
    on_a_new_timeline,
    raised,
    refused,
    unchanged,
    until,
)

JOB = "charges:org_7"


@pytest.fixture
def advisory(operators: Ledger) -> None:
    """The merchant's settlement runs under advisory locks."""
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis here")


def test_a_job_gets_an_active_token_in_its_own_transaction(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    with connection.transaction():
        token = ledger.lock_job(JOB, ALICE)
        assert admin.execute("select from ledger.fence").fetchall() == []

    assert admin.execute("select resource, active, holder from ledger.fence").fetchall() == [(JOB, token, ALICE)]


@pytest.mark.usefixtures("advisory")
def test_a_job_writes_under_its_token(connection: Connection, ledger: Ledger) -> None:
    added(ledger, "r_1")
    with connection.transaction():
        token = ledger.lock_job(RESOURCE, ALICE)
        assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


@pytest.mark.usefixtures("advisory")
def test_lock_fence_and_writes_go_together_when_the_job_fails(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    with unchanged(admin), connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, "r_1", ledger.lock_job(RESOURCE, ALICE))

    assert rivals.lock_job(RESOURCE, BOB) > 0


def test_a_savepoint_that_rolls_back_gives_the_job_up(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            ledger.lock_job(JOB, ALICE)
        token = rivals.lock_job(JOB, BOB)

    assert admin.execute("select active, holder from ledger.fence").fetchall() == [(token, BOB)]


def test_a_new_kind_becomes_an_advisory_one(ledger: Ledger) -> None:
    ledger.lock_job(JOB, ALICE)

    kind = ledger.get_kind("charges")
    assert (kind.known, kind.lock) == (True, "advisory")


def test_jobs_of_one_new_kind_run_side_by_side(connection: Connection, ledger: Ledger, rivals: Ledger) -> None:
    with connection.transaction():
        mine = ledger.lock_job(JOB, ALICE)
        theirs = rivals.lock_job("charges:org_8", BOB)

    assert theirs > mine
    assert ledger.get_kind("charges").known


def test_one_job_after_another_fences_the_first_out(ledger: Ledger, admin: Connection) -> None:
    first, second = ledger.lock_job(JOB, ALICE), ledger.lock_job(JOB, BOB)

    with refused("LG101", admin):
        ledger.activate_token(JOB, first, ALICE)
    assert admin.execute("select active, holder from ledger.fence").fetchall() == [(second, BOB)]


def test_a_job_that_is_running_is_named(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    connection.execute("set application_name = 'night-job'")
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        working = in_background(lambda: connection.execute("select pg_sleep(30)"))
        with refused("LG104", admin) as refusal:
            rivals.lock_job(JOB, BOB)
        admin.execute("select pg_cancel_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.errors.QueryCanceled):
            working.result(5)
        raise psycopg.Rollback

    (held_by,) = refusal.detail["held_by"]
    pid = connection.info.backend_pid
    assert (held_by["pid"], held_by["user"], held_by["application"]) == (pid, "ledger_worker", "night-job")
    assert refusal.tells(function="lock_job", resource=JOB, holder=BOB)
    assert refusal.message == (
        f"lock_job of {JOB} refused: its lock is held by pid {pid} (ledger_worker, night-job); nothing was changed"
    )
    assert refusal.hint == "The job is running already. Try again when it has ended."


def test_a_job_that_ends_lets_the_next_one_in(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    with connection.transaction():
        first = ledger.lock_job(JOB, ALICE)
        waiting = in_background(lambda: rivals.lock_job(JOB, BOB))
        until(is_waiting(admin, rival))

    assert waiting.result(5) > first


def test_a_job_that_waited_has_it_alone(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, connect: Connect, admin: Connection
) -> None:
    with rival.transaction():
        with connection.transaction():
            ledger.lock_job(JOB, ALICE)
            waiting = in_background(lambda: rivals.lock_job(JOB, BOB))
            until(is_waiting(admin, rival))
        waiting.result(5)
        third = connect()
        third.execute("set lock_timeout = '50ms'")
        with raised("LG104"):
            Ledger(third).lock_job(JOB, ALICE)


def test_a_wait_leaves_the_callers_lock_timeout_as_it_was(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    rival.execute("set lock_timeout = '7s'")
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        rival.execute("begin")
        waiting = in_background(lambda: rivals.lock_job(JOB, BOB))
        until(is_waiting(admin, rival))
    waiting.result(5)

    assert rival.execute("show lock_timeout").fetchone() == ("7s",)


def test_a_shorter_lock_timeout_of_the_callers_wins(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    rival.execute("set lock_timeout = '50ms'")
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        with raised("LG104"):
            rivals.lock_job(JOB, BOB)
        waited = admin.execute(
            "select state_change - query_start < '900ms' from pg_stat_activity where pid = %s",
            [rival.info.backend_pid],
        ).fetchone()

    assert waited == (True,)


def test_a_holder_that_was_silent_for_the_idle_limit_loses_the_job(
    connection: Connection, ledger: Ledger, rivals: Ledger, operators: Ledger, admin: Connection
) -> None:
    operators.set_kind("charges", lock="advisory", actor="tests", reason="no Redis here")
    connection.execute("begin")
    first = ledger.lock_job(JOB, ALICE)
    connection.execute("set local idle_in_transaction_session_timeout = 0")  # only the next one's look is left
    limited(operators, "charges", idle=0.2)
    until(
        lambda: admin.execute(
            "select pid from pg_stat_activity where pid = %s and state_change < clock_timestamp() - interval '0.2 s'",
            [connection.info.backend_pid],
        ).fetchone()
    )

    assert rivals.lock_job(JOB, BOB) > first
    with pytest.raises(psycopg.OperationalError):
        connection.execute("commit")
    assert admin.execute("select holder from ledger.fence").fetchall() == [(BOB,)]


@pytest.mark.usefixtures("advisory")
def test_an_ordinary_write_never_looks_like_a_held_job(
    connection: Connection, ledger: Ledger, rivals: Ledger, rival: Connection, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", token)
        job = in_background(lambda: rivals.lock_job(RESOURCE, BOB))
        until(is_waiting(admin, rival))  # at the gate, for the write to end

    assert job.result(5) > token


@pytest.mark.usefixtures("advisory")
def test_writes_in_flight_that_do_not_end_make_it_busy(
    connection: Connection, ledger: Ledger, rivals: Ledger, operators: Ledger, admin: Connection
) -> None:
    limited(operators, idle=0.3, lock=0.1)
    added(ledger, "r_1")
    token = activated(ledger)
    with connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, "r_1", token)
        working = in_background(lambda: connection.execute("select pg_sleep(30)"))
        with refused("55P03", admin) as refusal:
            rivals.lock_job(RESOURCE, BOB)
        admin.execute("select pg_cancel_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.errors.QueryCanceled):
            working.result(5)

    assert [session["pid"] for session in refusal.detail["held_by"]] == [connection.info.backend_pid]


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_a_job_runs_at_every_isolation_level(
    connection: Connection, ledger: Ledger, level: psycopg.IsolationLevel
) -> None:
    connection.isolation_level = level
    with connection.transaction():
        first = ledger.lock_job(JOB, ALICE)
    with connection.transaction():
        assert ledger.lock_job(JOB, BOB) > first


@pytest.mark.parametrize("resource", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_resource_is_refused(connection: Connection, admin: Connection, resource: str | None) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.lock_job(%s, %s)", [resource, ALICE])

    assert refusal.tells(function="lock_job", resource=resource, holder=ALICE)


@pytest.mark.parametrize("holder", MALFORMED_HOLDERS.values(), ids=MALFORMED_HOLDERS.keys())
def test_a_malformed_holder_is_refused_even_while_the_job_runs(
    connection: Connection, rival: Connection, ledger: Ledger, admin: Connection, holder: str | None
) -> None:
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        with refused("LG304", admin) as refusal:
            rival.execute("select ledger.lock_job(%s, %s)", [JOB, holder])

    assert refusal.tells(reason="a holder is printable, without a colon, at most 300 characters")


def test_a_kind_whose_leases_live_in_redis_is_refused(ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.lock_job(RESOURCE, ALICE)

    assert refusal.message == (
        "lock_job of settle:m_1 refused: leases of kind settle live in Redis; "
        "select ledger.set_kind('settle', lock => 'advisory', ...) moves them; nothing was changed"
    )


def test_a_kind_that_an_operator_is_making_redis_meanwhile_is_refused_too(
    ledger: Ledger, connection: Connection, operators: Ledger, admin: Connection
) -> None:
    assert isinstance(operators.connection, psycopg.Connection)
    with operators.connection.transaction():
        operators.set_kind("charges", lock="redis", idle_limit=timedelta(seconds=7), actor="carol", reason="a test")
        job = in_background(lambda: ledger.lock_job(JOB, ALICE))
        until(is_waiting(admin, connection))
    with raised("LG304") as refusal:
        job.result(5)
    assert "leases of kind charges live in Redis" in refusal.message


@pytest.mark.usefixtures("advisory")
def test_a_transaction_that_wrote_under_the_resource_can_not_begin_a_job(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    with refused("LG304", admin) as refusal, connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", token)
        ledger.lock_job(RESOURCE, ALICE)

    assert "activate first" in refusal.detail["reason"]


def test_no_job_begins_on_a_new_timeline(ledger: Ledger, admin: Connection) -> None:
    on_a_new_timeline(admin)

    with refused("LG106", admin) as refusal:
        ledger.lock_job(JOB, ALICE)
    assert refusal.tells(function="lock_job", resource=JOB)


def test_bad_arguments_are_looked_at_before_the_timeline(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    on_a_new_timeline(admin)

    with raised("LG304"):
        ledger.lock_job(RESOURCE, ALICE)
    with raised("LG304"):
        ledger.lock_job(JOB, "a:b")


def test_the_timeline_is_looked_at_before_the_lock(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    rivals.draw_token(JOB)  # notes a restart now, so that the open transaction below doesn't
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        on_a_new_timeline(admin)
        with raised("LG106"):
            rivals.lock_job(JOB, BOB)


def test_an_operator_may_run_a_job(connect: Connect, operator_dsn: str) -> None:
    assert Ledger(connect(operator_dsn)).lock_job(JOB, ALICE) > 0
