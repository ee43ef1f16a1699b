from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.gateway import Nothing, Sent
from ledger.lease import Lease
from ledger.lease.redis_lock import RedisLock
from ledger.sandbox import Behaviour, Fault, SandboxControl, SandboxProcess, read_movements
from tests.commands.conftest import Cli
from tests.faults import FaultProxy
from tests.story import MERCHANT, RESOURCE, activated, added, in_state, refund, unchanged, until

Start = Callable[..., "subprocess.Popen[str]"]

ADAPTER = '''
from ledger.gateway import Accepted, Declined, Nothing, Sent, Unknown

class Gateway:
    def __init__(self, answer=None):
        self.answer = answer or Sent("re_1")

    def refund(self, refund, token, timeout):
        return self.answer

    def find(self, key, timeout):
        return Nothing()

good = Gateway()
declining = Gateway(Declined("closed", remembered=True))
accepting = Gateway(Accepted("re_1"))
silent = Gateway(Unknown("timeout"))

class Wrong:
    def refund(self, refund, token, timeout):
        return Sent("re_1", amount_minor=1)
    find = Gateway.find

class Late(Gateway):
    """A worker that is fenced out while its call is at the gateway."""

    def refund(self, refund, token, timeout):
        import os
        import psycopg
        from ledger.client import Ledger
        with psycopg.connect(os.environ["LEDGER_DSN"], autocommit=True) as connection:
            other = Ledger(connection, refusals=connection)
            newer = other.draw_token("settle:" + refund.merchant_id)
            other.activate_token("settle:" + refund.merchant_id, newer, "bob/2/bbbbbbbbbbbbbbbb")
        return Sent("re_late")

class NoFind:
    def refund(self, refund, token, timeout):
        return Sent("re_1")

class Async:
    async def refund(self, refund, token, timeout): ...
    async def find(self, key, timeout): ...

def needs(argument): ...

def broken():
    raise RuntimeError("no API key")
'''


@pytest.fixture
def adapters(tmp_path: Path) -> Any:
    """Adapters of a user's own, in a module of the folder where the command is called."""
    (tmp_path / "shop.py").write_text(ADAPTER)
    yield
    sys.modules.pop("shop", None)


def settle(cli: Cli, gateway: str, *more: str) -> Any:
    return cli("settle", MERCHANT, "--gateway", gateway, "-o", "json", *more)


# What it reports.


def test_the_report_is_for_people(cli: Cli, ledger: Ledger, adapters: Any) -> None:
    added(ledger, *(f"r_{n:04d}" for n in range(1200)), "r_last", amount_minor=7025)

    said = cli("settle", MERCHANT, "--gateway", "shop:Gateway")

    fields = dict(line.split("  ", 1) for line in said.out.splitlines())
    assert said.code == 0
    assert said.err == ""
    assert list(fields) == ["merchant id", "token", "holder", "sent"]
    assert fields["sent"].strip() == "1201 refunds, 84,370.25 EUR"


def test_the_report_is_for_programs(cli: Cli, ledger: Ledger, adapters: Any) -> None:
    added(ledger, "r_1")

    said = settle(cli, "shop:good")

    assert said.json == {
        "merchant_id": MERCHANT,
        "token": 1,
        "holder": said.json["holder"],
        "sent": 1,
        "sent_minor": {"EUR": 7025},
        **dict.fromkeys(("failed", "accepted", "unknown", "review", "given_back", "taken_over"), 0),
        "left_open": {},
        "not_recorded": {},
        "refused": [],
        "stopped": False,
    }


def test_sums_of_several_currencies_are_told_apart(cli: Cli, ledger: Ledger, adapters: Any) -> None:
    added(ledger, "r_1")
    ledger.add_refund(MERCHANT, "r_2", 5800, "JPY")

    out = cli("settle", MERCHANT, "--gateway", "shop:good").out

    assert "2 refunds" in out
    assert "70.25 EUR" in out
    assert "5,800 JPY" in out


def test_nothing_to_settle_is_done(cli: Cli, ledger: Ledger, admin: Any, adapters: Any) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)

    assert settle(cli, "shop:good").code == 0


@pytest.mark.parametrize(
    ("gateway", "code", "state", "words"),
    [
        ("shop:declining", 0, "failed", ""),
        ("shop:accepting", 8, "accepted", "1 left accepted: ledger list m_1 --state accepted\n"),
        ("shop:silent", 7, "unknown", "1 left unknown: ledger list m_1 --state unknown\n"),
        ("shop:Wrong", 8, "review", "1 left review: ledger list m_1 --state review\n"),
    ],
)
def test_what_the_gateway_says_ends_in_an_exit_code(
    cli: Cli, ledger: Ledger, admin: Any, adapters: Any, gateway: str, code: int, state: str, words: str
) -> None:
    added(ledger, "r_1")

    said = settle(cli, gateway)

    assert (said.code, said.err) == (code, words)
    assert refund(admin, "r_1", "state") == state


def test_open_rows_win_over_unknown_ones(cli: Cli, ledger: Ledger, admin: Any, adapters: Any) -> None:
    in_state("review", "r_0", activated(ledger), ledger, admin)
    added(ledger, "r_1")

    assert settle(cli, "shop:silent").code == 8


def test_a_holder_that_is_fenced_out_says_so_and_loses_no_answer(
    cli: Cli, ledger: Ledger, admin: Any, adapters: Any
) -> None:
    added(ledger, "r_1")

    said = settle(cli, "shop:Late")

    assert said.code == 3
    # The next claim may hear of it before the confirm does.
    assert re.search(
        r"ended early: (confirm_refund of m_1 r_1|claim_refunds of m_1) refused: token 1 is superseded; 2 is active",
        said.err,
    )
    assert "next: Stop this batch: another holder has taken over." in said.err
    assert "what the gateway answered and nobody recorded is above" in said.err
    assert "re_late" in said.json["not_recorded"]["r_1"]
    assert said.json["refused"] == [{"refund_id": "r_1", "code": "LG101"}]
    assert set(admin.execute("select code, token, active from ledger.refusal").fetchall()) == {("LG101", 1, 2)}


def test_what_another_holder_left_is_taken_over(
    cli: Cli, ledger: Ledger, admin: Any, gateway: SandboxProcess, refund: str
) -> None:
    ledger.claim_refund(MERCHANT, refund, activated(ledger))

    said = settle(cli, gateway.url)

    assert (said.code, said.json["taken_over"], said.json["sent"]) == (0, 1, 1)


# The gateway.


def test_the_sandbox_keeps_its_log_in_this_folder(cli: Cli, ledger: Ledger, tmp_path: Path) -> None:
    added(ledger, "r_1", "r_2")

    said = cli("settle", MERCHANT, "--gateway", "sandbox")

    assert said.code == 0
    assert ", its movements in sandbox-gateway.log\n" in said.err
    assert len(read_movements(tmp_path / "sandbox-gateway.log")) == 2


BAD_GATEWAYS: list[tuple[str, int, str]] = [
    ("shop", 2, "is neither sandbox, a URL, nor MODULE:NAME"),
    (":x", 2, "is neither sandbox, a URL, nor MODULE:NAME"),
    ("no_such_module:x", 2, "can't be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
    ("shop:nothing", 2, "can't be loaded: AttributeError: module 'shop' has no attribute 'nothing'"),
    ("shop:needs", 2, "can't be loaded: TypeError"),
    ("shop:broken", 2, "can't be loaded: RuntimeError: no API key"),
    ("shop:NoFind", 2, "has no methods refund and find"),
    ("shop:ADAPTER", 2, "can't be loaded"),
    ("shop:Async", 2, "is an asyncio adapter"),
    ("ftp://127.0.0.1", 2, "can't be loaded"),
    ("https://127.0.0.1", 2, "http://HOST:PORT was expected"),
    ("http://127.0.0.1:1", 4, "no sandbox gateway answers at http://127.0.0.1:1"),
]


def test_a_gateway_that_can_not_be_had_is_named_and_nothing_is_claimed(
    cli: Cli, ledger: Ledger, admin: psycopg.Connection[Any], adapters: Any
) -> None:
    added(ledger, "r_1")

    for gateway, code, problem in BAD_GATEWAYS:
        with unchanged(admin):
            said = cli("settle", MERCHANT, "--gateway", gateway)

        assert said.code == code, gateway
        assert problem in said.err
        assert "Nothing was" in said.err


def test_a_log_that_can_not_be_written_is_bad_input(cli: Cli, ledger: Ledger, admin: Any, tmp_path: Path) -> None:
    added(ledger, "r_1")
    (tmp_path / "sandbox-gateway.log").mkdir()

    with unchanged(admin):
        assert cli("settle", MERCHANT, "--gateway", "sandbox").code == 2


# What stops it before it begins.


def test_a_merchant_without_refunds_is_not_found(cli: Cli) -> None:
    said = cli("settle", "m_9", "--gateway", "sandbox")

    assert said.code == 5
    assert said.err == ("error: merchant m_9 has no refunds\n  next: Check the id, or add them: ledger import FILE\n")


def test_a_live_holder_is_named(cli: Cli, held: Lease, ledger: Ledger, adapters: Any) -> None:
    added(ledger, "r_1")

    said = settle(cli, "shop:good")

    assert said.code == 6
    assert held.holder in said.error["message"]
    assert f"token {held.token} was activated at 20" in said.error["message"]
    assert "--wait 1m waits for it" in said.error["hint"]


def test_a_redis_that_is_away_stops_it_and_names_the_way_out(
    cli: Cli, ledger: Ledger, admin: Any, adapters: Any
) -> None:
    added(ledger, "r_1")

    said = settle(cli, "shop:good", "--redis", "redis://127.0.0.1:1")

    assert said.code == 4
    assert "ledger kind set settle --lock advisory" in said.error["hint"]
    assert refund(admin, "r_1", "state") == "pending"


def test_no_redis_named_stops_it(cli: Cli, ledger: Ledger, adapters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    added(ledger, "r_1")
    monkeypatch.delenv("LEDGER_REDIS_URL")

    said = settle(cli, "shop:good")

    assert said.code == 4
    assert "ledger kind set settle --lock advisory" in said.error["hint"]


def test_an_advisory_kind_needs_no_redis(
    cli: Cli, ledger: Ledger, operators: Ledger, adapters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis")
    added(ledger, "r_1")
    monkeypatch.delenv("LEDGER_REDIS_URL")

    assert settle(cli, "shop:good").json["sent"] == 1


def test_options_that_make_no_sense_are_bad_input(cli: Cli, ledger: Ledger, admin: Any, adapters: Any) -> None:
    added(ledger, "r_1")

    for options in (
        ("--ttl", "1s"),  # shorter than the idle limit
        ("--ttl", "0"),
        ("--ttl", "soon"),
        ("--timeout", "0"),
        ("--grace", "-1s"),
        ("--in-flight", "0"),
        ("--batch", "1001"),
        ("--wait", "999999999d"),
    ):
        assert settle(cli, "shop:good", *options).code == 2, options
    assert refund(admin, "r_1", "state") == "pending"


def test_the_schema_may_be_missing(nowhere: Cli, empty_dsn: str) -> None:
    assert nowhere("settle", MERCHANT, "--gateway", "sandbox", "--dsn", empty_dsn).code == 9


# Signals, sent to a process of its own in the middle of a batch.


@pytest.fixture
def slow(tmp_path: Path) -> Any:
    """A gateway that takes its time."""
    with SandboxProcess(tmp_path / "slow.log", behaviour=Behaviour(latency=0.3)) as process:
        yield process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_what_is_in_flight_finish_and_gives_the_rest_back(
    start: Start, ledger: Ledger, admin: psycopg.Connection[Any], slow: SandboxProcess, redis_url: str,
    number: signal.Signals, code: int,
) -> None:  # fmt: skip
    added(ledger, *(f"r_{n:02d}" for n in range(40)))
    process = start("settle", MERCHANT, "--gateway", slow.url, "--in-flight", 4, "--batch", 20, "-o", "json")
    until(lambda: admin.execute("select from ledger.refund where state = 'sent'").fetchone() is not None, within=20)

    process.send_signal(number)
    out, err = process.communicate(timeout=20)

    states = dict(admin.execute("select state, count(*) from ledger.refund group by state").fetchall())
    assert process.returncode == code
    assert "stopping: waiting for what is at the gateway; the same again ends at once" in err
    assert set(states) == {"sent", "pending"}
    assert states["sent"] == len(read_movements(slow.log)) == json.loads(out)["sent"]
    assert json.loads(out)["given_back"] > 0
    assert json.loads(out)["stopped"] is True
    assert RedisLock(redis_url, RESOURCE).peek() is None


def test_a_second_signal_ends_at_once_and_still_gives_the_lease_back(
    start: Start, ledger: Ledger, admin: psycopg.Connection[Any], tmp_path: Path, redis_url: str
) -> None:
    added(ledger, "r_1")
    with SandboxProcess(tmp_path / "held.log", faults=[("m_1/r_1", Fault.HOLD)]) as gateway:
        process = start("settle", MERCHANT, "--gateway", gateway.url, "--timeout", "20s", "--grace", "20s")
        # Claimed isn't enough: what wasn't begun is given back, and pending again.
        with SandboxControl(gateway.url, timeout=30) as control:
            control.wait_until_held("m_1/r_1", timeout=20)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "stopping" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)

        assert process.wait(10) == 143
    assert RedisLock(redis_url, RESOURCE).peek() is None
    assert refund(admin, "r_1", "state") == "unknown"  # the next holder asks the gateway


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_for_a_busy_lease_at_once(
    start: Start, held: Lease, ledger: Ledger, admin: Any, gateway: SandboxProcess, number: signal.Signals, code: int
) -> None:
    added(ledger, "r_1")
    process = start("settle", MERCHANT, "--gateway", gateway.url, "--wait", "60s")
    until(lambda: admin.execute("select count(*) = 1 from ledger.draw").fetchone()[0], within=20)

    process.send_signal(number)

    assert process.wait(5) == code
    held.ensure()


def test_the_progress_bar_is_for_terminals(start: Start, ledger: Ledger, gateway: SandboxProcess, refund: str) -> None:
    ours, theirs = pty.openpty()
    process = start("settle", MERCHANT, "--gateway", gateway.url, stderr=theirs)
    os.close(theirs)

    assert process.wait(20) == 0
    assert b"settling m_1" in os.read(ours, 65536)
    assert process.stdout is not None
    assert "settling" not in process.stdout.read()
    os.close(ours)


def test_a_redis_that_is_away_at_the_release_is_only_a_warning(
    cli: Cli, ledger: Ledger, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(ledger, "r_1")
    with FaultProxy(redis_url.removeprefix("unix://")) as proxy:

        class Cutting:
            def refund(self, *_: object) -> Sent:
                proxy.mode = "refuse"
                return Sent("re_1")

            def find(self, *_: object) -> Nothing:
                return Nothing()

        monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cutting=Cutting()))
        said = cli(
            "settle", MERCHANT, "--gateway", "shop:cutting", "--redis", f"redis://127.0.0.1:{proxy.port}", "-o", "json"
        )

    assert (said.code, said.json["sent"]) == (0, 1)
    assert json.loads(said.err)["event"] == "lease_not_given_back"
