"""`ledger reproduce` on real servers: each cell is what it must be, and a harness that breaks says so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # its stubs are another package

from ledger import dev, reproduce
from ledger.commands.reproduce_page import page
from ledger.reproduce.process import Disturbed
from ledger.reproduce.run import Run
from ledger.reproduce.words import FAULTS, PROTECTIONS
from tests.commands.conftest import CHECKOUT, Cli
from tests.reproduce import made_up

SCHEMA = json.loads((CHECKOUT / "docs" / "cli.schemas.json").read_text())["commands"]["reproduce"]


def fits(answer: Any) -> None:
    """The answer has the shape that is written down."""
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(answer)] == []


def test_cells_come_out_as_they_must(place: reproduce.Place) -> None:
    """One fault that tells the protections apart: the reply is lost, and the next worker asks, or sends again."""
    matrix = reproduce.run(place, ["row-fence", "fence"], ["lost-reply"])
    assert matrix.failed == []
    half, whole = matrix.cells
    assert (half.counts.sent_twice, half.movements) == (1, 3)
    assert (whole.counts.sent_twice, whole.movements) == (0, 2)


def test_one_cell_is_told_as_a_timeline(nowhere: Cli, place: reproduce.Place) -> None:
    said = nowhere("reproduce", "--protection", "fence", "--fault", "redis-flush")
    assert said.code == 0, said.err
    in_this_order = [
        r"A +has the lease; token \d+ is active",
        r"gateway +has A's call about r_1, and takes its time",
        r"Redis +loses its data",
        r"B +claims r_1: taken_over",
        r"B +asks the gateway about r_1: nothing",
        r"B +records r_1 as sent: sb_\w+ \(confirmed\)",
        r"gateway +carries A's call out",
        r"A +can't record sb_\w+: LG101, .* is superseded",
        r"gateway +counts 2 movements for r_1: ",
        r"database +names 2 movements for r_1: ",
        r"gateway +counts 1 movement for r_2: ",
        r"sent twice 1, recorded wrongly 0, written over 0\. The\s+next\s+worker\s+asks\s+the\s+gateway\s+first",
    ]
    place_in_text = 0
    for line in in_this_order:
        found = re.compile(line).search(said.out, place_in_text)
        assert found, f"{line} is missing after:\n{said.out[:place_in_text]}"
        place_in_text = found.end()


def test_a_cell_that_should_fail_and_does_not_is_an_error(
    nowhere: Cli, place: reproduce.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply isn't lost, so that even the worker without a lock sends once."""

    def nothing_goes_wrong(run: Run) -> None:
        run.a.go()
        run.a.finish()
        run.b.go()
        run.b.finish()

    monkeypatch.setattr(Run, "_lost_reply", nothing_goes_wrong)
    said = nowhere("reproduce", "--protection", "none", "--fault", "lost-reply", "-o", "json")
    assert said.code == 1
    assert "expected sent twice 1, recorded wrongly 1, written over 0; came sent twice 0" in said.err
    assert "Replay: ledger reproduce --protection none --fault lost-reply" in said.err
    fits(said.json)
    assert said.json["controls"] == {"expected": 1, "found": 0}
    assert said.json["failed"]
    assert not said.json["cells"][0]["as_expected"]


@pytest.mark.heavy
def test_a_worker_that_breaks_is_an_error_and_not_a_result(
    nowhere: Cli, place: reproduce.Place, admin: psycopg.Connection[Any]
) -> None:
    admin.execute("alter table reproduce.refund rename column gateway_ref to other")
    said = nowhere("reproduce", "--protection", "none", "--fault", "lost-reply")
    assert said.code == 1
    assert re.search(r'failed with 1:(.|\n)*column "gateway_ref" .*does not exist', said.err)


def test_what_is_to_be_reproduced_must_be_clear(nowhere: Cli) -> None:
    for words in ([], ["--all", "--fault", "kill"]):
        said = nowhere("reproduce", *words)
        assert (said.code, "Give --all, or --protection, --fault or both" in said.err) == (2, True)


def test_a_page_that_can_not_be_written_is_known_before_anything_starts(nowhere: Cli) -> None:
    said = nowhere("reproduce", "--all", "--html", "no/such/folder/page.html")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "can't be written" in said.err


def test_only_one_of_the_two_servers_named_is_refused(nowhere: Cli, redis_url: str) -> None:
    said = nowhere("reproduce", "--all", "--redis", redis_url)
    assert said.code == 2
    assert "Postgres isn't named" in said.err


def test_a_user_who_may_make_no_database_is_told_so_and_nothing_is_changed(
    nowhere: Cli, operator_dsn: str, redis_url: str, admin: psycopg.Connection[Any]
) -> None:
    said = nowhere("reproduce", "--all", "--dsn", operator_dsn, "--redis", redis_url)
    assert said.code == 2
    assert "ledger_operator may not make one" in said.err
    assert "--embedded" in said.err
    assert left_behind(admin) == []


def test_a_redis_that_is_not_its_own_is_never_stopped(place: reproduce.Place) -> None:
    assert place.lacks("redis-restart") is None
    somebodys = reproduce.Place(place.dsn, place.redis_url)
    assert {fault: somebodys.lacks(fault) for fault in FAULTS if somebodys.lacks(fault)} == {
        "redis-restart": "a Redis that isn't ours is never stopped; give --embedded"
    }


@pytest.mark.heavy
def test_a_flush_of_somebodys_redis_takes_its_own_keys_alone(place: reproduce.Place) -> None:
    with redis.Redis.from_url(place.redis_url) as client:
        client.set("lock:{settle:m_4471}", "alice")
        matrix = reproduce.run(reproduce.Place(place.dsn, place.redis_url), ["row-fence"], ["redis-flush"])
        assert matrix.failed == []
        assert client.keys("*") == [b"lock:{settle:m_4471}"]


def test_the_page_needs_no_network_and_escapes_what_it_shows() -> None:
    matrix = made_up.matrix()
    shown = page(matrix)
    assert not re.search(r"""src=|href=(?!"#)""", shown)
    assert "http" not in shown.replace("<!doctype html>", "")
    assert "calls &lt;the&gt; gateway" in shown
    assert shown.count('scope="row"') == len(PROTECTIONS)
    assert shown.count('scope="col"') == len(FAULTS) + 1
    assert "Every cell came out as expected." in shown
    matrix.cells[0].problems.append("it rained")
    assert "not as expected" in page(matrix)


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_the_whole_matrix_comes_out_as_it_must(nowhere: Cli, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """By a user's hand, on servers of its own: and the page in docs shows this very table."""
    pg = pytestconfig.getoption("pg")
    said = nowhere("reproduce", "--all", "--pg", pg, "--html", tmp_path / "matrix.html", "-o", "json")
    assert (said.code, said.json["failed"]) == (0, [])
    fits(said.json)
    assert said.json["checked"]["cells"] == 49
    assert said.json["controls"] == {"expected": 37, "found": 37}
    assert (tmp_path / "matrix.html").read_text().startswith("<!doctype html>")


@pytest.mark.heavy
def test_on_somebodys_servers_nothing_is_left_of_it(
    nowhere: Cli, running: dev.Servers, redis_url: str, admin: psycopg.Connection[Any]
) -> None:
    dsn = running.dsn("postgres", "postgres")
    said = nowhere("reproduce", "--protection", "fence+key", "--fault", "partition", "--dsn", dsn, "--redis", redis_url)
    assert said.code == 0, said.err
    assert re.search(r"database ledger_reproduce_\w+ is dropped", said.err)
    assert left_behind(admin) == []
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*") == []


@pytest.mark.heavy
def test_a_server_without_the_ledgers_roles_is_left_without_them(nowhere: Cli, pytestconfig: pytest.Config) -> None:
    with (
        dev.temporary(pytestconfig.getoption("pg")) as bare,
        psycopg.connect(bare.dsn("postgres", "postgres"), autocommit=True) as admin,
    ):
        words = ["reproduce", "--protection", "fence", "--fault", "lost-reply", "--redis", bare.redis_url]
        words += ["--dsn", bare.dsn("shop", "postgres")]
        for code, change in ((2, "create role shop login createdb"), (0, "alter role shop createrole")):
            admin.execute(change)
            said = nowhere(*words)
            assert said.code == code, said.err
            assert left_behind(admin) == []
            assert admin.execute("select rolname from pg_roles where rolname like 'ledger%'").fetchall() == []


@pytest.mark.heavy
def test_a_run_that_the_machine_is_too_slow_for_is_repeated_and_then_told(
    place: reproduce.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def too_slow(run: Run) -> None:
        tried.append(run.ttl)
        if len(tried) != 2:
            raise Disturbed("the watchdog didn't get to renew the lock")
        lost_reply(run)

    lost_reply = Run._lost_reply
    monkeypatch.setattr(Run, "_lost_reply", too_slow)
    matrix = reproduce.run(place, ["check"], ["lost-reply"])
    assert (matrix.failed, matrix.cells[0].repeated, tried) == ([], 1, [1.0, 2.0])
    (failed,) = reproduce.run(place, ["check"], ["lost-reply"]).failed
    assert "the watchdog didn't get to renew the lock, 3 times; the last TTL was 4 s" in failed


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_nothing_is_left_of_it(
    running: dev.Servers, redis_url: str, admin: psycopg.Connection[Any], number: int, code: int
) -> None:
    dsn = running.dsn("postgres", "postgres")
    words = ["reproduce", "--protection", "renew", "--fault", "pause", "--dsn", dsn, "--redis", redis_url]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "ledger", *words],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "freezes" in line:
                break
        os.kill(process.pid, number)
        process.communicate(timeout=50)
    assert process.returncode == code
    assert left_behind(admin) == []
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*") == []


def left_behind(admin: psycopg.Connection[Any]) -> list[str]:
    """Databases of its own that are still there."""
    found = admin.execute("select datname from pg_database where datname like 'ledger\\_reproduce\\_%'").fetchall()
    return [name for (name,) in found]
