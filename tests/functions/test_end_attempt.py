from __future__ import annotations

from typing import cast

import pytest

from ledger.client import Ledger
from tests.functions.attempts import JOBS, WORK, events, next_token, two_attempts, work
from tests.functions.test_draw_token import MALFORMED
from tests.story import BOB, Connection, on_a_new_timeline, refused, unchanged


@pytest.fixture(autouse=True)
def payouts(operators: Ledger) -> None:
    two_attempts(operators)


@pytest.fixture
def token(ledger: Ledger) -> int:
    """The token under which the first attempt is begun."""
    token = next_token(ledger)
    ledger.begin_attempt(JOBS, WORK, token)
    return token


def test_an_attempt_that_did_its_work_is_done(token: int, ledger: Ledger, admin: Connection) -> None:
    attempt = ledger.end_attempt(JOBS, WORK, token, "done")

    assert (attempt.outcome, attempt.state, attempt.attempt) == ("done", "done", 1)
    assert work(admin) == ("done", 1, token, None)


def test_an_attempt_that_failed_may_be_followed_by_another(token: int, ledger: Ledger) -> None:
    attempt = ledger.end_attempt(JOBS, WORK, token, "failed", "bank says 503")

    assert (attempt.outcome, attempt.state, attempt.reason) == ("failed", "failed", "bank says 503")
    again = ledger.begin_attempt(JOBS, WORK, token)
    assert (again.outcome, again.attempt) == ("begun", 2)


def test_the_last_attempt_that_fails_sends_the_work_to_review_with_the_reason(
    token: int, ledger: Ledger, admin: Connection
) -> None:
    ledger.end_attempt(JOBS, WORK, token, "failed", "bank says 503")
    ledger.begin_attempt(JOBS, WORK, token)

    attempt = ledger.end_attempt(JOBS, WORK, token, "failed", "bank says 504")

    why = "2 attempts used up; the last one failed: bank says 504"
    assert (attempt.outcome, attempt.reason) == ("review", why)
    assert events(admin, "reviewed") == [(token, None, why, {"work_id": WORK, "attempts": 2})]


def test_a_limit_that_was_lowered_meanwhile_keeps_the_last_reason(
    token: int, ledger: Ledger, operators: Ledger
) -> None:
    ledger.end_attempt(JOBS, WORK, token, "failed", "bank says 503")
    operators.set_kind("payouts", max_attempts=1, actor="carol", reason="once is enough")

    attempt = ledger.begin_attempt(JOBS, WORK, token)

    assert (attempt.outcome, attempt.reason) == ("review", "1 attempts used up; the last one failed: bank says 503")


def test_a_worker_may_send_its_work_to_review_at_once(token: int, ledger: Ledger) -> None:
    attempt = ledger.end_attempt(JOBS, WORK, token, "review", "the account number has a letter in it")

    assert (attempt.outcome, attempt.attempt) == ("review", 1)


@pytest.mark.parametrize("outcome", ["done", "failed", "review"])
def test_saying_it_again_changes_nothing_even_after_a_newer_token(
    outcome: str, token: int, ledger: Ledger, admin: Connection
) -> None:
    ledger.end_attempt(JOBS, WORK, token, outcome, "because")
    next_token(ledger, BOB)

    with unchanged(admin):
        assert ledger.end_attempt(JOBS, WORK, token, outcome, "because").outcome == f"already_{outcome}"


def test_a_holder_that_was_superseded_ends_nothing(token: int, ledger: Ledger, admin: Connection) -> None:
    active = next_token(ledger, BOB)

    with refused("LG101", admin) as refusal:
        ledger.end_attempt(JOBS, WORK, token, "done")
    assert refusal.tells(function="end_attempt", work_id=WORK, token=token, active=active)


def test_what_another_token_began_is_not_this_ones_to_end(token: int, ledger: Ledger, admin: Connection) -> None:
    newer = next_token(ledger, BOB)

    with refused("LG304", admin) as refusal:
        ledger.end_attempt(JOBS, WORK, newer, "done")
    assert refusal.detail["reason"] == f"the work isn't begun under this token, but begun under {token}"


def test_work_that_nobody_began_is_not_there_to_end(token: int, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.end_attempt(JOBS, "job-99", token, "done")
    assert refusal.detail["reason"] == "the work isn't begun under this token, but was never begun"


@pytest.mark.parametrize(("outcome", "reason"), [("sent", None), (None, None), ("failed", None), ("review", "  ")])
def test_an_unknown_outcome_or_a_failure_without_a_reason_is_refused(
    outcome: str, reason: str | None, token: int, ledger: Ledger, admin: Connection
) -> None:
    with refused("LG304", admin):
        ledger.end_attempt(JOBS, WORK, token, outcome, reason)


@pytest.mark.parametrize("resource", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_resource_is_refused(resource: str | None, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        ledger.end_attempt(cast("str", resource), WORK, 1, "done")


def test_on_a_new_timeline_nothing_ends(token: int, ledger: Ledger, admin: Connection) -> None:
    on_a_new_timeline(admin)
    with refused("LG106", admin):
        ledger.end_attempt(JOBS, WORK, token, "done")
