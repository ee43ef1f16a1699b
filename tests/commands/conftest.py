"""The command line as a person uses it: called in this process, or as a process where only that will do."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import psycopg
import pytest

from ledger import dev
from ledger.client import Ledger
from ledger.commands import ledger as commands
from ledger.commands.exits import run
from ledger.lease import Lease
from ledger.sandbox import SandboxProcess
from tests.canary import CANARY, kept_in
from tests.story import MERCHANT, RESOURCE

CHECKOUT = Path(__file__).parents[2]
VARIABLES = ("LEDGER_DSN", "DATABASE_URL", "LEDGER_REDIS_URL", "REDIS_URL", "LEDGER_ACTOR", "NO_COLOR")


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The data on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error on stderr, under -o json."""
        return json.loads(self.err.splitlines()[-1])["error"]


Cli = Callable[..., Said]


@pytest.fixture(autouse=True)
def quiet_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shell that points nowhere, in an empty folder."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nowhere(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line without servers: `nowhere("verify")`."""

    def call(*arguments: object, stdin: str | TextIO | None = None) -> Said:
        capfd.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin or "") if stdin is None or isinstance(stdin, str) else stdin)
        code = run(commands, [str(argument) for argument in arguments])
        said = Said(code, *capfd.readouterr())
        assert CANARY not in said.out + said.err, arguments
        return said

    return call


@pytest.fixture
def cli(
    nowhere: Cli,
    operator_dsn: str,
    admin_dsn: str,
    redis_url: str,
    running: dev.Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cli]:
    """The command line of a person on call, with Postgres and Redis at hand."""
    monkeypatch.setenv("LEDGER_DSN", operator_dsn)
    monkeypatch.setenv("LEDGER_REDIS_URL", redis_url)
    yield nowhere
    running.start_postgres()
    assert kept_in(admin_dsn) == []


@pytest.fixture
def start(cli: Cli) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The command line as a process of its own: `start("verify")`. `cli` has set the environment."""
    assert callable(cli)
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ledger", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            text=True,
            **({"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def held(dsn: str, redis_url: str, cli: Cli) -> Iterator[Lease]:
    """A live worker that holds the merchant."""
    assert callable(cli)
    with Lease(RESOURCE, db=dsn, redis=redis_url) as lease:
        yield lease


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """A sandbox gateway that runs by itself."""
    with SandboxProcess(tmp_path_factory.mktemp("commands") / "log") as process:
        yield process


@pytest.fixture
def refund(ledger: Ledger, database: str) -> str:
    """A pending refund, whose key no other test's gateway calls know."""
    ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", idempotency_key=f"{database}/r_1")
    return "r_1"


def moves(admin: psycopg.Connection[Any], refund_id: str) -> list[tuple[Any, ...]]:
    """A refund's entries with who and why: from, to, token, actor, reason."""
    return admin.execute(
        "select from_state, to_state, token, actor, reason from ledger.journal"
        " where merchant_id = %s and refund_id = %s order by number",
        (MERCHANT, refund_id),
    ).fetchall()


def refusals(admin: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """What is on record as refused: code and function."""
    return admin.execute("select code, function from ledger.refusal order by refusal_id").fetchall()
