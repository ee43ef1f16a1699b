"""Workers seen from whoever leads a run: what they said, and how they are held, frozen, woken and killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.proof.chaos.worker import Hold, Orders, work

# Forked from a process that has loaded everything: a worker starts in a few milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.proof.chaos.worker",
        "tests.proof.chaos.scenarios.by_hand",
        "ledger.commands.by_hand",
        "ledger.commands.lease",
        "ledger.commands.resolve",
    ]
)

PATIENCE = 15.0


def warm_up() -> None:
    """Load everything before the first worker is wanted, which would be waited for as if it were slow."""
    first = CONTEXT.Process(target=int)
    first.start()
    first.join()


class NotReachedError(Exception):
    """A worker didn't come to where the scenario needs it, as on a machine that is too busy for its leases."""


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that a worker said, and when, on the monotonic clock."""

    at: float
    what: str
    facts: dict[str, Any]


class Worker:
    """One worker process."""

    def __init__(self, orders: Orders) -> None:
        self.name = orders.name
        self.orders = orders
        self.said: list[Said] = []
        self.killed = False
        self.frozen = False
        self._change = threading.Condition()
        self._closed = False
        self._heard = 0
        self._wire, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=work, args=(theirs, orders), daemon=True)
        self._process.start()
        theirs.close()
        self._reader = threading.Thread(target=self._listen, args=(self._wire,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it ended."""
        return not self._process.is_alive()

    def until_held(self, within: float = PATIENCE) -> Said:
        """What it says when it stays somewhere, once it does; each stay is heard once. Raises NotReachedError."""
        held = self.until(lambda said: said.what == "held", "to be held", within, after=self._heard)
        self._heard = self.said.index(held) + 1
        return held

    def until(self, condition: Callable[[Said], bool], what: str, within: float = PATIENCE, after: int = 0) -> Said:
        """The first thing it said that fits. Raises NotReachedError when it ends without, or doesn't come to it."""
        deadline = time.monotonic() + within
        with self._change:
            while True:
                fitting = next((said for said in self.said[after:] if condition(said)), None)
                if fitting is not None:
                    return fitting
                if self._closed or time.monotonic() > deadline:
                    last = self.said[-1] if self.said else None
                    raise NotReachedError(f"worker {self.name} was expected {what}; the last it said was {last}")
                self._change.wait(0.2)

    def go(self) -> None:
        """Let it go on from where it is held."""
        self._send("go")

    def hold(self, hold: Hold) -> None:
        """Have it stay somewhere later."""
        self._send(hold)

    def freeze(self) -> None:
        """Stop it with SIGSTOP, and return once it stands still."""
        if self._signal(signal.SIGSTOP):
            self.frozen = True
            deadline = time.monotonic() + 5
            while _state(self.pid) not in ("T", "Z", "") and time.monotonic() < deadline:
                time.sleep(0.002)

    def wake(self) -> None:
        """Let it go on: from where it is held, and from SIGSTOP."""
        self._send("go")
        self.frozen = False
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.killed = True
        self._signal(signal.SIGKILL)
        self._process.join(5)
        self._reader.join(5)

    def join(self, within: float = PATIENCE) -> bool:
        """Whether it ended by itself in time."""
        self._process.join(within)
        if self._process.is_alive():
            return False
        self._reader.join(5)
        return True

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process.is_alive():
            self.kill()
        self._wire.close()

    def calls(self, name: str | None = None) -> list[Said]:
        """The SQL calls it made, in order."""
        return [said for said in self.said if said.what == "call" and name in (None, said.facts["name"])]

    def _listen(self, wire: Connection) -> None:
        try:
            while True:
                at, what, facts = wire.recv()
                with self._change:
                    self.said.append(Said(at, what, facts))
                    self._change.notify_all()
        except (EOFError, OSError):
            pass
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _send(self, order: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._wire.send(order)

    def _signal(self, number: signal.Signals) -> bool:
        if not self._process.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:  # the fork server knows of its end before we do
            return False
        return True


def _state(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self").exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""
    shown = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1]
