"""`with fenced(db, resource)`: ordinary writes under a token, from psycopg, SQLAlchemy and Django."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ledger import LedgerError, TransactionEnded, fenced
from ledger.client import Ledger
from ledger.errors import BadArgument, LockHeld, StaleToken, UnfencedWrite
from tests.fenced.conftest import ORG, RESOURCE
from tests.fenced.worlds import (
    ALIAS,
    WORLDS,
    Charge,
    django_database,
    psycopg_transaction,
    sqlalchemy_session,
    url,
)
from tests.story import BOB, activated, until

World = Callable[[str], AbstractContextManager[tuple[Any, Callable[..., Any]]]]

everywhere = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)


@everywhere
def test_without_a_token_the_block_runs_under_the_jobs_lock(
    world: World, dsn: str, charges: Callable[[], list[str]], admin: psycopg.Connection[Any]
) -> None:
    with world(dsn) as (db, add):
        with fenced(db, RESOURCE, holder="me/1/0123456789abcdef") as job:
            add(ORG)
        assert charges() == [], "the commit is the caller's"
    assert charges() == [ORG]
    fence = admin.execute("select active, holder from ledger.fence where resource = %s", [RESOURCE]).fetchone()
    assert fence == (job.token, job.holder)
    assert job.holder == "me/1/0123456789abcdef"


@everywhere
def test_a_token_that_was_given_is_presented(
    world: World, dsn: str, ledger: Ledger, charges: Callable[[], list[str]]
) -> None:
    token = activated(ledger, resource=RESOURCE)
    with world(dsn) as (db, add), fenced(db, RESOURCE, token) as job:
        add(ORG)
    assert (job.token, job.holder, charges()) == (token, None, [ORG])


@everywhere
def test_a_stale_token_gets_no_further_than_the_door(
    world: World, dsn: str, ledger: Ledger, charges: Callable[[], list[str]], recorded: Callable[[], list[Any]]
) -> None:
    stale = activated(ledger, resource=RESOURCE)
    active = activated(ledger, BOB, RESOURCE)
    with pytest.raises(StaleToken) as refused, world(dsn) as (db, add), fenced(db, RESOURCE, stale, refusals=dsn):
        add(ORG)
    assert (refused.value.detail["token"], refused.value.detail["active"]) == (stale, active)
    assert recorded() == [("LG101", RESOURCE)]
    assert charges() == []


@everywhere
def test_a_job_that_runs_already_is_told_so(world: World, dsn: str, connection: psycopg.Connection[Any]) -> None:
    def another() -> None:
        with world(dsn) as (db, _), fenced(db, RESOURCE):
            pytest.fail("it got in")

    with connection.transaction(), fenced(connection, RESOURCE), pytest.raises(LockHeld) as refused:
        another()
    assert refused.value.detail["resource"] == RESOURCE


@everywhere
def test_a_write_to_anothers_rows_comes_out_as_our_exception(
    world: World, dsn: str, charges: Callable[[], list[str]], recorded: Callable[[], list[Any]]
) -> None:
    with pytest.raises(UnfencedWrite) as refused, world(dsn) as (db, add), fenced(db, RESOURCE, refusals=dsn):
        add(ORG)
        add("org_8")
    assert refused.value.detail["resource"] == "charges:org_8"
    assert "nothing was changed" in refused.value.message
    assert refused.value.hint
    assert refused.value.__cause__ is not None, "the driver's own is there to be looked at"
    assert not isinstance(refused.value.__cause__, LedgerError)
    assert recorded() == [("LG103", "charges:org_8")]
    assert charges() == []


def test_what_an_orm_kept_back_is_flushed_inside_the_block(dsn: str, charges: Callable[[], list[str]]) -> None:
    with sqlalchemy_session(dsn) as (session, _), fenced(session, RESOURCE):
        session.add(Charge(org_id=ORG, amount=1))
    assert charges() == [ORG]


def test_a_flush_at_the_end_of_the_block_is_refused_as_ours(dsn: str, charges: Callable[[], list[str]]) -> None:
    with pytest.raises(UnfencedWrite), sqlalchemy_session(dsn) as (session, _), fenced(session, RESOURCE):
        session.add(Charge(org_id="org_8", amount=1))
    assert charges() == []


@everywhere
def test_what_is_not_the_ledgers_comes_out_as_it_is(world: World, dsn: str) -> None:
    with pytest.raises(Exception, match="charge_amount_check") as caught, world(dsn) as (db, add), fenced(db, RESOURCE):
        add(ORG, amount=-1)
    assert not isinstance(caught.value, LedgerError)


def test_what_the_caller_makes_of_a_refusal_is_the_callers(dsn: str) -> None:
    class NotYoursError(Exception):
        pass

    with pytest.raises(NotYoursError), sqlalchemy_session(dsn) as (session, add), fenced(session, RESOURCE):
        try:
            add("org_8")
        except DBAPIError as error:
            raise NotYoursError from error


def test_two_blocks_move_a_row_between_two_resources(
    connection: psycopg.Connection[Any], charges: Callable[[], list[str]]
) -> None:
    with connection.transaction(), fenced(connection, RESOURCE):
        connection.execute("insert into charge (org_id, amount) values ('org_7', 1)")
    with connection.transaction(), fenced(connection, RESOURCE), fenced(connection, "charges:org_8"):
        connection.execute("update charge set org_id = 'org_8'")
    assert charges() == ["org_8"]


def test_rows_of_another_shape_are_no_obstacle(dsn: str) -> None:
    with psycopg.connect(dsn, row_factory=dict_row) as connection, fenced(connection, RESOURCE) as job:
        assert job.token > 0


# Limits


@everywhere
def test_a_block_that_was_silent_too_long_says_which_limit_ended_it(
    world: World, dsn: str, short_silence: None, gone: Callable[[int], bool], admin: psycopg.Connection[Any],
    charges: Callable[[], list[str]],
) -> None:  # fmt: skip
    def silent_then_write() -> None:
        with world(dsn) as (db, add), fenced(db, RESOURCE):
            add(ORG)
            (pid,) = the_one_in_a_transaction(admin)
            until(lambda: gone(pid))
            add(ORG)

    with pytest.raises(TransactionEnded) as ended:
        silent_then_write()
    assert ended.value.reason == "idle_limit"
    assert "silent for longer than the idle limit, 500ms" in ended.value.message
    assert "ledger kind set charges --idle-limit" in str(ended.value.hint)
    assert charges() == []


@everywhere
def test_a_session_that_somebody_ended_says_who_that_may_have_been(
    world: World, dsn: str, gone: Callable[[int], bool], admin: psycopg.Connection[Any]
) -> None:
    def terminated_then_write() -> None:
        with world(dsn) as (db, add), fenced(db, RESOURCE):
            (pid,) = the_one_in_a_transaction(admin)
            admin.execute("select pg_terminate_backend(%s)", [pid])
            until(lambda: gone(pid))
            add(ORG)

    with pytest.raises(TransactionEnded) as ended:
        terminated_then_write()
    assert ended.value.reason == "terminated"
    assert "a newer holder" in ended.value.message


def test_a_transaction_that_lasts_too_long_is_ended_by_its_kinds_limit_where_postgres_has_one(
    dsn: str, operators: Ledger, admin: psycopg.Connection[Any]
) -> None:
    operators.set_kind("charges", transaction_limit=timedelta(seconds=0.3), actor="tests", reason="short")

    def work() -> None:
        with psycopg_transaction(dsn) as (db, _), fenced(db, RESOURCE):
            db.execute("select pg_sleep(0.6)")

    if admin.info.server_version < 170000:
        work()
        return
    with pytest.raises(TransactionEnded) as ended:
        work()
    assert ended.value.reason == "transaction_limit"
    assert "longer than the transaction limit, 300ms" in ended.value.message


def the_one_in_a_transaction(admin: psycopg.Connection[Any]) -> tuple[int]:
    """The server process of the only open transaction of this database, apart from the looker's."""
    (row,) = admin.execute(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and state = 'idle in transaction'"
    ).fetchall()
    return row  # type: ignore[no-any-return]


# What is no open transaction


def test_psycopg_in_autocommit_is_refused(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(ValueError, match=r"no transaction is open.*with connection\.transaction\(\)"):
        fenced(connection, RESOURCE).__enter__()


def test_sqlalchemy_in_autocommit_is_refused(dsn: str) -> None:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(ValueError, match="no transaction is open"):
        fenced(session, RESOURCE).__enter__()


def test_django_outside_atomic_is_refused(dsn: str) -> None:
    with django_database(dsn), pytest.raises(ValueError, match=r"no transaction is open.*transaction\.atomic"):
        fenced(ALIAS, RESOURCE).__enter__()


def test_a_db_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="can't be made on dict"):
        fenced({}, RESOURCE)


def test_a_dsn_is_no_django_alias_and_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="no Django database of that alias") as refused:
        fenced("postgresql://worker:secret@db/shop", RESOURCE)
    assert "secret" not in str(refused.value)


def test_a_malformed_resource_is_refused(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(BadArgument), connection.transaction(), fenced(connection, "charges"):
        pytest.fail("it got in")


def test_a_job_has_no_token_before_its_block(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(RuntimeError, match="Enter the block first"):
        _ = fenced(connection, RESOURCE).token


def test_neither_orm_is_loaded_by_the_ledger() -> None:
    script = "import sys, ledger.fencing; print(*({'sqlalchemy', 'django', 'asyncpg'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
