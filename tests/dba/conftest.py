"""What the tests for DBAs share: psql as they would run it, and which server has plpgsql_check."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger import dev
from ledger.commands import ledger as commands
from ledger.commands.exits import run
from ledger.dev.binaries import postgres_initdb

Psql = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """plpgsql_check is the system's, and the wheel's servers don't have it: its tests are for those that do."""
    if collection_path.name == "test_plpgsql_check.py" and not has_plpgsql_check(config.getoption("pg")):
        return True
    return None


def has_plpgsql_check(pg: str) -> bool:
    pg_config = postgres_initdb(pg).with_name("pg_config")
    if not pg_config.exists():
        return False
    shared = subprocess.run([pg_config, "--sharedir"], text=True, capture_output=True, check=True).stdout.strip()
    return (Path(shared) / "extension" / "plpgsql_check.control").exists()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests measured, for whoever asked for the figure: `record_property("told", ...)`."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "told" and report.when == "call":
                terminalreporter.write_line(str(value))


@pytest.fixture
def psql(running: dev.Servers) -> Psql:
    """Run SQL as a DBA would: in one transaction, which ends at the first error."""

    def run(dsn: str, text: str, *options: str, one_transaction: bool = True) -> subprocess.CompletedProcess[str]:
        mode = ["-v", "ON_ERROR_STOP=1", *(["-1"] if one_transaction else [])]
        return subprocess.run(
            [running.pg_bin / "psql", dsn, "-X", "-q", *mode, *options, "-f", "-"],
            input=text, text=True, capture_output=True, check=False, cwd="/", env=dict(os.environ),
        )  # fmt: skip

    return run


Printed = Callable[..., str]


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printed:
    """What a command prints: `printed("db", "sql")`. It finds no server but one that is named."""
    for name in ("LEDGER_DSN", "DATABASE_URL", "PGHOST", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        ended = run(commands, list(arguments))
        out, err = capfd.readouterr()
        assert ended == code, err
        return out if code == 0 else err

    return call
