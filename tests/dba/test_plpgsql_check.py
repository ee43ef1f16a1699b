"""plpgsql_check looks into every function, on a server that has it: types, names, dead code, injected SQL."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest

Connection = psycopg.Connection[Any]

# A trigger function is checked with a table that it is on; the protected ones get a table of their own.
CHECK: LiteralString = """
    select p.proname, c.lineno, c.sqlstate, c.message
    from pg_proc as p
    join pg_language as l on l.oid = p.prolang and l.lanname = 'plpgsql'
    cross join lateral plpgsql_check_function_tb(
        funcoid => p.oid,
        relid => case when p.prorettype = 'trigger'::regtype then %s::regclass else 0 end,
        other_warnings => true, extra_warnings => true, security_warnings => true, performance_warnings => false,
        oldtable => case when p.proname = 'check_write' then 'old_rows' end,
        newtable => case when p.proname = 'check_write' then 'new_rows' end
    ) as c
    where p.pronamespace = %s::regnamespace
    order by p.proname, c.lineno
"""

# Runs the statements that table_triggers wrote and quoted, as the caller itself.
QUOTED_ELSEWHERE = {("protect_table", "text type variable is not sanitized")}


@pytest.fixture
def checker(admin: Connection) -> Connection:
    admin.execute("create extension plpgsql_check")
    admin.execute("create table public.report (id integer primary key, body text, fence bigint)")
    return admin


def found_by(checker: Connection, schema: str = "ledger") -> list[tuple[Any, ...]]:
    return checker.execute(CHECK, ["public.report", schema]).fetchall()


def test_plpgsql_check_finds_nothing(checker: Connection) -> None:
    findings = [(name, message) for name, _, _, message in found_by(checker)]
    assert [found for found in findings if found not in QUOTED_ELSEWHERE] == []
    assert set(findings) == QUOTED_ELSEWHERE, "an exception that is needed no more goes"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("begin perform r.no_such_column from ledger.refund as r; end", "no_such_column"),
        ("begin perform ledger.no_such_function(1); end", "no_such_function"),
        ("declare unused text; begin end", "unused"),
        ("begin execute 'select ' || given; end", "not sanitized"),
    ],
)
def test_plpgsql_check_fires(body: str, told: str, checker: Connection) -> None:
    checker.execute("create schema bad")
    checker.execute(f"create function bad.f(given text) returns void language plpgsql as $f$ {body} $f$")
    assert any(told in message for *_, message in found_by(checker, "bad"))
