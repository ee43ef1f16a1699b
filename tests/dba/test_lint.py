"""The linters of `make lint` fire on what they are there for. That they find nothing in ours, `make lint` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import schema
from tests.dba import linters

pytestmark = pytest.mark.heavy

KEYS = ("Locks", "Rewrites", "Transaction", "Reversible", "Needs")
SETTINGS = (
    "set local search_path = pg_catalog, pg_temp;",
    "set local lock_timeout = '1s';",
    "set local statement_timeout = '60s';",
)
SCHEMA_FILES = sorted((linters.CHECKOUT / "sql/schema").glob("*.sql"))
NEVER_RUN_ALONE = {"grants", "functions_end"}


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("require-lock-timeout", "alter table ledger.refund add column note text;"),
        ("require-concurrent-index-creation", "create index refund_by_state on ledger.refund (state);"),
        ("adding-not-nullable-field", "alter table ledger.refund alter column gateway set not null;"),
        ("changing-column-type", "alter table ledger.refund alter column attempts type bigint;"),
        ("constraint-missing-not-valid", "alter table ledger.refund add constraint small check (attempts < 9);"),
    ],
)
def test_squawk_fires_on_what_would_stop_others(rule: str, bad: str) -> None:
    settings = "" if rule == "require-lock-timeout" else "\n".join(SETTINGS)
    assert rule in linters.squawk(f"{settings}\n{bad}\n")


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("PS003", "create function ledger.f() returns text language plpgsql security definer as $$ begin end; $$;"),
        (
            "PS004",
            "create function ledger.f() returns text language plpgsql security definer set search_path = a as $$ $$;",
        ),
        ("PS016", "insert into ledger.server (timeline) select pg_walfile_name(pg_current_wal_lsn());"),
        ("PS001", "do $$ begin if current_setting('x')::integer >= 1 then null; end if; end; $$;"),
    ],
)
def test_pgspot_fires_on_a_name_that_could_be_somebody_elses(code: str, bad: str) -> None:
    assert code in linters.pgspot(bad)


def test_pgspot_reads_into_a_function_whose_variables_have_types_of_ours() -> None:
    function = (schema.SQL / "guards/pass_gate.sql").read_text()
    assert linters.pgspot(function) == ""
    assert "PS016" in linters.pgspot(function.replace("\nset search_path = pg_catalog, pg_temp", ""))


@pytest.mark.parametrize(
    ("rule", "bad"),
    [("PRS", "select from where;\n"), ("CP01", "SELECT 1 from ledger.refund;\n"), ("LT01", "select  1 ;\n")],
)
def test_sqlfluff_fires_on_what_does_not_parse_and_on_what_is_untidy(rule: str, bad: str, tmp_path: Path) -> None:
    (tmp_path / ".sqlfluff").write_text((linters.CHECKOUT / ".sqlfluff").read_text())
    (tmp_path / "bad.sql").write_text(bad)
    assert rule in linters.sqlfluff(tmp_path / "bad.sql")


def test_a_revision_with_one_bad_line_is_found_wherever_it_stands() -> None:
    ((_, first), *_, (_, newest)) = linters.revisions()
    bad = "create index order_by_state on shop.orders (state);"
    assert linters.squawk(first) == ""
    for text in (first, newest):
        assert "require-concurrent-index-creation" in linters.squawk(text + bad)


# What each revision says of itself


@pytest.mark.parametrize("path", SCHEMA_FILES, ids=lambda path: path.name)
def test_a_header_says_what_is_locked_rewritten_and_reversible(path: Path) -> None:
    if path.stem in NEVER_RUN_ALONE:
        return
    header, _, body = path.read_text().partition("\n\n")
    said = [line[3:16].strip() for line in header.splitlines() if line.startswith("-- ") and line[3:16].strip() in KEYS]
    assert said == list(KEYS)
    assert "-- Transaction  runs inside one.\n" in header
    settings = SETTINGS if path.stem != "begin" else (SETTINGS[0], "set local lock_timeout = '60s';", SETTINGS[2])
    assert body.startswith("\n".join(settings))


def test_each_revision_begins_with_its_header_and_limits_its_own_waits() -> None:
    for name, text in linters.revisions():
        _, running, own = text.partition("-- Running upgrade")
        assert running
        assert own.split("\n\n")[1].startswith(f"-- {name}: ")
        limits = own.split("\n\n")[2]
        assert [setting for setting in SETTINGS if setting not in limits] == []
