"""What the recipes' tests share: a page's programs in a folder of their own, kinds with short limits, and freezing."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from ledger import dev
from ledger.client import Ledger
from ledger.dev.waiting import is_stopped
from ledger.sandbox import Behaviour, SandboxControl, SandboxProcess
from tests.faults import FaultProxy
from tests.recipes.page import write_files
from tests.story import in_background, until

CHECKOUT = Path(__file__).parents[2]
FROZEN_AT = Path(__file__).with_name("frozen_at.py")
TTL = 0.8
PATIENCE = 20.0


class Program:
    """One run of a program of the page."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self.errors = errors

    def wait_until_frozen(self) -> None:
        until(lambda: self._state() in ("stopped", "ended"), within=PATIENCE)
        assert self._state() == "stopped", self.errors.read_text()

    def _state(self) -> str | None:
        told = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if told is None:
            return None
        return "stopped" if told.si_code == os.CLD_STOPPED else "ended"

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def output(self) -> str:
        """What it printed, when it has ended; what it complained of, when it failed."""
        said, _ = self.process.communicate(timeout=PATIENCE)
        return said if self.process.returncode == 0 else self.errors.read_text()

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a group of its own, with its children
        self.process.wait(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the page, which listens on loopback."""

    program: Program
    port: int

    def post(self, path: str) -> tuple[int, str]:
        """The status of the answer, and what it says."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


class Asked:
    """A request that is under way while its service is frozen."""

    def __init__(self, program: Program, service: Service, path: str) -> None:
        self.program = program
        self._answer = in_background(lambda: service.post(path))

    def answer(self) -> tuple[int, str]:
        """What is answered after waking up."""
        self.program.wake()
        return self._answer.result(PATIENCE)


class Recipe:
    """The programs of a page, in a folder, with the servers they need in their environment."""

    def __init__(self, folder: Path, files: set[str], environment: dict[str, str]) -> None:
        self.folder = folder
        self.files = files
        self.environment = environment
        self.started: list[Program] = []

    def start(self, *command: str, **environment: str) -> Program:
        errors = self.folder / f"errors-{len(self.started)}"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self.environment, **environment},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self.started.append(Program(process, errors))
        return self.started[-1]

    def python(self, file: str, *arguments: str, **environment: str) -> Program:
        return self.start(sys.executable, file, *arguments, **environment)

    def frozen_after(self, function: str, file: str, *arguments: str, **environment: str) -> Program:
        """A program that froze as it left one of its functions, or another module's: `module.function`."""
        program = self.start(*self._freezing(function, file), *arguments, **environment)
        program.wait_until_frozen()
        return program

    def child_frozen_after(self, function: str, file: str, *arguments: str) -> int:
        """The pid of a child of the program that froze so."""
        self.start(*self._freezing(function, file), *arguments)
        note = self.folder / "frozen"
        until(lambda: note.exists() and note.read_text() and is_stopped(int(note.read_text())), within=PATIENCE)
        return int(note.read_text())

    @staticmethod
    def _freezing(function: str, file: str) -> list[str]:
        entry = file.removesuffix(".py")
        where = function if "." in function else f"{entry}.{function}"
        return [sys.executable, str(FROZEN_AT), where, entry]

    def service(self, file: str, **environment: str) -> Service:
        """A service of the page, once it listens."""
        program = self.python(file, **environment)
        return Service(program, int(program.line() or program.output()))

    def service_frozen_after(self, function: str, file: str, path: str, **environment: str) -> Asked:
        """A service that froze as it left one of its functions, on behalf of a request."""
        program = self.start(*self._freezing(function, file), **environment)
        asked = Asked(program, Service(program, int(program.line() or program.output())), path)
        program.wait_until_frozen()
        return asked

    def sql(self, file: str) -> str:
        return (self.folder / file).read_text()


@pytest.fixture
def recipe(
    request: pytest.FixtureRequest, tmp_path: Path, dsn: str, redis_url: str, admin: psycopg.Connection[Any]
) -> Iterator[Recipe]:
    """The page that the test's module names as PAGE; the worker owns the tables it makes in schema public."""
    admin.execute("grant create on schema public to ledger_worker")
    environment = {
        "LEDGER_DSN": dsn,
        "LEDGER_REDIS_URL": redis_url,
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    made = Recipe(tmp_path, write_files(request.module.PAGE, tmp_path), environment)
    yield made
    for program in made.started:
        program.end()


@pytest.fixture
def short(operators: Ledger) -> Callable[[str], None]:
    """Give a kind, whose lock the page has chosen, limits that a test can wait for."""

    def shorten(kind: str) -> None:
        operators.set_kind(
            kind,
            lease_ttl=timedelta(seconds=TTL),
            idle_limit=timedelta(seconds=TTL / 2),
            lock_limit=timedelta(seconds=TTL / 2),
            actor="tests",
            reason="short limits",
        )

    return shorten


@pytest.fixture
def unfenced(operators: Ledger) -> Callable[[str], None]:
    """Switch a kind's fence off."""

    def switch_off(kind: str) -> None:
        operators.set_mode(kind, "off", actor="tests", reason="the negative control")

    return switch_off


@pytest.fixture
def network(servers: dev.Servers) -> Iterator[FaultProxy]:
    """A network between a worker and Postgres, which can lose replies."""
    with FaultProxy(str(servers.sockets / f".s.PGSQL.{servers.postgres.port}")) as proxy:
        yield proxy


@pytest.fixture
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """A processor that remembers what it was asked under which key."""
    with SandboxProcess(tmp_path_factory.mktemp("gateway") / "log") as process:
        yield process


@pytest.fixture
def forgetful_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """A processor without idempotency keys."""
    with SandboxProcess(tmp_path_factory.mktemp("gateway") / "log", behaviour=Behaviour(keys=False)) as process:
        yield process


@pytest.fixture
def control(gateway: SandboxProcess) -> Iterator[SandboxControl]:
    with SandboxControl(gateway.url) as control:
        yield control


@pytest.fixture
def lease_ended(redis_url: str, admin: psycopg.Connection[Any]) -> Callable[[str], None]:
    """Wait until nobody has the lease on a resource, in Redis or as an advisory lock."""

    def wait(resource: str) -> None:
        with redis.Redis.from_url(redis_url) as client:
            until(lambda: not client.exists(f"lock:{{{resource}}}"), within=PATIENCE)
        until(lambda: not Ledger(admin).job_holders(resource), within=PATIENCE)

    return wait
