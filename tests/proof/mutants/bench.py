"""A pytest that stays alive and runs one test at a time on a database with one mutant in it.

Its servers, its modules and its database are there from the first test on, so that a mutant costs a test's own time
and little else. `Bench` is the side that asks, this module run by itself the side that answers; they talk in lines of
JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, TypeVar

import psycopg
import pytest

from tests.proof.mutants.database import Database
from tests.proof.mutants.generate import Mutant, Mutated

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
PATIENCE = 10  # seconds for one test: a mutant may wait for ever

# What reads the catalogue as a whole would kill every mutant and show nothing.
CATALOGUE = ("test_plpgsql_functions_pin_their_search_path", "test_functions_run_with_the_ledgers_rights")
FILES = (
    "tests/functions",
    "tests/protected",
    "tests/test_constraints.py",
    "tests/test_gate.py",
    "tests/test_limits.py",
    "tests/test_plans.py",
    "tests/test_races.py",
    "tests/test_timeline.py",
    "tests/test_durable.py",
    "tests/test_frozen.py",
    "tests/test_client.py",
    "tests/test_journal.py",
    "tests/test_transitions.py",
    "tests/test_security.py",
    "tests/test_house_rules.py",
)


class Bench:
    """One such pytest, with its own pair of servers."""

    def __init__(self) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs[0]), str(ours[1])],
            cwd=ROOT,
            pass_fds=(theirs[0], ours[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(theirs[0])
        os.close(ours[1])
        self._to, self._from = os.fdopen(theirs[1], "w"), os.fdopen(ours[0])
        self.tests: list[str] = self._read()

    def run(self, test: str, mutant: Mutant | None, setting: str) -> dict[str, Any]:
        """`failed` and why, `broken` (the database refused the mutant), and `seconds`."""
        task = {"test": test, "setting": setting, "sql": None, "function": None}
        if mutant:
            task |= {"sql": mutant.sql, "function": mutant.replaces}
        self._to.write(json.dumps(task) + "\n")
        self._to.flush()
        return dict(self._read())

    def close(self) -> None:
        """End it, with its servers."""
        with contextlib.suppress(BrokenPipeError):  # it has died, and what it was asked last is still on its way
            self._to.close()
        self.process.wait()
        self._from.close()

    def _read(self) -> Any:
        line = self._from.readline()
        if not line:
            raise RuntimeError("the pytest that runs the tests has died")
        return json.loads(line)


def share_out(tasks: Iterable[T], benches: Iterable[Bench], do: Callable[[Bench, T], object]) -> None:
    """Each bench does the next task when it is free. Where one dies, the others do what is left."""
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def work(bench: Bench) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                do(bench, waiting.get_nowait())

    threads = [threading.Thread(target=work, args=(bench,)) for bench in benches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Runner:
    """The plugin that makes pytest run what it is asked for in place of everything."""

    def __init__(self, asked: TextIO, answers: TextIO) -> None:
        self.asked, self.answers = asked, answers
        self.task: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        self.databases: dict[str, Database] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer until nobody asks."""
        _leave_databases_to_us(session)
        items = {item.nodeid: item for item in session.items if _fits(item)}
        self._tell(sorted(items))
        for line in self.asked:
            self.task = json.loads(line)
            self.result = {"failed": False, "broken": None, "why": "", "reached": []}
            item = items[self.task["test"]]
            began = time.perf_counter()
            if isinstance(item, pytest.Function):
                item._initrequest()  # as a test that is run again
            # The session comes next, so that all is torn down but what belongs to it: the servers, the template.
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=session)
            self._tell({**self.result, "seconds": round(time.perf_counter() - began, 3)})
        return True

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
        """Give the test our database, with the mutant in it, in place of a new one."""
        if fixturedef.argname != "migrated_database":
            return None
        template = request.getfixturevalue("migrated_template")
        request.getfixturevalue("running")
        where = {"host": template.host, "port": template.port, "user": "postgres", "autocommit": True}
        setting = self.task["setting"]
        if setting not in self.databases or not self.databases[setting].is_up():
            self.databases[setting] = Database(where, template.template_dbname, setting)
        database = self.databases[setting]
        fixturedef.addfinalizer(self._put_back)
        try:
            database.break_it(Mutated(self.task["sql"], self.task["function"]) if self.task["sql"] else None)
        except psycopg.Error as error:
            self.result["broken"] = str(error)
        given = SimpleNamespace(info=SimpleNamespace(dbname=database.name), close=lambda: None)
        fixturedef.cached_result = (given, fixturedef.cache_key(request), None)
        return given

    def _put_back(self) -> None:
        setting = self.task["setting"]
        if setting == "reach":
            try:
                self.result["reached"] = self.databases[setting].reached()
            except psycopg.Error:
                self.result["reached"] = None  # the test crashed the server: nobody can say
        if not self.databases[setting].put_back():
            with contextlib.suppress(psycopg.Error):
                self.databases[setting].throw_away()
            del self.databases[setting]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails when it is torn down has told nothing of the mutant."""
        if report.failed and report.when != "teardown":
            self.result["failed"] = True
            self.result["why"] = str(report.longrepr)[-300:]

    def _tell(self, what: Any) -> None:
        self.answers.write(json.dumps(what) + "\n")
        self.answers.flush()


def _fits(item: pytest.Item) -> bool:
    """A test on a database of its own; of the house's rules, those of the catalogue's attributes."""
    name = item.nodeid
    if "admin_dsn" not in getattr(item, "fixturenames", ()):
        return False
    return "test_house_rules" not in name or any(rule in name for rule in CATALOGUE)


def _leave_databases_to_us(session: pytest.Session) -> None:
    """A database of ours belongs to the migrator from the start."""
    conftest: Any = next(p for p in session.config.pluginmanager.get_plugins() if hasattr(p, "give_to_migrator"))
    give = conftest.give_to_migrator
    ours = {f"ledger_mutant_{setting}" for setting in ("on", "off", "reach")}
    conftest.give_to_migrator = lambda host, port, name: None if name in ours else give(host, port, name)


def main(asked: int, answers: int) -> None:
    """Be the side that answers."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(asked) as reading, os.fdopen(answers, "w") as writing:
        pytest.main(
            [
                *FILES,
                "-qq",
                "--tb=native",  # a pretty one costs as much as the test
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-o",
                f"timeout={PATIENCE}",
                "-o",
                "timeout_func_only=true",
            ],
            plugins=[Runner(reading, writing)],
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
