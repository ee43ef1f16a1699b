"""A dump of a database with protected tables, restored elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ledger import dev
from ledger.client import Ledger
from tests.story import Connection

pytestmark = pytest.mark.heavy


@pytest.fixture
def restored(
    running: dev.Servers, admin: Connection, owner: Connection, ledger: Ledger, admin_dsn: str, tmp_path: Path
) -> Iterator[Connection]:
    """A partitioned table and a plain one, protected; dumped, and restored into another database."""
    owner.execute("create table parted (id integer, org_id text) partition by range (id)")
    owner.execute("create table part partition of parted for values from (1) to (100)")
    owner.execute("insert into parted values (1, 'org_1')")
    owner.execute('create table "Odd Name" (id integer, line text)')
    owner.execute("insert into \"Odd Name\" values (1, 'one')")
    ledger.protect_table("parted", kind="charges", column_name="org_id", stamp=True)
    ledger.protect_table('"Odd Name"', resource="report:daily")
    dump = tmp_path / "dump.sql"
    subprocess.run(
        [running.pg_bin / "pg_dump", admin_dsn, "--file", dump], check=True, capture_output=True, text=True
    )
    copy = running.dsn("postgres", "ledger_restored")
    admin.execute("create database ledger_restored")
    try:
        subprocess.run(
            [running.pg_bin / "psql", copy, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", dump],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        with psycopg.connect(copy, autocommit=True) as connection:
            yield connection
    finally:
        admin.execute("drop database ledger_restored with (force)")


def test_protection_is_restored_with_the_table(restored: Connection) -> None:
    assert Ledger(restored).verify() == []
    assert restored.execute("select relation::text, kind from ledger.protected_table order by 1").fetchall() == [
        ('"Odd Name"', "report"), ("parted", "charges")
    ]  # fmt: skip
    assert restored.execute("select * from parted").fetchall() == [(1, "org_1", None)]
    for write in (
        "insert into parted values (2, 'org_1')", "delete from part", "truncate part", 'delete from "Odd Name"',
    ):  # fmt: skip
        with pytest.raises(psycopg.Error) as refusal:
            restored.execute(write)
        assert refusal.value.sqlstate == "LG103"


def test_triggers_that_a_restore_left_as_ordinary_ones_are_found(restored: Connection) -> None:
    restored.execute("alter table parted disable trigger all; alter table parted enable trigger all")
    assert {finding.check for finding in Ledger(restored).verify()} == {"table_is_protected"}
    Ledger(restored).protect_table("parted", kind="charges", column_name="org_id", stamp=True)
    assert Ledger(restored).verify() == []
