from __future__ import annotations

from datetime import timedelta

import pytest

from ledger.client import Ledger
from tests.functions.test_draw_token import MALFORMED
from tests.story import (
    ALICE,
    BOB,
    RESOURCE,
    Connection,
    activated,
    in_background,
    is_waiting,
    on_a_new_timeline,
    raised,
    refused,
    until,
)

JOB = "charges:org_7"
LONG = timedelta(seconds=30)


def test_a_job_is_held_for_the_session_and_not_the_transaction(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    with connection.transaction():
        ledger.hold_job(JOB)
    connection.execute("select 1")

    with refused("LG104", admin):
        rivals.hold_job(JOB)


def test_other_jobs_are_free(ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)
    rivals.hold_job("charges:org_8")


def test_holding_draws_nothing_and_makes_the_kind_an_advisory_one(ledger: Ledger, admin: Connection) -> None:
    ledger.hold_job(JOB)

    assert admin.execute("select from ledger.draw").fetchall() == []
    assert ledger.get_kind("charges").lock == "advisory"


def test_a_token_is_drawn_and_activated_beside_the_lock(ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)

    assert activated(rivals, resource=JOB) > 0


def test_the_lock_is_the_one_that_lock_job_takes(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    ledger.hold_job(JOB)
    with refused("LG104", admin) as refusal:
        rivals.lock_job(JOB, BOB)
    assert refusal.detail["held_by"][0]["pid"] == connection.info.backend_pid

    ledger.free_job(JOB)
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        with raised("LG104"):
            rivals.hold_job(JOB)


def test_the_lock_goes_with_its_session(connection: Connection, ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)
    connection.close()

    rivals.hold_job(JOB, LONG)


def test_a_waiter_is_woken_by_the_release(rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    ledger.hold_job(JOB)
    waiting = in_background(lambda: rivals.hold_job(JOB, LONG))
    until(is_waiting(admin, rival))
    ledger.free_job(JOB)

    waiting.result(5)
    with raised("LG104"):
        ledger.hold_job(JOB)


def test_a_wait_that_runs_out_names_the_holder(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    connection.execute("set application_name = 'night-job'")
    ledger.hold_job(JOB)
    with refused("LG104", admin) as refusal:
        rivals.hold_job(JOB, timedelta(milliseconds=50))

    (held_by,) = refusal.detail["held_by"]
    pid = connection.info.backend_pid
    assert (held_by["pid"], held_by["user"], held_by["application"]) == (pid, "ledger_worker", "night-job")
    assert refusal.tells(function="hold_job", resource=JOB)
    assert refusal.message == (
        f"hold_job of {JOB} refused: its lock is held by pid {pid} (ledger_worker, night-job); nothing was changed"
    )
    assert refusal.hint == "The job is running already. Try again when it has ended."


def test_a_wait_leaves_the_callers_lock_timeout_as_it_was(
    rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    ledger.hold_job(JOB)
    rival.execute("begin")
    rival.execute("set local lock_timeout = '7s'")
    waiting = in_background(lambda: rivals.hold_job(JOB, LONG))
    until(is_waiting(admin, rival))
    ledger.free_job(JOB)
    waiting.result(5)

    assert rival.execute("show lock_timeout").fetchone() == ("7s",)


def test_holding_twice_is_given_back_twice(ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)
    ledger.hold_job(JOB)
    ledger.free_job(JOB)
    with raised("LG104"):
        rivals.hold_job(JOB)

    ledger.free_job(JOB)
    rivals.hold_job(JOB)


@pytest.mark.parametrize("wait", [None, "-1 second", "25 days"])
def test_a_wait_out_of_bounds_is_refused(connection: Connection, admin: Connection, wait: str | None) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.hold_job(%s, %s::interval)", [JOB, wait])

    assert refusal.tells(function="hold_job", resource=JOB, reason="wait is from zero to 24 days")


@pytest.mark.parametrize("resource", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_resource_is_refused(connection: Connection, admin: Connection, resource: str | None) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.hold_job(%s)", [resource])

    assert refusal.tells(function="hold_job", resource=resource)


def test_a_kind_whose_leases_live_in_redis_is_refused(ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.hold_job(RESOURCE)

    assert "leases of kind settle live in Redis" in refusal.message


def test_no_job_is_held_on_a_new_timeline(ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    rivals.hold_job(JOB)
    on_a_new_timeline(admin)

    with refused("LG106", admin):  # which comes before LG104
        ledger.hold_job(JOB)


def test_bad_arguments_are_looked_at_before_the_timeline(ledger: Ledger, admin: Connection) -> None:
    on_a_new_timeline(admin)

    with raised("LG304"):
        ledger.hold_job(JOB, timedelta(seconds=-1))
    with raised("LG304"):
        ledger.hold_job(RESOURCE)
