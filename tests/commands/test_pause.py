"""`ledger pause`, `resume`: nothing begins, and what is out gets recorded."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from ledger.sandbox import SandboxProcess
from tests.commands.conftest import Cli
from tests.story import MERCHANT, RESOURCE, activated, in_state, refund, unchanged

WHY = ("--reason", "incident 812")


def test_pausing_says_since_when_by_whom_and_why(cli: Cli) -> None:
    said = cli("pause", "settle", *WHY, "--actor", "carol", "-o", "json")

    assert said.code == 0
    (pause,) = said.json
    assert (pause["target"], pause["actor"], pause["reason"]) == ("settle", "carol", "incident 812")
    assert cli("pause", "settle", "--reason", "me too", "-o", "json").json == [pause]
    assert cli("pause", "-o", "json").json == [pause]


def test_nothing_is_paused_at_first(cli: Cli) -> None:
    said = cli("pause")
    assert (said.code, said.out, said.err) == (0, "", "nothing is paused\n")


@pytest.mark.parametrize("target", ["settle", RESOURCE])
def test_paused_work_does_not_begin_and_exits_6(cli: Cli, refund: str, gateway: SandboxProcess, target: str) -> None:
    cli("pause", target, *WHY)

    for command in (
        ("settle", MERCHANT, "--gateway", gateway.url),
        ("claim", MERCHANT, refund, *WHY),
        ("confirm", MERCHANT, refund, "--gateway-ref", "re_1", *WHY),
    ):
        said = cli(*command)
        assert said.code == 6, said
        assert f"{target} is paused by" in said.err
        assert "incident 812; nothing was changed" in said.err

    cli("resume", target, *WHY)
    assert cli("settle", MERCHANT, "--gateway", gateway.url).code == 0


def test_a_worker_that_claimed_before_can_record_what_is_out(cli: Cli, ledger: Ledger, admin: Any) -> None:
    token = activated(ledger)
    in_state("sending", "r_1", token, ledger, admin)
    cli("pause", "settle", *WHY)

    assert cli("confirm", MERCHANT, "r_1", "--gateway-ref", "re_1", "--token", token, *WHY).code == 0
    assert refund(admin, "r_1", "state") == "sent"


def test_resuming_says_whether_it_was_paused_and_whether_it_still_is(cli: Cli) -> None:
    cli("pause", "settle", *WHY)
    cli("pause", RESOURCE, *WHY)

    said = cli("resume", RESOURCE, *WHY, "-o", "json")
    assert (said.code, said.json) == (0, {"target": RESOURCE, "outcome": "resumed"})
    assert said.err == "its kind settle is still paused: ledger resume settle\n"
    assert cli("resume", RESOURCE, *WHY, "-o", "json").json["outcome"] == "was_not_paused"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_dry_run_changes_nothing(cli: Cli, operators: Ledger, admin: Any, command: str) -> None:
    if command == "resume":
        operators.pause("settle", "carol", "incident")
    with unchanged(admin):
        said = cli(command, "settle", *WHY, "--dry-run")
    assert said.code == 0
    assert said.err == "dry run: rolled back, nothing was changed\n"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_bad_input_is_refused(cli: Cli, admin: Any, command: str) -> None:
    with unchanged(admin):
        assert cli(command, "settle").code == 2
    assert cli(command, "settle:", *WHY).code == 2
    assert cli("pause", "-o", "json").json == []


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_worker_may_not_and_a_server_that_is_gone_is_said(cli: Cli, dsn: str, command: str) -> None:
    assert cli(command, "settle", *WHY, "--dsn", dsn).code == 4
    assert cli(command, "settle", *WHY, "--dsn", "host=127.0.0.1 port=1").code == 4


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_missing_schema_is_said(cli: Cli, empty_dsn: str, command: str) -> None:
    assert cli(command, "settle", *WHY, "--dsn", empty_dsn).code == 9
