"""The explorer finds nothing wrong within small bounds, finds what is planted, and tells how to see it again."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from ledger import dev
from tests.proof.schedules import controls, tasks, waits
from tests.proof.schedules.explore import Exploration, find_violation, shortest_violation, walk_again
from tests.proof.schedules.invariants import INVARIANTS
from tests.proof.schedules.replay import code_of, parse, replay, script, story
from tests.proof.schedules.states import Server
from tests.proof.schedules.world import FAULTS, Bounds, Stage

CHECKOUT = Path(__file__).parents[3]
PLANTED = {control.name: control for control in controls.CONTROLS}


@pytest.fixture
def server(admin_dsn: str) -> Iterator[Server]:
    server = Server(admin_dsn)
    yield server
    server.close()


@pytest.fixture
def another_dsn(running: dev.Servers, migrated_template: NoopExecutor) -> Iterator[str]:
    """A second fresh database, as the superuser."""
    with psycopg.connect(running.dsn("postgres", "postgres"), autocommit=True) as admin:
        admin.execute(f"create database another template {migrated_template.template_dbname}".encode())
        yield running.dsn("postgres", "another")
        admin.execute("drop database another with (force)")


@pytest.mark.parametrize("programs", [("one", "one"), ("sets", "sets")], ids="+".join)
def test_no_schedule_of_two_workers_breaks_anything_though_a_lease_ends_early(
    server: Server, programs: tuple[str, ...]
) -> None:
    findings = Exploration(Stage(server, Bounds(programs, 1, {"expiry": 1}))).all()
    assert findings.violations == []
    assert findings.schedules > 10_000


def test_what_was_put_together_from_restored_states_happens_the_same_from_beginning_to_end(server: Server) -> None:
    stage, dice = Stage(server, Bounds(("one", "sets"), 1, dict.fromkeys(FAULTS, 1))), random.Random(1)
    assert [walk_again(stage, dice) for _ in range(10)] == [None] * 10


def test_a_state_that_is_put_back_is_the_state_that_it_was(server: Server) -> None:
    stage = Stage(server, Bounds(("one", "one"), 1, {}))
    world = stage.start()
    for choice in ("a", "a", "a", "a", "b", "a", "a"):
        world = stage.take(world, choice).after
    server.place(stage.state(world))
    assert server.look() is stage.state(world)


def test_every_invariant_has_a_fault_that_breaks_it() -> None:
    assert {control.breaks for control in controls.CONTROLS} == set(INVARIANTS)


def test_the_page_lists_each_fault_and_each_invariant_in_the_programs_words() -> None:
    page = (CHECKOUT / "docs/proof.md").read_text().partition("## Every schedule\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    listed = {row[0].strip("`"): row[1].replace("`", "") for row in rows}
    assert set(listed) == {*FAULTS, *INVARIANTS}
    assert {name: listed[name] for name in INVARIANTS} == INVARIANTS


def test_every_kind_of_fault_alone_and_every_pair_is_explored() -> None:
    bounds = [frozenset(faults) for faults in [*tasks.ALONE, *tasks.PAIRS]]
    assert len(bounds) == len(set(bounds)) == 1 + 7 + 21
    assert all(faults["expiry"] == 2 for faults in [*tasks.ALONE, *tasks.PAIRS] if "expiry" in faults)


@pytest.mark.parametrize("edits", [control.edits for control in (*controls.CONTROLS, *waits.CONTROLS)])
def test_what_the_controls_take_away_is_there(edits: Sequence[controls.Edit]) -> None:
    sources = {name: controls.source(name) for name, _, _ in edits}
    assert (controls.edited(sources, edits) == sources) == (not edits)


@pytest.mark.parametrize("name", ["a takeover says claimed", "a worker takes the lease before it draws"])
def test_a_planted_fault_is_found_and_replays_to_the_same_end(admin_dsn: str, name: str) -> None:
    control = PLANTED[name]
    found = controls.find(admin_dsn, control)
    assert found is not None
    planted, bounds, choices = parse(code_of(found, control))
    assert (planted, bounds.programs, choices) == (control, control.bounds.programs, found.choices)
    assert control.breaks in replay(admin_dsn, planted, bounds, choices)[1]
    if control.edits:  # and the guard is back
        assert replay(admin_dsn, None, bounds, choices)[1] == []


def test_a_schedule_is_told_step_by_step(admin_dsn: str) -> None:
    turns, broken = replay(admin_dsn, *parse("one+one/1:a,a,a,a,a,a~,b,X,b,b,b,d"))
    assert broken == []
    assert list(story(turns))[3:] == [
        "a   a claim_refund(m0000000, r_1, 1): claimed",
        "a   a looks at its lease",
        "a~  a sends 7025 under m0000000/r_1: Unknown(reason='timeout'), but the request is late",
        "b   b draw_token(settle:m0000000): 2",
        "X   the lease ends before its time",
        "b   b takes the lease",
        "b   b activate_token(settle:m0000000, 2, b/1/bbbbbbbbbbbbbbbb)",
        "b   b claim_refund(m0000000, r_1, 2): taken_over",
        "d   a late request arrives at the gateway",
    ]


def test_the_script_of_a_schedule_shows_the_fault_in_psql(
    running: dev.Servers, admin_dsn: str, another_dsn: str, tmp_path: Path
) -> None:
    control = PLANTED["a takeover says claimed"]
    found = controls.find(another_dsn, control)
    assert found is not None
    file = tmp_path / "schedule.sql"
    file.write_text(script(found, replay(another_dsn, control, found.bounds, found.choices)[0], control))
    assert parse(str(file)) == parse(code_of(found, control))

    psql: list[str | Path] = [
        running.pg_bin / "psql",
        "-X",
        "-At",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        admin_dsn,
        "-f",
        file,
    ]
    ran = subprocess.run(psql, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    outcomes = [fields[8] for line in ran.stdout.splitlines() if len(fields := line.split("|")) == 13]
    assert outcomes[:2] == ["claimed", "claimed"]


def test_what_is_no_schedule_is_refused_in_words() -> None:
    for nonsense in ("", "one+one:a", "nobody planted this@one+one/1:a"):
        with pytest.raises(ValueError, match="PROGRAMS/REFUNDS:CHOICE"):
            parse(nonsense)


def test_a_mutant_is_tried_by_one_call(admin_dsn: str) -> None:
    with controls.broken(admin_dsn, PLANTED["claim_refund takes any token"].edits):
        found = find_violation(admin_dsn, Bounds(faults={"expiry": 1}))
    assert found is not None
    assert found.invariant == "only the active token"


def test_a_fault_that_no_schedule_shows_is_reported_as_not_found(server: Server) -> None:
    assert shortest_violation(server, Bounds(), "told") is None


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_every_schedule_within_the_full_bounds_is_as_it_should_be(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.proof.schedules", "--json", tmp_path / "found.json"],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
