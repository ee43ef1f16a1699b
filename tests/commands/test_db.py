from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import schema
from ledger.client import Ledger
from ledger.dev import Servers
from tests.commands.conftest import CHECKOUT, Cli
from tests.story import added, unchanged

HEAD = schema.head()
FIRST = schema.revisions()[0]


def test_upgrade_makes_the_schema_and_again_changes_nothing(nowhere: Cli, empty_dsn: str) -> None:
    missing = nowhere("db", "current", "--dsn", empty_dsn, "-o", "json")
    first = nowhere("db", "upgrade", "--dsn", empty_dsn)
    again = nowhere("db", "upgrade", "--dsn", empty_dsn)
    there = nowhere("db", "current", "--dsn", empty_dsn, "-o", "json")

    assert (missing.code, missing.json) == (9, {"found": None, "needed": HEAD})
    assert missing.error["message"] == f"schema ledger is missing, this release needs {HEAD}"
    assert (first.code, first.err) == (0, f"schema ledger is at {HEAD} (was: none)\n")
    assert (again.code, again.err) == (0, f"schema ledger is at {HEAD}, as before\n")
    assert (there.code, there.json) == (0, {"found": HEAD, "needed": HEAD})


def test_a_schema_that_is_behind_is_9(nowhere: Cli, empty_dsn: str) -> None:
    assert nowhere("db", "upgrade", FIRST, "--dsn", empty_dsn).code == 0

    said = nowhere("db", "current", "--dsn", empty_dsn)

    assert said.code == 9
    assert f"schema ledger is at {FIRST}, this release needs {HEAD}" in said.err
    assert nowhere("verify", "--dsn", empty_dsn).code == 9
    assert nowhere("db", "downgrade", "base", "--yes", "--dsn", empty_dsn).code == 0


def test_a_schema_of_that_name_that_is_someone_elses_is_left_alone(nowhere: Cli, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("create schema ledger create table accounts (id int)")

    said = nowhere("db", "upgrade", "--dsn", empty_dsn)

    assert said.code == 2
    assert "exists and is not the fenced ledger's; nothing was changed" in said.err
    assert "next: Install into another database" in said.err
    assert "Traceback" not in said.err


def test_a_user_who_may_not_upgrade_is_told_so(nowhere: Cli, empty_dsn: str) -> None:
    said = nowhere("db", "upgrade", "--dsn", empty_dsn.replace("ledger_admin", "ledger_worker"))

    assert said.code == 4
    assert "permission denied" in said.err
    assert "select " not in said.err.lower()


def test_downgrade_asks_and_needs_a_terminal_or_yes(
    nowhere: Cli, migrator_dsn: str, ledger: Ledger, admin: psycopg.Connection[Any], database: str
) -> None:
    added(ledger, "r_1")

    with unchanged(admin):
        said = nowhere("db", "downgrade", "base", "--dsn", migrator_dsn)

    assert said.code == 2
    assert said.err == (
        f"error: Take schema ledger of database {database} from {HEAD} to base? "
        "This drops 1 refunds and their journal, for good. There is no terminal to ask on. Nothing was changed\n"
        "  next: Give --yes\n"
    )


@pytest.mark.parametrize(("answer", "code", "words"), [("n", 1, "aborted: nothing was changed"), ("y", 0, "is gone")])
def test_downgrade_does_as_it_is_answered(
    migrator_dsn: str, ledger: Ledger, admin: psycopg.Connection[Any], answer: str, code: int, words: str
) -> None:
    added(ledger, "r_1")
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())

    done = subprocess.run(
        [sys.executable, "-m", "ledger", "db", "downgrade", "base", "--dsn", migrator_dsn],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=theirs, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == code
    assert words in done.stderr
    gone = admin.execute("select to_regclass('ledger.refund') is null").fetchone()
    assert gone == (code == 0,)
    for end in (ours, theirs):
        os.close(end)


def test_downgrade_to_nothing_may_be_repeated(nowhere: Cli, migrator_dsn: str) -> None:
    first = nowhere("db", "downgrade", "base", "--yes", "--dsn", migrator_dsn)
    again = nowhere("db", "downgrade", "base", "--yes", "--dsn", migrator_dsn)

    assert (first.code, first.err) == (0, "schema ledger is gone; its roles belong to the cluster and stay\n")
    assert (again.code, again.err) == (0, "no schema ledger; nothing to do\n")


def test_downgrade_to_a_revision_in_between(nowhere: Cli, migrator_dsn: str) -> None:
    said = nowhere("db", "downgrade", FIRST, "--yes", "--dsn", migrator_dsn)

    assert (said.code, said.err) == (0, f"schema ledger is at {FIRST} (was: {HEAD})\n")
    assert nowhere("db", "downgrade", FIRST, "--dsn", migrator_dsn).err == (
        f"schema ledger is at {FIRST}; nothing to do\n"
    )


def test_sql_is_what_psql_runs_and_back_again(nowhere: Cli, empty_dsn: str, running: Servers, tmp_path: Path) -> None:
    for name, arguments in (("up.sql", ()), ("down.sql", ("head:base", "--down"))):
        said = nowhere("db", "sql", *arguments)
        assert (said.code, said.err) == (0, "")
        (tmp_path / name).write_text(said.out)
        subprocess.run(
            [running.pg_bin / "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-1", "-f", tmp_path / name, empty_dsn],
            check=True, capture_output=True,
        )  # fmt: skip
        assert nowhere("db", "current", "--dsn", empty_dsn).code == (0 if name == "up.sql" else 9)


@pytest.mark.parametrize(
    "arguments",
    [
        ("upgrade", "nope"),
        ("upgrade", "base"),
        ("downgrade", "nope"),
        ("downgrade", "head"),
        ("sql", "nope"),
        ("sql", ":"),
        ("sql", "a:b:c"),
        ("sql", "--down"),
        ("sql", "--down", f"{FIRST}:{HEAD}"),
        ("sql", f"{HEAD}:{FIRST}"),
    ],
)
def test_revisions_that_are_none_are_bad_input(nowhere: Cli, arguments: tuple[str, ...]) -> None:
    said = nowhere("db", *arguments, "--dsn", "postgresql://127.0.0.1:1/x")

    assert said.code == 2
    assert said.out == ""


@pytest.mark.parametrize("command", ["upgrade", "current", "downgrade base --yes"])
def test_every_command_but_sql_needs_postgres(nowhere: Cli, command: str) -> None:
    assert nowhere("db", *command.split(), "--dsn", "postgresql://127.0.0.1:1/x").code == 4
