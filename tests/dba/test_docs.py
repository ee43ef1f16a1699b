"""`ledger db docs` writes docs/sql.md from the catalog, and the page that ships is its output."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from ledger import schema
from ledger.errors import Refused
from tests.dba.conftest import Printed
from tests.dba.linters import CHECKOUT

Connection = psycopg.Connection[Any]
PAGE = CHECKOUT / "docs/sql.md"


@pytest.fixture
def page(printed: Printed, reader_dsn: str) -> str:
    return printed("db", "docs", "--dsn", reader_dsn)


def test_the_page_that_ships_is_what_the_catalog_says(page: str) -> None:
    assert PAGE.read_text() == page, "ledger db docs > docs/sql.md"


def test_a_changed_comment_changes_the_page(printed: Printed, reader_dsn: str, admin: Connection, page: str) -> None:
    admin.execute("comment on column ledger.refund.currency is 'Which | money'")
    changed = printed("db", "docs", "--dsn", reader_dsn)
    assert set(changed.splitlines()) - set(page.splitlines()) == {"| currency | text |  |  | Which \\| money |"}


def test_it_has_every_function_once_with_who_may_call_it(page: str) -> None:
    functions = {path.stem for path in (schema.SQL / "functions").glob("*.sql")}
    public = page.partition("## Moves")[0]
    assert set(re.findall(r"^### (\w+)$", public, re.MULTILINE)) == functions
    assert public.count("\nFor `") == len(functions)
    guards = {path.stem for path in (schema.SQL / "guards").glob("*.sql")}
    assert set(re.findall(r"^\| (\w+)\(", page, re.MULTILINE)) == guards


def test_it_has_every_code_move_table_and_column(page: str, admin: Connection) -> None:
    assert re.findall(r"^\| (LG\d{3}) \| (\w+) \|", page, re.MULTILINE) == [
        (code, error.__name__) for code, error in sorted(Refused.by_code.items())
    ]
    moves = page.partition("## Moves")[2].partition("## Codes")[0]
    found = admin.execute("select count(*) from ledger.transition").fetchone()
    assert found == (len(re.findall(r"^\| \w* \| \w+ \|", moves, re.MULTILINE)) - 1,)
    relations = page.partition("## Tables")[2]
    for table, column in admin.execute(
        "select c.relname, a.attname from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 "
        "where c.relnamespace = 'ledger'::regnamespace and c.relkind in ('r', 'v')"
    ):
        assert f"\n| {column} |" in relations.partition(f"\n### {table}\n")[2].partition("\n### ")[0]


def test_a_schema_that_is_missing_is_not_described(printed: Printed, empty_dsn: str) -> None:
    assert "schema ledger is missing" in printed("db", "docs", "--dsn", empty_dsn, code=9)
