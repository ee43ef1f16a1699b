"""What begin_attempt and end_attempt make of a piece of work, for every combination of what its row can hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.functions.attempts import JOBS, next_token, two_attempts
from tests.story import BOB, Connection, as_ledger_fn, in_background, is_waiting, on_a_new_timeline, raised, until

STATES = ("begun", "failed", "done", "review")
OFFSETS = (-1, 0, 1)  # whose token the row carries, from the caller's
MOST = 2  # attempts, of this kind


@dataclass(frozen=True)
class Work:
    """A row: the reason is that of the attempt before."""

    state: str
    token: int
    attempts: int
    reason: str | None = "so it was"


@dataclass(frozen=True)
class Answer:
    """An outcome, or a code and the finer reason; and the row afterwards."""

    outcome: str
    work: Work
    reason: str | None = None


def begun(work: Work, token: int) -> Answer:
    """What begin_attempt makes of it."""
    if work.state in {"done", "review"}:
        return Answer(work.state, work)
    if work.state == "begun" and work.token == token:
        return Answer("repeated", work)
    if work.attempts >= MOST:
        last = "never ended" if work.state == "begun" else "failed: so it was"
        reason = f"{work.attempts} attempts used up; the last one {last}"
        return Answer("review", Work("review", work.token, work.attempts, reason))
    return Answer("begun", Work("begun", token, work.attempts + 1, work.reason))


def ended(work: Work, token: int, outcome: str) -> Answer:
    """What end_attempt makes of it."""
    if repeated := ended_already(work, token, outcome):
        return repeated
    if work.state != "begun" or work.token != token:
        return Answer("LG304", work, f"the work isn't begun under this token, but {work.state} under {work.token}")
    reason = None if outcome == "done" else "it broke"
    if outcome == "failed" and work.attempts >= MOST:
        reason = f"{work.attempts} attempts used up; the last one failed: it broke"
        return Answer("review", Work("review", token, work.attempts, reason))
    return Answer(outcome, Work(outcome, token, work.attempts, reason))


def ended_already(work: Work, token: int, outcome: str) -> Answer | None:
    """The answer where this very call is recorded."""
    is_recorded = work.state == outcome or (outcome == "failed" and work.state == "review")
    if work.token == token and work.state != "begun" and is_recorded:
        return Answer(f"already_{work.state}", work)
    return None


class Queue:
    """Work of every kind, under the active token of its job."""

    def __init__(self, ledger: Ledger, connection: Connection, admin: Connection) -> None:
        self.connection, self.admin = connection, admin
        next_token(ledger)
        self.token = next_token(ledger)
        combinations = product(STATES, OFFSETS, (1, MOST))
        self.before = {f"{s}/{o}/{n}": Work(s, self.token + o, n) for s, o, n in combinations}
        for work_id, work in self.before.items():
            as_ledger_fn(
                admin,
                "insert into ledger.work (resource, work_id, state, token, attempts, reason, changed_at)"
                " values (%s, %s, %s, %s, %s, %s, '2020-01-01')",
                [JOBS, work_id, work.state, work.token, work.attempts, work.reason],
            )

    def told(self, call: str, *arguments: object) -> tuple[str, str | None, Work | None]:
        """The outcome or the code, the reason, and the work as it was answered."""
        values = ", ".join(["%s"] * len(arguments))
        try:
            row = self.connection.execute(
                f"select outcome, state, token, attempt, reason, max_attempts from ledger.{call}({values})".encode(),
                arguments,
            ).fetchone()
        except psycopg.Error as error:
            return str(error.sqlstate), json.loads(error.diag.message_detail or "{}").get("reason"), None
        assert row
        outcome, state, token, attempt, reason, most = row
        assert most == MOST
        return outcome, None, Work(state, token, attempt, reason)

    def rows(self) -> dict[str, Work]:
        """The work as it stands."""
        rows = self.admin.execute("select work_id, state, token, attempts, reason from ledger.work").fetchall()
        return {work_id: Work(*facts) for work_id, *facts in rows}

    def holds(self, answers: dict[str, Answer]) -> None:
        """What is written is what was answered, and no more; what went to review has its event."""
        assert self.rows() == {work_id: answer.work for work_id, answer in answers.items()}
        changed = {work_id for work_id, answer in answers.items() if answer.work != self.before[work_id]}
        touched = self.admin.execute("select work_id from ledger.work where changed_at > '2020-01-02'").fetchall()
        assert {work_id for (work_id,) in touched} == changed
        events = self.admin.execute(
            "select kind, token, reason, detail from ledger.event where event = 'reviewed' and resource = %s", [JOBS]
        ).fetchall()
        reviewed = [(w, a.work) for w, a in answers.items() if w in changed and a.work.state == "review"]
        assert sorted(map(str, events)) == sorted(
            str(("payouts", work.token, work.reason, {"work_id": work_id, "attempts": work.attempts}))
            for work_id, work in reviewed
        )


@pytest.fixture
def queue(ledger: Ledger, operators: Ledger, connection: Connection, admin: Connection) -> Queue:
    two_attempts(operators)
    return Queue(ledger, connection, admin)


def test_an_attempt_begins_or_does_not_by_the_rules(queue: Queue) -> None:
    answers = {work_id: begun(work, queue.token) for work_id, work in queue.before.items()}
    for work_id, answer in answers.items():
        assert queue.told("begin_attempt", JOBS, work_id, queue.token) == (answer.outcome, None, answer.work), work_id
    queue.holds(answers)


@pytest.mark.parametrize("outcome", ["done", "failed", "review"])
def test_an_attempt_ends_or_does_not_by_the_rules(outcome: str, queue: Queue) -> None:
    reason = None if outcome == "done" else "it broke"
    answers = {work_id: ended(work, queue.token, outcome) for work_id, work in queue.before.items()}
    for work_id, answer in answers.items():
        told = queue.told("end_attempt", JOBS, work_id, queue.token, outcome, reason)
        expected = (answer.outcome, answer.reason, None if answer.outcome == "LG304" else answer.work)
        assert told == expected, work_id
    queue.holds(answers)


@pytest.mark.parametrize("outcome", ["done", "failed", "review"])
def test_a_superseded_token_is_told_what_it_recorded_itself_and_ends_nothing(
    outcome: str, queue: Queue, ledger: Ledger
) -> None:
    next_token(ledger, BOB)
    reason = None if outcome == "done" else "it broke"
    for work_id, work in queue.before.items():
        already = ended_already(work, queue.token, outcome)
        told = queue.told("end_attempt", JOBS, work_id, queue.token, outcome, reason)
        assert told == ((already.outcome, None, work) if already else ("LG101", "superseded", None)), work_id
    assert queue.rows() == queue.before


RETRIES: dict[str, Callable[[Ledger, int], Any]] = {
    "begin_attempt": lambda ledger, token: ledger.begin_attempt(JOBS, "failed/0/1", token),
    "end_attempt": lambda ledger, token: ledger.end_attempt(JOBS, "begun/0/1", token, "failed", "it broke"),
}


@pytest.mark.parametrize(("name", "outcome"), [("begin_attempt", "repeated"), ("end_attempt", "LG304")])
def test_of_two_at_once_the_second_is_told_of_the_first(
    name: str, outcome: str, queue: Queue, ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection,
    admin: Connection,
) -> None:  # fmt: skip
    with connection.transaction():
        RETRIES[name](ledger, queue.token)
        second = in_background(lambda: RETRIES[name](rivals, queue.token))
        until(is_waiting(admin, rival))
    if outcome == "LG304":
        with raised("LG304"):
            second.result(5)
    else:
        assert second.result(5).outcome == outcome
    assert max(work.attempts for work in queue.rows().values()) == MOST


@pytest.mark.parametrize("name", RETRIES)
def test_where_nothing_is_checked_it_is_still_the_known_server_and_a_lasting_commit(
    name: str, queue: Queue, ledger: Ledger, operators: Ledger, connection: Connection, admin: Connection
) -> None:
    operators.set_mode("payouts", "off", actor="carol", reason="a test")
    connection.execute("set synchronous_commit = off")
    with connection.transaction(force_rollback=True):
        RETRIES[name](ledger, queue.token)
        assert connection.execute("show synchronous_commit").fetchall() == [("on",)]
    on_a_new_timeline(admin)
    with raised("LG106"):
        RETRIES[name](ledger, queue.token)
