"""`ledger metrics`: Prometheus text, printed or served."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import dev, metrics
from ledger.client import Ledger
from tests.commands.conftest import Cli
from tests.ops.conftest import Promtool, series
from tests.story import activated, as_ledger_fn, in_state, until

pytestmark = pytest.mark.heavy

DOCS = Path(__file__).parents[2] / "docs"
Start = Callable[..., "subprocess.Popen[str]"]
Connection = psycopg.Connection[Any]


def served(process: subprocess.Popen[str]) -> str:
    """Where a process says that it serves."""
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "serving metrics at http://127.0.0.1:" in line, line + process.stderr.read()
    return line.split()[-1]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_promtool_accepts_what_is_printed(cli: Cli, ledger: Ledger, admin: Connection, promtool: Promtool) -> None:
    token = activated(ledger)
    for state in ("pending", "sending", "unknown", "accepted", "review"):
        in_state(state, f"r_{state}", token, ledger, admin)
    ledger.record_refusal("LG101", "no", {"resource": "settle:m_1", "reason": "superseded"})
    said = cli("metrics", "--verify-every", "1h")
    assert (said.code, said.err) == (0, "")
    judged = promtool("check", "metrics", stdin=said.out)
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")
    assert series(said.out, "ledger_refunds_open", state="unknown") == 1
    assert series(said.out, "ledger_verify_findings", check="") == 0


def test_labels_are_escaped() -> None:
    sample = metrics.Sample("ledger_paused", {"kind": 'a"b\\c\nd'}, 1.0)
    assert metrics.exposition([sample]).splitlines()[-1] == r'ledger_paused{kind="a\"b\\c\nd"} 1.0'


def test_as_json_each_number_is_an_object(cli: Cli, database: str) -> None:
    data = cli("metrics", "-o", "json").json
    assert {tuple(each) for each in data} == {("name", "labels", "value")}
    assert {"name": "ledger_server_known", "labels": {}, "value": 1.0} in data


def test_a_finding_of_verify_is_counted_by_its_check(cli: Cli, ledger: Ledger, admin: Connection) -> None:
    ledger.add_refund("m_1", "r_1", 7025, "EUR")
    as_ledger_fn(admin, "update ledger.refund set amount_minor = 1")
    said = cli("metrics", "--verify-every", "1h")
    assert series(said.out, "ledger_verify_findings", check="row_is_journaled") == 1
    assert "ledger_verify_findings" not in cli("metrics").out


def test_every_metric_is_known_and_on_the_page(cli: Cli, operators: Ledger, admin: Connection) -> None:
    token = activated(operators)
    in_state("unknown", "r_1", token, operators, admin)
    operators.record_refusal("LG101", "no", {"resource": "settle:m_1"})
    operators.pause("settle", "carol", "looking")
    names = {each["name"] for each in cli("metrics", "--verify-every", "1h", "-o", "json").json}
    assert names == set(metrics.KNOWN)
    assert names <= set(re.findall(r"`(ledger_\w+)`", (DOCS / "metrics.md").read_text()))


def test_an_address_that_is_none_is_bad_input(cli: Cli, database: str) -> None:
    for address in ("9463", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:http"):
        said = cli("metrics", "--listen", address)
        assert (said.code, "Nothing is served" in said.err) == (2, True)


def test_an_address_in_use_is_bad_input(cli: Cli, database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = cli("metrics", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert said.code == 2
    assert "Address already in use. Nothing is served" in said.err


def test_an_unreachable_postgres_is_said_at_once(nowhere: Cli) -> None:
    assert nowhere("metrics", "--dsn", "host=/nowhere").code == 4
    assert nowhere("metrics", "--dsn", "host=/nowhere", "--listen", "127.0.0.1:0").code == 4


def test_a_missing_schema_is_said(nowhere: Cli, empty_dsn: str) -> None:
    assert nowhere("metrics", "--dsn", empty_dsn).code == 9


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_serves_until_it_is_stopped(start: Start, ledger: Ledger, number: int, code: int) -> None:
    process = start("metrics", "--listen", "127.0.0.1:0", "--verify-every", "1h")
    url = served(process)
    ledger.add_refund("m_1", "r_1", 7025, "EUR")
    status, text = get(url)
    assert (status, series(text, "ledger_refunds_open", state="pending")) == (200, 1)
    assert get(url.replace("/metrics", "/"))[0] == 404
    process.send_signal(number)
    assert process.wait(10) == code


def test_a_scrape_without_postgres_fails_and_the_next_works(start: Start, running: dev.Servers, database: str) -> None:
    url = served(start("metrics", "--listen", "127.0.0.1:0"))
    running.stop_postgres()
    status, text = get(url)
    assert status == 503
    assert "Postgres" in text
    running.start_postgres()
    assert get(url)[0] == 200


def test_verify_runs_beside_the_scrapes(start: Start, database: str) -> None:
    url = served(start("metrics", "--listen", "127.0.0.1:0", "--verify-every", "10ms"))

    def verified() -> float:
        return series(get(url)[1], "ledger_verify_timestamp_seconds")

    until(verified)
    first = verified()
    until(lambda: verified() > first)
