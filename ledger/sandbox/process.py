"""A sandbox gateway as a child process, for tests, the demo and benchmarks."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from .engine import Behaviour, Fault
from .log import SandboxError

READY = re.compile(r"sandbox gateway listening on (http://\S+?:(\d+)), log ")
IMPORT_FROM = str(Path(__file__).resolve().parents[2])


def environment() -> dict[str, str]:
    """The environment of a child, which finds the same `ledger` as this process, installed or not."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (IMPORT_FROM, os.environ.get("PYTHONPATH"))))}


class SandboxProcess:
    """A gateway in its own process, from `with` (or `start`) to its end (or `stop`).

    `url` is where it listens, `log` its log. It is in a session of its own: Ctrl-C in a terminal doesn't
    reach it, whoever started it ends it. Raises SandboxError if it isn't ready within `patience` seconds.
    """

    def __init__(
        self,
        log: str | Path,
        *,
        port: int = 0,
        behaviour: Behaviour | None = None,
        faults: Iterable[tuple[str, Fault]] = (),
        patience: float = 15.0,
    ) -> None:
        self.log = Path(log)
        self.port = port
        self.behaviour = behaviour or Behaviour()
        self.url = ""
        self._faults = tuple(faults)
        self._patience = patience
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises SandboxError if it doesn't run."""
        if self._child is None:
            raise SandboxError("the sandbox gateway isn't running", hint="Start it first")
        return self._child.pid

    def start(self) -> SandboxProcess:
        """Start it and return once it listens. After `stop` or `kill`: again, same port, same log."""
        if self._child is not None:
            raise SandboxError(f"the sandbox gateway runs already, process {self._child.pid}")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "ledger.sandbox", *self._arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
        try:
            ready = self._wait_until_ready(self._child)
        except BaseException:
            self.kill()
            raise
        self.url, self.port = ready[1], int(ready[2])
        return self

    def stop(self, timeout: float = 5.0) -> int:
        """End it with SIGTERM and give its exit code; SIGKILL after `timeout` seconds."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> int:
        """End it as a crash would, with SIGKILL, and give its exit code."""
        return self._end(signal.SIGKILL, 5.0)

    def __enter__(self) -> SandboxProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self.stop()

    def _arguments(self) -> list[str]:
        behaviour = self.behaviour
        arguments = [f"--log={self.log}", f"--port={self.port}", f"--latency={behaviour.latency}"]
        if not behaviour.keys:
            arguments.append("--no-keys")
        if behaviour.key_window is not None:
            arguments.append(f"--key-window={behaviour.key_window}")
        if behaviour.check_token:
            arguments.append("--check-token")
        return arguments + [f"--fault={key}={fault}" for key, fault in self._faults]

    def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> re.Match[str]:
        assert child.stdout is not None
        said, deadline = b"", time.monotonic() + self._patience
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while not said.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(child.stdout.fileno(), 4096)
                if not chunk:
                    break
                said += chunk
        ready = READY.match(said.decode(errors="replace"))
        if ready is None:
            raise SandboxError(
                f"the sandbox gateway wasn't ready within {self._patience:g} s: it said {said!r}, "
                f"its exit code is {child.poll()}",
                hint="What was wrong stands on its stderr",
            )
        return ready

    def _end(self, number: signal.Signals, timeout: float) -> int:
        child, self._child = self._child, None
        if child is None:
            raise SandboxError("the sandbox gateway isn't running", hint="Start it first")
        child.send_signal(number)
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        assert child.stdout is not None
        child.stdout.close()
        return child.returncode
