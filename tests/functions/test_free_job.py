from __future__ import annotations

from ledger.client import Ledger
from tests.story import ALICE, Connection, on_a_new_timeline

JOB = "charges:org_7"


def test_what_was_held_is_given_back(ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)

    assert ledger.free_job(JOB) is True
    rivals.hold_job(JOB)


def test_giving_back_twice_says_that_there_was_nothing(ledger: Ledger) -> None:
    ledger.hold_job(JOB)
    ledger.free_job(JOB)

    assert ledger.free_job(JOB) is False


def test_another_sessions_lock_is_left_alone(ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)

    assert rivals.free_job(JOB) is False
    assert ledger.free_job(JOB) is True


def test_a_rollback_does_not_take_it_back(connection: Connection, ledger: Ledger, rivals: Ledger) -> None:
    ledger.hold_job(JOB)
    with connection.transaction(force_rollback=True):
        assert ledger.free_job(JOB) is True

    rivals.hold_job(JOB)


def test_the_lock_of_lock_job_ends_with_its_transaction_only(connection: Connection, ledger: Ledger) -> None:
    warnings: list[str | None] = []
    connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary))
    with connection.transaction():
        ledger.lock_job(JOB, ALICE)
        assert ledger.free_job(JOB) is False

    assert warnings == []


def test_it_works_on_a_new_timeline(ledger: Ledger, admin: Connection) -> None:
    ledger.hold_job(JOB)
    on_a_new_timeline(admin)

    assert ledger.free_job(JOB) is True


def test_nothing_is_refused_not_even_nonsense(connection: Connection, ledger: Ledger) -> None:
    assert connection.execute("select ledger.free_job(null)").fetchone() == (False,)
    assert ledger.free_job("") is False
