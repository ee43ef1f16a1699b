"""How a worker of the demo tells its story: one JSON line an event on its stdout, and how the stage listens."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ledger.dev.waiting import is_stopped
from ledger.sandbox.process import environment

PATIENCE = 60.0


def say(event: str, refund: str = "", **facts: Any) -> None:
    """Tell one event to the stage."""
    sys.stdout.write(json.dumps({"event": event, "refund": refund, **facts}) + "\n")
    sys.stdout.flush()


class Worker:
    """A worker process on stage: what it said, and whether it is frozen."""

    def __init__(self, module: str, arguments: list[str], heard: Callable[[dict[str, Any]], None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._heard = heard
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_until_frozen(self) -> None:
        """Return once the process is stopped by SIGSTOP."""
        self._wait_for(lambda: is_stopped(self.pid), "to freeze")

    def finish(self) -> None:
        """Wait for its end. Raises RuntimeError, with what it said, if it failed."""
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"worker {self.pid} did not end within {PATIENCE:g} s") from None
        self._listener.join()
        assert self._process.stderr is not None
        if code:
            raise RuntimeError(f"worker {self.pid} failed with {code}:\n{self._process.stderr.read()}")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End it, frozen or not, and leave nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard(json.loads(line))

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            if self._process.poll() is not None:
                self.finish()
                raise RuntimeError(f"worker {self.pid} ended and was expected {what}")
            if time.monotonic() > until:
                raise RuntimeError(f"worker {self.pid} was expected {what} within {PATIENCE:g} s")
            time.sleep(0.01)


@contextmanager
def worker(module: str, arguments: list[str], heard: Callable[[dict[str, Any]], None]) -> Iterator[Worker]:
    """A worker for the length of a block."""
    made = Worker(module, arguments, heard)
    try:
        yield made
    finally:
        made.close()
