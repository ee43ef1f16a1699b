"""`ledger dev`, `ledger gateway serve`, `ledger demo`: commands that start something."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledger import demo
from ledger.gateway import Sent
from ledger.sandbox import SandboxGateway
from tests.commands.conftest import Cli
from tests.sandbox.conftest import Refund

Start = Callable[..., "subprocess.Popen[str]"]


def test_the_first_commands_of_a_newcomer_work_one_after_the_other(
    nowhere: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    pg = pytestconfig.getoption("pg")
    (tmp_path / "refunds.csv").write_text("merchant_id,refund_id,amount,currency\nm_1,r_1,70.25,EUR\n")
    up = nowhere("dev", "up", "--pg", pg, "-o", "json")
    try:
        assert up.code == 0
        assert up.err == (
            f'Postgres {pg} and Valkey are running, kept in .ledger-dev\n  next: eval "$(ledger dev env)"\n'
        )
        env = dict(word.split("=", 1) for word in shlex.split(nowhere("dev", "env").out) if "=" in word)
        assert env == {"LEDGER_DSN": up.json["dsn"], "LEDGER_REDIS_URL": up.json["redis"]}
        for name, value in env.items():
            monkeypatch.setenv(name, value)

        assert nowhere("db", "upgrade").code == 0
        assert nowhere("import", "refunds.csv").code == 0
        assert nowhere("settle", "m_1", "--gateway", "sandbox").code == 0
        assert nowhere("show", "m_1", "r_1", "-o", "json").json["state"] == "sent"
        assert nowhere("verify").code == 0
        assert nowhere("dev", "up", "--pg", pg, "-o", "json").json == up.json
    finally:
        down = nowhere("dev", "down")
    again = nowhere("dev", "down")

    assert (down.code, down.err) == (0, "stopped; the data stays\n")
    assert (again.code, again.err) == (0, "nothing was running\n")
    assert nowhere("dev", "env").code == 2


@pytest.mark.parametrize("command", ["down", "env"])
def test_a_folder_without_servers_is_bad_input(nowhere: Cli, command: str) -> None:
    said = nowhere("dev", command, "nothing-here")

    assert said.code == 2
    assert "there are no servers in" in said.err


def test_a_folder_of_something_else_is_left_alone(nowhere: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")

    said = nowhere("dev", "up", "mine")

    assert said.code == 2
    assert "Nothing in it was touched" in said.err
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_gateway_serves_until_it_is_stopped(start: Start, number: signal.Signals) -> None:
    process = start("gateway", "serve", "--latency", "0.01")
    assert process.stdout is not None
    url = process.stdout.readline().split()[4].rstrip(",")
    refund = Refund("m_1", "r_1", idempotency_key="m_1/r_1")

    with SandboxGateway(url) as gateway:
        assert isinstance(gateway.refund(refund, 1, 5.0), Sent)
    process.send_signal(number)

    assert process.wait(10) == 0
    assert Path("sandbox-gateway.log").read_text().count("r_1") >= 1


@pytest.mark.parametrize(
    "options",
    [
        ("--port", "99999"),
        ("--latency", "-1"),
        ("--fault", "nonsense"),
        ("--log", "no/such/folder/log"),
        ("--dry-run",),
    ],
)
def test_a_gateway_that_can_not_be_started_is_bad_input(nowhere: Cli, options: tuple[str, ...]) -> None:
    assert nowhere("gateway", "serve", *options).code == 2


def result(holds: bool) -> Any:
    return SimpleNamespace(holds=holds, as_json=lambda: {"refunds": 1200, "verify": []})


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_the_demo_as_json_is_one_line_and_its_story_goes_to_stderr(
    nowhere: Cli, monkeypatch: pytest.MonkeyPatch, holds: bool, code: int
) -> None:
    """The demo itself has a test of its own."""

    def run(pg: str, say: Callable[[str], None]) -> Any:
        say("Act 1.")
        return result(holds)

    monkeypatch.setattr(demo, "run", run)
    as_json, told = nowhere("demo", "-o", "json"), nowhere("demo")

    assert (as_json.code, told.code) == (code, code)
    assert as_json.out == '{"refunds":1200,"verify":[]}\n'
    assert json.loads(as_json.out)["refunds"] == 1200
    assert as_json.err == "Act 1.\n"
    assert (told.out, told.err) == ("Act 1.\n", "")
