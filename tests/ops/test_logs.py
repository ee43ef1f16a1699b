"""The log: one name a fact, what it is about as fields, as text or as JSON."""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from ledger import lease, logs
from ledger.client import Ledger
from tests.commands.conftest import Cli
from tests.story import BOB, MERCHANT, RESOURCE, activated, added, raised, until

CHECKOUT = Path(__file__).parents[2]


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def record(**extra: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "ledger.lease", "levelno": 30, "levelname": "WARNING", "msg": "it", **extra})


def test_a_settlement_tells_its_facts_with_what_they_are_about(cli: Cli, ledger: Ledger, gateway: Any) -> None:
    added(ledger, "r_logged")
    said = cli("settle", MERCHANT, "--gateway", gateway.url, "--log-level", "debug", "--log-format", "json")
    told = {line["event"]: line for line in lines(said.err)}
    assert set(told) >= {
        "lease_taken", "refund_claimed", "gateway_called", "refund_recorded", "lease_given_back",
    }  # fmt: skip
    taken, called = told["lease_taken"], told["gateway_called"]
    assert (taken["resource"], taken["level"], taken["logger"]) == (RESOURCE, "info", "ledger.lease")
    assert {"merchant_id": MERCHANT, "refund_id": "r_logged", "outcome": "sent"}.items() <= called.items()
    assert {line["token"] for line in told.values() if "token" in line} == {taken["token"]}
    assert {line["holder"] for line in told.values() if "holder" in line} == {taken["holder"]}


def test_the_log_is_silent_unless_asked(cli: Cli, ledger: Ledger, gateway: Any) -> None:
    added(ledger, "r_silent")
    assert cli("settle", MERCHANT, "--gateway", gateway.url).err == ""


@pytest.mark.parametrize("place", ["before", "after", "variable"])
def test_the_options_stand_before_or_after_the_command_or_in_the_environment(
    place: str, cli: Cli, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, command = ["--log-level", "info", "--log-format", "json"], ["claim", "m_9", "r_9", "--reason", "a test"]
    if place == "variable":
        monkeypatch.setenv("LEDGER_LOG_LEVEL", "info")
        monkeypatch.setenv("LEDGER_LOG_FORMAT", "json")
        options = []
    said = cli(*options, *command) if place == "before" else cli(*command, *options)
    assert "lease_taken" in {line["event"] for line in lines(said.err) if "event" in line}


def test_a_level_that_is_none_is_bad_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("--log-level", "loud", "verify").code == 2
    monkeypatch.setenv("LEDGER_LOG_LEVEL", "loud")
    said = cli("verify")
    assert (said.code, "LEDGER_LOG_LEVEL is 'loud'" in said.err) == (2, True)


def test_the_level_is_put_back(cli: Cli, database: str) -> None:
    before = logging.getLogger("ledger").level
    cli("verify", "--log-level", "debug")
    assert logging.getLogger("ledger").level == before


def test_a_refusal_is_told_though_nobody_records_it(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    stale = activated(ledger)
    activated(ledger, BOB)
    with caplog.at_level(logging.INFO, "ledger"), raised("LG101"):
        ledger.claim_refunds(MERCHANT, stale, 1)
    (told,) = [logs.fields(each) for each in caplog.records if each.message == "call_refused"]
    assert {"code": "LG101", "reason": "superseded", "token": stale, "active_holder": BOB}.items() <= told.items()


def test_a_lost_lease_is_told_with_token_and_holder(
    dsn: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with lease.Lease(RESOURCE, db=dsn, redis=redis_url, max_hold=0.5) as held:
        until(lambda: held.lost)
    (told,) = [logs.fields(each) for each in caplog.records if each.message == "lease_lost"]
    assert told == {"resource": RESOURCE, "token": held.token, "holder": held.holder, "reason": "max_hold"}


def test_text_has_the_note_first_and_no_field_begins_a_line() -> None:
    said = record(note="try again", refund_id="r_1", error="two\nlines", empty=None, seconds=0.25)
    line = logs.TextLines().format(said)
    assert line == r'warning: it: try again refund_id=r_1 error="two\nlines" seconds=0.250'


def test_a_traceback_is_shown_from_debug_on() -> None:
    try:
        raise ValueError("a mistake")
    except ValueError as error:
        broken = record(exc_info=(type(error), error, error.__traceback__))
    assert logs.TextLines().format(broken) == 'warning: it error="a mistake"'
    assert "Traceback" in logs.TextLines(tracebacks=True).format(broken)
    assert "Traceback" in json.loads(logs.JsonLines().format(broken))["exception"]


def facts() -> set[str]:
    """The names of the facts that the code tells."""
    told = set[str]()
    for path in sorted((CHECKOUT / "ledger").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {
                "fact", "_tell", "_warn", "exception", "log", "info", "warning", "error",
            }:  # fmt: skip
                names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                told |= {name for name in names if re.fullmatch(r"[a-z]+(_[a-z]+)+", name)}
    return told


def test_the_page_lists_each_fact_and_no_other() -> None:
    page = (CHECKOUT / "docs/metrics.md").read_text().partition("| fact |")[2]
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    assert listed == facts()


def test_nothing_is_logged_but_facts() -> None:
    """A sentence with the facts inside can't be searched or counted."""
    sentences = [
        (str(path.relative_to(CHECKOUT)), node.lineno)
        for path in sorted((CHECKOUT / "ledger").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"log.debug", "log.info", "log.warning", "log.error", "log.exception"}
        and not (isinstance(node.args[0], ast.Constant) and re.fullmatch(r"[a-z_]+", str(node.args[0].value)))
    ]
    assert sentences == []
