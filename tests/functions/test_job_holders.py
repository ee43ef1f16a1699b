"""job_holders: which sessions hold a job's advisory lock."""

from __future__ import annotations

from typing import Any

import psycopg

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import ALICE

Connection = psycopg.Connection[Any]

JOB = "report:daily"


def test_a_job_that_nobody_runs_has_no_holder(ledger: Ledger) -> None:
    assert ledger.job_holders(JOB) == []


def test_a_session_that_holds_it_is_named(connection: Connection, ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)
    (holder,) = rivals.job_holders(JOB)
    assert (holder["pid"], holder["user"]) == (connection.info.backend_pid, "ledger_worker")
    ledger.free_job(JOB)
    assert rivals.job_holders(JOB) == []


def test_a_transaction_that_runs_it_is_named_until_its_end(
    connection: Connection, ledger: Ledger, rivals: Ledger
) -> None:
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        assert [holder["pid"] for holder in rivals.job_holders(JOB)] == [connection.info.backend_pid]
    assert rivals.job_holders(JOB) == []


def test_ones_own_session_is_not_told(ledger: Ledger) -> None:
    ledger.hold_job(JOB)
    assert ledger.job_holders(JOB) == []


def test_another_job_has_other_holders(ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)
    assert rivals.job_holders("report:weekly") == []


def test_a_reader_may_ask(connect: Connect, reader_dsn: str, ledger: Ledger) -> None:
    ledger.hold_job(JOB)
    assert len(Ledger(connect(reader_dsn)).job_holders(JOB)) == 1
