"""The parts of the exploration: which programs meet which faults, and how it is shared between processes."""

from __future__ import annotations

import logging
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import combinations

import psycopg

from ledger import dev, schema
from tests.proof.schedules import controls, waits
from tests.proof.schedules.explore import Exploration, walk_again
from tests.proof.schedules.replay import replay, script
from tests.proof.schedules.results import Result
from tests.proof.schedules.states import Server
from tests.proof.schedules.world import FAULTS, Bounds, Stage

TEMPLATE = "schedules"
WALKS = 200
TWICE = {"expiry": 2}
ALONE = [{}, *({kind: TWICE.get(kind, 1)} for kind in FAULTS)]
PAIRS = [{kind: TWICE.get(kind, 1) for kind in pair} for pair in combinations(FAULTS, 2)]
ONCE = [{}, *({kind: 1} for kind in FAULTS)]

Family = tuple[tuple[str, ...], int, Sequence[dict[str, int]]]
FAMILIES: dict[str, Family] = {
    "one by one": (("one", "one"), 1, [*ALONE, *PAIRS]),
    "in sets": (("sets", "sets"), 1, [*ALONE, *PAIRS]),
    "one by one, and in sets": (("one", "sets"), 1, ALONE),
    "two refunds, in sets": (("sets", "sets"), 2, ONCE),
    "two refunds, one at a time": (("paced", "sets"), 2, ONCE),
    "three workers": (("one", "one", "one"), 1, ONCE),
    "one that heeds nothing": (("heedless", "one"), 1, ALONE),
    "one that begins anew before it records": (("next", "one"), 1, ALONE),
}
QUICK: dict[str, Family] = {
    "one by one": (("one", "one"), 1, [{}, {"lost": 1}, {"crash": 1}, {"expiry": 1}]),
    "in sets": (("sets", "sets"), 1, [{}, {"expiry": 1}]),
}


def explored(pg: str, jobs: int, *, quick: bool = False) -> Result:
    """All of it, each task in a process with a database of its own."""
    families = QUICK if quick else FAMILIES
    tasks: list[tuple[str, object]] = [("family", name) for name in families]
    tasks += [("controls", triggers) for triggers in ((True,) if quick else (True, False))]
    tasks += [("waits", None)]
    result = Result()
    print(Result.HEADER, flush=True)
    with servers(pg) as pair, ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        dsns = [database(pair, f"{TEMPLATE}_{number}") for number in range(len(tasks))]
        running = [pool.submit(work, task, dsn, quick) for task, dsn in zip(tasks, dsns, strict=True)]
        for done in as_completed(running):
            part = done.result()
            print("\n".join(part.lines), flush=True)
            result.add(part)
    return result


def work(task: tuple[str, object], dsn: str, quick: bool) -> Result:
    """One task, in whatever process."""
    logging.getLogger("ledger").setLevel(logging.CRITICAL)
    what, which = task
    if what == "family":
        return family(dsn, (QUICK if quick else FAMILIES)[str(which)])
    if what == "controls":
        return planted(dsn, triggers=bool(which), quick=quick)
    return raced(dsn, quick=quick)


def family(dsn: str, family: Family) -> Result:
    """All schedules of some programs, with each of the faults; some of them walked again without a state put back."""
    programs, refunds, faults = family
    result = Result()
    server = Server(dsn)
    dice = random.Random(f"{programs}{refunds}")
    for kinds in faults:
        stage = Stage(server, Bounds(programs, refunds, kinds))
        findings = Exploration(stage).all()
        result.explored(findings)
        for violation in findings.violations[:1]:
            turns, _ = replay(dsn, None, violation.bounds, violation.choices)
            result.lines.append(script(violation, turns))
        if not findings.violations:
            for _ in range(WALKS // len(FAULTS) // len(faults) + 1):
                result.walked(walk_again(stage, dice))
    result.calls, result.states = server.calls, server.seen
    server.close()
    return result


def planted(dsn: str, *, triggers: bool, quick: bool = False) -> Result:
    """The faults that have to be found, with the guard triggers or without; quickly, one for each invariant."""
    result = Result()
    first = {control.breaks: control for control in reversed(controls.CONTROLS)}
    for control in first.values() if quick else controls.CONTROLS:
        try:
            result.planted(control, controls.find(dsn, control, triggers=triggers), triggers=triggers)
        except controls.DoesNotFitError as error:
            result.not_planted(control.name, error)
    return result


def raced(dsn: str, *, quick: bool = False) -> Result:
    """The races, and the locks whose absence has to be found."""
    result = Result()
    ring = waits.Ring(dsn)
    for race in waits.RACES[:1] if quick else waits.RACES:
        result.raced(race, ring.through(race))
    ring.close()
    for control in waits.CONTROLS[:1] if quick else waits.CONTROLS:
        try:
            result.planted_lock(control, waits.find(dsn, control))
        except controls.DoesNotFitError as error:
            result.not_planted(control.name, error)
    return result


@contextmanager
def servers(pg: str) -> Iterator[dev.Servers]:
    """A pair of servers with a migrated template."""
    with dev.temporary(pg) as pair:
        pair.prepare(TEMPLATE)
        schema.upgrade(pair.dsn("ledger_admin", TEMPLATE))
        yield pair


def database(pair: dev.Servers, name: str) -> str:
    """A fresh database, as the superuser."""
    with psycopg.connect(pair.dsn("postgres", "postgres"), autocommit=True) as admin:
        admin.execute(f"create database {name} template {TEMPLATE}".encode())
    return pair.dsn("postgres", name)
