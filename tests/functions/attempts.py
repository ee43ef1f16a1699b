"""What the tests of attempts tell their stories with: a queue's job, whose kind allows two attempts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ledger.client import Ledger
from tests.story import ALICE, Connection, activated

JOBS = "payouts:p_1"
WORK = "job-17"


def two_attempts(operators: Ledger) -> None:
    """Jobs of this kind are tried twice."""
    operators.set_kind(
        "payouts",
        lock="advisory",
        lock_limit=timedelta(seconds=0.2),
        max_attempts=2,
        actor="tests",
        reason="two attempts",
    )


def next_token(ledger: Ledger, holder: str = ALICE) -> int:
    """The token of another holder, or of the same one that starts over."""
    return activated(ledger, holder, JOBS)


def work(admin: Connection) -> Any:
    """The job as it stands: state, attempts, token, reason."""
    return admin.execute(
        "select state, attempts, token, reason from ledger.work where resource = %s and work_id = %s", (JOBS, WORK)
    ).fetchone()


def events(admin: Connection, event: str) -> list[Any]:
    """What is kept of it: token, actor, reason, detail."""
    return admin.execute(
        "select token, actor, reason, detail from ledger.event where event = %s and resource = %s", (event, JOBS)
    ).fetchall()
