from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from ledger.client import Ledger
from tests.functions.attempts import JOBS, next_token
from tests.story import BOB, Connection, refused, without_guards

WHO: dict[str, Any] = {"actor": "carol", "reason": "year's end"}


@pytest.fixture
def before(admin: Connection) -> datetime:
    """Thirty-one days ago."""
    return admin.execute("select clock_timestamp() - interval '31 days'").fetchall()[0][0]  # type: ignore[no-any-return]


@pytest.fixture
def tried(ledger: Ledger) -> None:
    """Work in every state, named for it."""
    token = next_token(ledger)
    for outcome in ("begun", "failed", "review", "done"):
        ledger.begin_attempt(JOBS, outcome, token)
        if outcome != "begun":
            ledger.end_attempt(JOBS, outcome, token, outcome, "so it was")


def aged(admin: Connection) -> None:
    with without_guards(admin, "work"):
        admin.execute("update ledger.work set changed_at = changed_at - interval '40 days'")


def work(admin: Connection) -> set[str]:
    return {name for (name,) in admin.execute("select work_id from ledger.work").fetchall()}


def test_done_work_is_forgotten_and_all_other_work_stays(
    tried: None, operators: Ledger, admin: Connection, before: datetime
) -> None:
    aged(admin)
    assert [operators.prune_work(before, 1000, **WHO) for _ in range(2)] == [1, 0]
    assert work(admin) == {"begun", "failed", "review"}
    records = admin.execute("select actor, reason, detail -> 'work' from ledger.event where event = 'pruned'")
    assert records.fetchall() == [("carol", "year's end", 1)]
    assert operators.verify() == []


def test_a_forgotten_job_that_is_delivered_once_more_begins(
    tried: None, ledger: Ledger, operators: Ledger, admin: Connection, before: datetime
) -> None:
    token = next_token(ledger, BOB)
    assert ledger.begin_attempt(JOBS, "done", token).outcome == "done"
    aged(admin)
    operators.prune_work(before, 1000, **WHO)
    again = ledger.begin_attempt(JOBS, "done", token)
    assert (again.outcome, again.attempt) == ("begun", 1)


def test_done_work_of_the_last_thirty_days_stays(
    tried: None, operators: Ledger, admin: Connection, before: datetime
) -> None:
    assert operators.prune_work(before, 1000, **WHO) == 0
    assert "done" in work(admin)


def test_it_goes_in_small_steps(ledger: Ledger, operators: Ledger, admin: Connection, before: datetime) -> None:
    token = next_token(ledger)
    for n in range(3):
        ledger.begin_attempt(JOBS, f"job-{n}", token)
        ledger.end_attempt(JOBS, f"job-{n}", token, "done")
    aged(admin)
    assert [operators.prune_work(before, 2, **WHO) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize(
    "changes", [{"before": None}, {"before": timedelta(days=29)}, {"max_rows": 1001}, {"max_rows": 0}, {"actor": ""}]
)
def test_what_is_young_or_by_nobody_is_refused(
    changes: dict[str, Any], operators: Ledger, admin: Connection, before: datetime
) -> None:
    arguments: dict[str, Any] = {"before": before, "max_rows": 9} | WHO | changes
    if isinstance(arguments["before"], timedelta):
        arguments["before"] = before + timedelta(days=31) - arguments["before"]
    with refused("LG304", admin) as refusal:
        operators.prune_work(**arguments)
    assert refusal.tells(function="prune_work")
