"""A worker seen from the harness: what it said, where it stays, and its signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ledger.dev.waiting import is_stopped
from ledger.reproduce.orders import Orders
from ledger.sandbox.process import environment

PATIENCE = 90.0


class Disturbed(Exception):
    """The run didn't get to its fault, or a worker lost its lock without one: this machine was too slow."""


class Interrupted(Exception):
    """The whole is being ended."""


class Clock:
    """Waits on conditions, for `patience` seconds at most, until it is told to stop."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def until(self, condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Return once the condition holds. Raises RuntimeError when it doesn't come true, Interrupted at a stop."""
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: this did not happen within {patience:g} s")
            if self.stopping.wait(0.01):
                raise Interrupted


class Worker:
    """A worker process. It begins with `go`; every line it says goes to `heard`."""

    def __init__(self, orders: Orders, clock: Clock, heard: Callable[[str, str], None]) -> None:
        self.name = orders.name
        self.said: list[dict[str, Any]] = []
        self._clock = clock
        self._heard = heard
        self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ledger.reproduce.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._write(orders.write())

    def go(self) -> None:
        """Let it begin, or go on from where it stays."""
        before = len(self.said)
        self._write("")
        self._clock.until(lambda: len(self.said) > before or self._has_ended, f"{self.name} goes on")

    def wake(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._killed = True
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def heard_of(self, event: str, refund: str | None = None) -> bool:
        """Whether it said this."""
        return any(each["event"] == event and refund in {None, each["refund"]} for each in self.said)

    @property
    def stays(self) -> bool:
        """Whether it waits for us at a point."""
        return bool(self.said) and self.said[-1]["event"] == "stays"

    @property
    def frozen(self) -> bool:
        """Whether the process is stopped."""
        return self.heard_of("freezes") and is_stopped(self._process.pid)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a point of the story. Raises Disturbed when the worker ended before it."""
        self._clock.until(lambda: condition() or self._has_ended, f"{self.name} {what}")
        if not condition():
            self._check()
            raise Disturbed(f"{self.name} ended before it {what}")

    def wait_until_it_stays_or_ends(self) -> None:
        """Wait until it gets no further by itself."""
        self._clock.until(lambda: self.stays or self._has_ended, f"{self.name} gets as far as it can")
        self._check()

    def finish(self) -> None:
        """Let it go on from wherever it stays, and wait for its end. Raises RuntimeError if it failed."""
        while not self._has_ended:
            self.wait_until_it_stays_or_ends()
            if self.stays and not self._has_ended:
                self.go()
        self._check()

    def close(self) -> None:
        """End it, frozen or not, and leave nothing behind."""
        if self._process.poll() is None:
            self.kill()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    @property
    def _has_ended(self) -> bool:
        return not self._listener.is_alive() and self._process.poll() is not None

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # why it ended is seen by whoever waits for it
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _check(self) -> None:
        if self._has_ended and self._process.returncode and not self._killed:
            assert self._process.stderr is not None
            raise RuntimeError(f"{self.name} failed with {self._process.returncode}:\n{self._process.stderr.read()}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.said.append(said)
            if "text" in said:
                self._heard(self.name, said["text"])
