"""What holds for every command: options, help, errors, secrets, colours, servers that can't be reached."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest

from ledger import __version__
from ledger.client import Ledger
from ledger.commands import ledger as root
from ledger.commands.app import App
from ledger.commands.exits import Terminated, Voice, run
from ledger.schema import head
from tests.commands.conftest import CHECKOUT, Cli
from tests.story import MERCHANT, added

CANARY = "c4n4ry"
HAND = ("--reason", "ticket 91")


def every_command(command: click.Command = root, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command, info_name="ledger")
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from every_command(inner, *path, name)


COMMANDS = {" ".join(path): command for path, command in every_command()}
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}


# Help.


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help(nowhere: Cli, path: str) -> None:
    said = nowhere(*path.split(), "--help")

    assert said.code == 0
    assert said.out.startswith(f"Usage: ledger {path}".rstrip())
    assert said.err == ""


@pytest.mark.parametrize("path", LEAVES)
def test_help_has_an_example_and_the_exit_codes(nowhere: Cli, path: str) -> None:
    help_text = nowhere(*path.split(), "--help").out

    assert f"ledger {path}" in help_text.partition("Example:")[2]
    assert "Exit codes:" in help_text
    assert max(map(len, help_text.splitlines())) <= 122


@pytest.mark.parametrize("path", LEAVES)
def test_the_short_help_in_the_list_is_the_commands_own(nowhere: Cli, path: str) -> None:
    """The list is written down, so that it needs no imports."""
    group, _, name = path.rpartition(" ")
    shown = re.search(rf"^  {name} +(.+)$", nowhere(*group.split(), "--help").out, re.MULTILINE)

    assert shown is not None
    assert shown[1].strip()


@pytest.mark.parametrize("path", ["", "kind", "db", "lease", "dev", "gateway"])
def test_a_group_without_a_command_shows_its_help_and_is_bad_usage(nowhere: Cli, path: str) -> None:
    said = nowhere(*path.split())

    assert said.code == 2
    assert said.err.startswith(f"Usage: ledger {path}".rstrip())
    assert "error:" not in said.err


def test_help_imports_no_driver() -> None:
    script = (
        "import sys; from ledger.commands import ledger\n"
        "try: ledger.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('psycopg', 'redis', 'alembic', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


# Usage errors.


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        (["nope"], "No such command 'nope'.", "ledger --help"),
        (["--nope"], "No such option", "ledger --help"),
        (["verify", "--nope"], "No such option", "ledger verify --help"),
        (["kind", "nope"], "No such command 'nope'.", "ledger kind --help"),
        (["show", "m_1"], "Missing argument 'REFUND'.", "ledger show --help"),
        (["show", "a", "b", "c"], "Got unexpected extra argument (c)", "ledger show --help"),
        (["list", "m_1", "--limit", "0"], "0 is not in the range 1<=x<=100000.", "ledger list --help"),
        (["list", "m_1", "--state", "lost"], "'lost' is not one of", "ledger list --help"),
        (["verify", "-o", "xml"], "'xml' is not one of 'table', 'json', 'csv'.", "ledger verify --help"),
        (["settle", "m_1"], "Missing option '--gateway'.", "ledger settle --help"),
    ],
)
def test_wrong_usage_exits_2_and_says_where_help_is(
    nowhere: Cli, arguments: list[str], problem: str, hint: str
) -> None:
    said = nowhere(*arguments)
    as_json = nowhere("-o", "json", *arguments) if "xml" not in arguments else None

    assert said.code == 2
    assert problem in said.err
    assert said.err.endswith(f"  next: {hint}\n")
    assert said.out == ""
    if as_json is not None:
        assert problem in as_json.error["message"]
        assert (as_json.error["exit_code"], as_json.error["hint"]) == (2, hint)


@pytest.mark.parametrize(
    ("typed", "wants_json"),
    [
        (["-o", "json"], True),
        (["-ojson"], True),
        (["--output", "json"], True),
        (["--output=json"], True),
        (["-yo", "json"], True),
        (["-nojson"], True),
        (["-o", "csv"], False),
        (["--reason", "-o or json"], False),
        (["show", "json"], False),
    ],
)
def test_errors_are_json_however_that_was_asked_for(typed: list[str], wants_json: bool) -> None:
    assert Voice.of(["verify", *typed]).json is wants_json


# The global options.


def test_global_options_stand_before_a_command_after_it_and_in_between(cli: Cli) -> None:
    said = [
        cli("-o", "json", "kind", "list"),
        cli("kind", "-o", "json", "list"),
        cli("kind", "list", "-o", "json"),
    ]

    assert [one.code for one in said] == [0, 0, 0]
    assert [one.json[0]["kind"] for one in said] == ["settle"] * 3


def test_what_stands_last_wins_and_the_environment_comes_last(
    nowhere: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = "postgresql://127.0.0.1:1/x"
    monkeypatch.setenv("DATABASE_URL", dead)
    monkeypatch.setenv("LEDGER_DSN", dsn)
    assert nowhere("verify").code == 0

    monkeypatch.setenv("LEDGER_DSN", dead)
    assert nowhere("verify").code == 4
    assert nowhere("--dsn", dsn, "verify").code == 0
    assert nowhere("--dsn", dead, "verify", "--dsn", dsn).code == 0


def test_libpqs_own_variables_are_enough(nowhere: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    for name, variable in (("host", "PGHOST"), ("port", "PGPORT"), ("user", "PGUSER"), ("dbname", "PGDATABASE")):
        monkeypatch.setenv(variable, str(parts[name]))

    assert nowhere("verify").code == 0


def test_sessions_are_named_after_the_command_unless_the_user_names_them(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def name(conninfo: str) -> Any:
        with App(dsn=conninfo).connect() as connection:
            return connection.execute("show application_name").fetchone()[0]  # type: ignore[index]

    assert name(dsn) == f"ledger/{__version__}"
    assert name(dsn + "&application_name=nightly") == "nightly"
    monkeypatch.setenv("PGAPPNAME", "cron")
    assert name(dsn) == "cron"


@pytest.mark.parametrize(
    "command",
    [
        ("settle", MERCHANT, "--gateway", "sandbox"),
        ("db", "upgrade"),
        ("db", "downgrade", "base"),
        ("dev", "up"),
        ("dev", "down"),
        ("demo",),
        ("reproduce", "--all"),
        ("gateway", "serve"),
    ],
)
def test_a_command_without_a_dry_run_refuses_to_be_given_one(
    nowhere: Cli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = nowhere(*command, "--dry-run")

    assert said.code == 2
    assert "has no dry run. Nothing was changed\n  next: Leave --dry-run away\n" in said.err
    assert list(tmp_path.iterdir()) == []


def test_data_goes_to_stdout_and_words_to_stderr(cli: Cli, ledger: Ledger) -> None:
    added(ledger, "r_1", "r_2")

    said = cli("list", MERCHANT, "--limit", "1", "-o", "csv")

    assert len(said.out.splitlines()) == 2
    assert said.err == "there may be more: --after 'r_1'\n"


# Colours.


def coloured(*arguments: str, **environment: str) -> bytes:
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "ledger", *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, check=False,
    )  # fmt: skip
    os.close(theirs)
    said = os.read(ours, 65536)
    os.close(ours)
    return said


def test_a_terminal_gets_colours_unless_it_wants_none() -> None:
    assert b"\x1b[31m" in coloured("nope")
    assert b"\x1b" not in coloured("nope", NO_COLOR="1")
    assert b"\x1b" not in coloured("nope", "--no-color")


def test_a_pipe_gets_no_colours(cli: Cli) -> None:
    said = cli("kind", "list")

    assert "\x1b" not in said.out + said.err


# Secrets.


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:p@{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:{CANARY}/x@127.0.0.1:1/x",
        f"postgresql://u:p/{CANARY}@127.0.0.1:1/x",
        f"postgresql://u:{CANARY}%@127.0.0.1:1/x",
        f"postgresql://u:{CANARY}#?@127.0.0.1:1/x",
        f"postgresql://u:{CANARY}@[::1/x",
        f"postgresql://u:{CANARY}@127.0.0.1:port/x",
        f"postgresql://u:{CANARY}@127.0.0.1:1/x?nope=1",
        f"host=127.0.0.1 port=1 password={CANARY} x",
        f"host=127.0.0.1 port=1 password='{CANARY}",
        f"host=127.0.0.1 port=1 password=p {CANARY}",
        f"{CANARY}",
    ],
)
def test_a_password_appears_nowhere(nowhere: Cli, monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    monkeypatch.setenv("LEDGER_TRACEBACK", "1")
    for command in (
        ("verify",),
        ("verify", "-o", "json"),
        ("db", "upgrade"),
        ("settle", MERCHANT, "--gateway", "sandbox"),
        ("fail", MERCHANT, "r_1", *HAND),
    ):
        said = nowhere("--dsn", dsn, *command)

        assert said.code in {2, 4}
        assert CANARY not in said.out + said.err
        assert said.err


def test_a_password_that_the_server_refuses_appears_nowhere(nowhere: Cli, dsn: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn) | {"user": "nobody_here", "password": CANARY}

    said = nowhere("verify", "--dsn", psycopg.conninfo.make_conninfo("", **parts))

    assert said.code == 4
    assert CANARY not in said.out + said.err


URLS = [
    f"redis://:{CANARY}@127.0.0.1:1",
    f"redis://u:{CANARY}@127.0.0.1:1/0",
    f"redis://:p/{CANARY}@127.0.0.1:1",
    f"redis://:{CANARY}/p@127.0.0.1:1",
    f"redis://:p#{CANARY}@127.0.0.1:1",
    f"redis://:p?{CANARY}@127.0.0.1:1",
    f"unix://:{CANARY}@/nowhere.sock",
    f"http://{CANARY}",
    CANARY,
]


@pytest.mark.parametrize(
    "command",
    [
        ("lease", "show", "settle:m_1"),
        ("settle", MERCHANT, "--gateway", "http://127.0.0.1:1"),
        ("fail", MERCHANT, "r_1", *HAND),
        ("fail", MERCHANT, "r_1", *HAND, "--dry-run"),
    ],
)
def test_a_redis_password_appears_nowhere(cli: Cli, ledger: Ledger, command: tuple[str, ...]) -> None:
    added(ledger, "r_1")

    for url in URLS:
        said = cli("--redis", url, *command)

        assert said.code in {2, 4}, url
        assert CANARY not in said.out + said.err


# Servers that can't be reached, rights and schemas that are missing.


def test_a_postgres_that_is_away_is_named(nowhere: Cli) -> None:
    said = nowhere("verify", "--dsn", "postgresql://127.0.0.1:1/x")

    assert said.code == 4
    assert said.err.startswith("error: Postgres can't be reached: ")
    assert said.err.endswith("\n  next: Check --dsn, LEDGER_DSN or PGHOST\n")


NEED_SCHEMA: list[tuple[str, ...]] = [
    ("show", MERCHANT, "r_1"),
    ("list", MERCHANT),
    ("history", MERCHANT, "r_1"),
    ("verify",),
    ("kind", "list"),
    ("kind", "set", "settle", "--max-attempts", "3", *HAND),
    ("lease", "show", "settle:m_1"),
    ("settle", MERCHANT, "--gateway", "sandbox"),
    ("fail", MERCHANT, "r_1", *HAND),
]


def test_a_missing_schema_is_told_in_words(nowhere: Cli, empty_dsn: str) -> None:
    for command in NEED_SCHEMA:
        said = nowhere(*command, "--dsn", empty_dsn)

        assert said.code == 9
        assert said.err.startswith(f"error: schema ledger is missing, or older than this release needs ({head()}): ")
        assert said.err.endswith("\n  next: Run ledger db upgrade, or give your DBA the output of ledger db sql\n")
        assert len(said.err.splitlines()) == 2


def test_a_user_who_may_not_is_told_which_role_is_needed(cli: Cli, reader_dsn: str) -> None:
    said = cli("kind", "set", "settle", "--max-attempts", 3, *HAND, "--dsn", reader_dsn)

    assert said.code == 4
    assert said.err == (
        "error: Postgres doesn't let this user do that: permission denied for function set_kind. Nothing was changed\n"
        "  next: Connect as a member of ledger_reader (to look), ledger_worker (to settle) or ledger_operator (both)\n"
    )


def test_a_standby_takes_no_writes(cli: Cli, operator_dsn: str) -> None:
    said = cli(
        "kind", "set", "settle", "--max-attempts", 3, *HAND,
        "--dsn", operator_dsn + "&options=-cdefault_transaction_read_only%3Don",
    )  # fmt: skip

    assert said.code == 4
    assert "target_session_attrs=read-write" in said.err


def test_a_server_that_goes_away_in_the_middle_leaves_it_open(
    cli: Cli, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_away(self: Ledger, merchant_id: str | None = None) -> Any:
        assert isinstance(self.connection, psycopg.Connection)
        self.connection.execute("select pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(Ledger, "verify", go_away)
    said = cli("verify")

    assert said.code == 4
    assert said.err.startswith("error: Postgres gave up: terminating connection due to administrator command")
    assert "may be recorded or not" in said.err


# Unexpected errors, and ends from outside.


def test_what_should_not_happen_is_1_and_says_how_to_see_more(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(Ledger, "verify", fail)

    said = cli("verify")

    assert said.code == 1
    assert said.err == (
        "error: ZeroDivisionError: no such luck\n"
        "  next: This should not happen. LEDGER_TRACEBACK=1 shows where it did\n"
    )
    monkeypatch.setenv("LEDGER_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli("verify")


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Terminated(), 143, "terminated\n"),
        (click.Abort(), 1, "aborted: nothing was changed\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_ends_from_outside_have_codes_of_their_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, words: str
) -> None:
    def end(*_: object) -> None:
        raise raised

    monkeypatch.setattr(Ledger, "verify", end)
    monkeypatch.setattr("ledger.commands.exits._say_no_more", lambda: None)

    said = cli("verify")

    assert (said.code, said.err.lstrip("\n")) == (code, words)
    assert sys.stdout is not None


def test_run_leaves_the_signals_as_they_were(nowhere: Cli) -> None:
    before = signal.getsignal(signal.SIGTERM)
    nowhere("--help")

    assert signal.getsignal(signal.SIGTERM) == before
    assert run is not None


@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_reader_that_goes_away_ends_it_without_a_word(
    start: Callable[..., subprocess.Popen[str]], ledger: Ledger, form: str
) -> None:
    for page in range(8):
        count = range(page * 1000, page * 1000 + 1000)
        ledger.add_refunds(MERCHANT, [f"r_{n:06d}" for n in count], [100] * 1000, ["EUR"] * 1000)

    process = start("list", MERCHANT, "--limit", 100_000, "-o", form)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()

    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(10) == 141
