"""`ledger db grants` prints what makes a role of the site's a worker, an operator, a reader or a migrator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ledger import schema
from tests.dba.conftest import Printed, Psql
from tests.story import raised

Connection = psycopg.Connection[Any]
ROLE = 'site "app"; --'


@pytest.fixture
def role(admin: Connection) -> Iterator[str]:
    """A role of the site's, whose name is as bad as names can be."""
    name = sql.Identifier(ROLE)
    admin.execute(sql.SQL("create role {} login").format(name))
    yield ROLE
    admin.execute(sql.SQL("drop owned by {0}; drop role {0}").format(name))


def calls_of(admin: Connection, role: str) -> set[str]:
    rows = admin.execute(
        "select proname from pg_proc where pronamespace = 'ledger'::regnamespace "
        "and has_function_privilege(%s, oid, 'execute')",
        [role],
    )
    return {name for (name,) in rows}


@pytest.mark.parametrize("duty", ["worker", "operator", "reader"])
def test_the_role_may_then_call_what_was_listed_and_nothing_else(
    duty: str, role: str, printed: Printed, psql: Psql, admin: Connection, admin_dsn: str
) -> None:
    text = printed("db", "grants", role, "--as", duty)
    assert calls_of(admin, role) == set()

    done = psql(admin_dsn, text)

    assert (done.returncode, done.stderr) == (0, "")
    listed = {line.split("(")[0].removeprefix("--   ") for line in text.splitlines() if line.startswith("--   ")}
    assert calls_of(admin, role) == listed == calls_of(admin, f"ledger_{duty}")


def test_what_was_granted_is_taken_back_as_it_says(
    role: str, printed: Printed, psql: Psql, admin: Connection, admin_dsn: str
) -> None:
    text = printed("db", "grants", role, "--as", "worker")
    psql(admin_dsn, text).check_returncode()
    (back,) = [line.partition("Taken back by: ")[2] for line in text.splitlines() if "Taken back by" in line]

    psql(admin_dsn, back).check_returncode()

    assert calls_of(admin, role) == set()


def test_a_worker_logs_in_and_works_but_writes_to_no_table(
    role: str, printed: Printed, psql: Psql, admin_dsn: str
) -> None:
    psql(admin_dsn, printed("db", "grants", role, "--as", "worker")).check_returncode()
    with psycopg.connect(admin_dsn, user=role, autocommit=True) as worker:
        assert worker.execute("select ledger.draw_token('settle:m_1') > 0").fetchone() == (True,)
        for statement in ("insert into ledger.server values (true)", "set role ledger_fn", "set role ledger_owner"):
            with raised("42501"):
                worker.execute(statement)


def test_a_migrator_becomes_a_member_of_both_owners(
    role: str, printed: Printed, psql: Psql, admin: Connection, admin_dsn: str
) -> None:
    psql(admin_dsn, printed("db", "grants", role, "--as", "migrator")).check_returncode()
    for owner in ("ledger_owner", "ledger_fn"):
        assert admin.execute("select pg_has_role(%s, %s, 'member')", [role, owner]).fetchone() == (True,)


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 64])
def test_what_is_no_name_of_a_role_is_refused(name: str, printed: Printed) -> None:
    assert "is no name of a role" in printed("db", "grants", name, "--as", "worker", code=2)


def test_what_each_duty_may_call_is_read_from_the_grants() -> None:
    worker, operator, reader = (set(schema.callable_by(f"ledger_{duty}")) for duty in ("worker", "operator", "reader"))
    assert "claim_refund(text, text, bigint)" in worker
    assert worker < operator
    assert "verify(text)" in reader < operator
