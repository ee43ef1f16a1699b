from __future__ import annotations

from typing import cast

import pytest

from ledger.client import Ledger
from tests.functions.attempts import JOBS, WORK, events, next_token, two_attempts, work
from tests.functions.test_draw_token import MALFORMED
from tests.story import (
    BOB,
    UNDRAWN,
    Connection,
    as_ledger_fn,
    in_background,
    is_waiting,
    on_a_new_timeline,
    refused,
    unchanged,
    until,
)


@pytest.fixture(autouse=True)
def payouts(operators: Ledger) -> None:
    two_attempts(operators)


def test_the_first_attempt_begins_and_is_counted(ledger: Ledger, admin: Connection) -> None:
    token = next_token(ledger)

    attempt = ledger.begin_attempt(JOBS, WORK, token)

    assert (attempt.outcome, attempt.state, attempt.attempt, attempt.max_attempts) == ("begun", "begun", 1, 2)
    assert (attempt.resource, attempt.work_id, attempt.token, attempt.reason) == (JOBS, WORK, token, None)
    assert work(admin) == ("begun", 1, token, None)


def test_beginning_again_under_the_same_token_is_not_another_attempt(ledger: Ledger, admin: Connection) -> None:
    token = next_token(ledger)
    ledger.begin_attempt(JOBS, WORK, token)

    with unchanged(admin):
        assert ledger.begin_attempt(JOBS, WORK, token).outcome == "repeated"


def test_a_job_that_kills_its_workers_goes_to_review_in_place_of_a_third_attempt(
    ledger: Ledger, admin: Connection
) -> None:
    ledger.begin_attempt(JOBS, WORK, next_token(ledger))
    ledger.begin_attempt(JOBS, WORK, next_token(ledger, BOB))
    last = next_token(ledger)

    attempt = ledger.begin_attempt(JOBS, WORK, last)

    why = "2 attempts used up; the last one never ended"
    assert (attempt.outcome, attempt.state, attempt.attempt, attempt.reason) == ("review", "review", 2, why)
    assert [(reason, detail) for _, _, reason, detail in events(admin, "reviewed")] == [
        (why, {"work_id": WORK, "attempts": 2})
    ]


def test_work_in_review_is_never_begun_however_often_it_is_delivered(ledger: Ledger, admin: Connection) -> None:
    token = next_token(ledger)
    ledger.begin_attempt(JOBS, WORK, token)
    ledger.end_attempt(JOBS, WORK, token, "review", "the account number has a letter in it")

    for again in ("to the same holder", "to the next one"):
        if again == "to the next one":
            token = next_token(ledger, BOB)
        with unchanged(admin):
            attempt = ledger.begin_attempt(JOBS, WORK, token)
        assert (attempt.outcome, attempt.reason) == ("review", "the account number has a letter in it")


def test_work_that_is_done_is_not_begun_again(ledger: Ledger, admin: Connection) -> None:
    token = next_token(ledger)
    ledger.begin_attempt(JOBS, WORK, token)
    ledger.end_attempt(JOBS, WORK, token, "done")
    redelivered = next_token(ledger, BOB)

    with unchanged(admin):
        assert ledger.begin_attempt(JOBS, WORK, redelivered).outcome == "done"


def test_each_piece_of_work_has_attempts_of_its_own(ledger: Ledger) -> None:
    token = next_token(ledger)
    assert ledger.begin_attempt(JOBS, WORK, token).attempt == 1
    assert ledger.begin_attempt(JOBS, "job-18", token).attempt == 1


def test_what_another_token_began_is_begun_anew_whichever_is_higher(ledger: Ledger, admin: Connection) -> None:
    token = next_token(ledger)
    ledger.begin_attempt(JOBS, WORK, token)
    as_ledger_fn(admin, "update ledger.work set token = token + 1000")
    attempt = ledger.begin_attempt(JOBS, WORK, token)
    assert (attempt.outcome, attempt.attempt, attempt.token) == ("begun", 2, token)


def test_work_of_the_same_id_elsewhere_is_other_work(ledger: Ledger, admin: Connection) -> None:
    before = [("jobs:a", WORK, "done", 7, 1, "there"), (JOBS, "another", "done", 7, 1, "there")]
    for row in before:
        as_ledger_fn(
            admin,
            "insert into ledger.work (resource, work_id, state, attempts, token, reason) "
            "values (%s, %s, %s, %s, %s, %s)",
            row,
        )
    token = next_token(ledger)
    assert ledger.begin_attempt(JOBS, WORK, token).attempt == 1
    assert ledger.end_attempt(JOBS, WORK, token, "done").outcome == "done"
    others = "select resource, work_id, state, attempts, token, reason from ledger.work where attempts = 7 order by 1"
    assert admin.execute(others).fetchall() == sorted(before)


def test_a_holder_that_was_superseded_begins_nothing(ledger: Ledger, admin: Connection) -> None:
    stale = next_token(ledger)
    active = next_token(ledger, BOB)

    with refused("LG101", admin) as refusal:
        ledger.begin_attempt(JOBS, WORK, stale)
    assert refusal.tells(function="begin_attempt", work_id=WORK, token=stale, active=active, reason="superseded")


@pytest.mark.parametrize("token", [None, 0, UNDRAWN])
def test_a_number_that_nobody_drew_is_refused(token: int, ledger: Ledger, admin: Connection) -> None:
    next_token(ledger)
    with refused("LG102", admin):
        ledger.begin_attempt(JOBS, WORK, token)


def test_a_number_that_is_not_active_yet_is_refused(ledger: Ledger, admin: Connection) -> None:
    next_token(ledger)
    drawn = ledger.draw_token(JOBS)
    with refused("LG105", admin):
        ledger.begin_attempt(JOBS, WORK, drawn)


@pytest.mark.parametrize("target", [JOBS, "payouts"])
def test_while_the_job_or_its_kind_is_paused_nothing_begins(
    target: str, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    token = next_token(ledger)
    operators.pause(target, "carol", "the bank is down")
    with refused("LG107", admin) as refusal:
        ledger.begin_attempt(JOBS, WORK, token)
    assert refusal.tells(function="begin_attempt", resource=JOBS)


def test_on_a_new_timeline_nothing_begins(ledger: Ledger, admin: Connection) -> None:
    token = next_token(ledger)
    on_a_new_timeline(admin)
    with refused("LG106", admin):
        ledger.begin_attempt(JOBS, WORK, token)


@pytest.mark.parametrize("resource", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_resource_is_refused(resource: str | None, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        ledger.begin_attempt(cast("str", resource), WORK, 1)


@pytest.mark.parametrize("work_id", [None, "", " ", "a\nb", "x" * 301])
def test_a_malformed_id_is_refused(work_id: str, ledger: Ledger, admin: Connection) -> None:
    token = next_token(ledger)
    with refused("LG304", admin) as refusal:
        ledger.begin_attempt(JOBS, work_id, token)
    assert refusal.detail["reason"] == "work_id is 1 to 300 printable characters"


def test_an_id_has_up_to_300_characters(ledger: Ledger) -> None:
    assert ledger.begin_attempt(JOBS, "w" * 300, next_token(ledger)).outcome == "begun"


def test_two_that_begin_the_same_work_under_one_token_count_one_attempt(
    connection: Connection, ledger: Ledger, rival: Connection, rivals: Ledger, admin: Connection
) -> None:
    token = next_token(ledger)
    with connection.transaction():
        assert ledger.begin_attempt(JOBS, WORK, token).outcome == "begun"
        second = in_background(lambda: rivals.begin_attempt(JOBS, WORK, token))
        until(is_waiting(admin, rival))
    assert second.result().outcome == "repeated"
    assert work(admin)[:2] == ("begun", 1)
