from __future__ import annotations

import psycopg
import pytest

from ledger.client import Ledger
from tests.functions.attempts import JOBS, WORK, events, next_token, two_attempts, work
from tests.story import BOB, Connection, refused, unchanged

WHO_AND_WHY = {"actor": "carol", "reason": "the bank has mended it, ticket 91"}


@pytest.fixture(autouse=True)
def payouts(operators: Ledger) -> None:
    two_attempts(operators)


@pytest.fixture
def token(ledger: Ledger) -> int:
    """The token under which the work went to review."""
    token = next_token(ledger)
    ledger.begin_attempt(JOBS, WORK, token)
    ledger.end_attempt(JOBS, WORK, token, "review", "no such account")
    return token


def test_a_person_puts_work_back_and_its_attempts_begin_anew(
    token: int, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    assert operators.requeue_work(JOBS, WORK, **WHO_AND_WHY)

    assert work(admin)[:2] == ("pending", 0)
    assert events(admin, "requeued") == [(token, "carol", WHO_AND_WHY["reason"], {"work_id": WORK})]
    again = ledger.begin_attempt(JOBS, WORK, next_token(ledger, BOB))
    assert (again.outcome, again.attempt) == ("begun", 1)


def test_work_that_is_not_in_review_stays_as_it_is(
    token: int, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    operators.requeue_work(JOBS, WORK, **WHO_AND_WHY)
    with unchanged(admin):
        assert not operators.requeue_work(JOBS, WORK, **WHO_AND_WHY)


def test_work_that_is_done_stays_done(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    token = next_token(ledger)
    ledger.begin_attempt(JOBS, WORK, token)
    ledger.end_attempt(JOBS, WORK, token, "done")
    with refused("LG304", admin) as refusal:
        operators.requeue_work(JOBS, WORK, **WHO_AND_WHY)
    assert refusal.detail["reason"] == "the work is done"


def test_work_that_nobody_began_is_refused(operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        operators.requeue_work(JOBS, "job-99", **WHO_AND_WHY)
    assert refusal.detail["reason"] == "nobody ever began that work"


@pytest.mark.parametrize("missing", ["actor", "reason"])
def test_who_and_why_must_be_said(missing: str, token: int, operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        operators.requeue_work(JOBS, WORK, **{**WHO_AND_WHY, missing: ""})


def test_a_malformed_id_is_refused(operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        operators.requeue_work(JOBS, "", **WHO_AND_WHY)


def test_a_worker_may_not(token: int, ledger: Ledger) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ledger.requeue_work(JOBS, WORK, **WHO_AND_WHY)
