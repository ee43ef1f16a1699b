"""A program that is run for somebody: started, sent the signals that are meant for it, stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ledger.commands.app import Problem

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CantStart(Problem):
    """A program that can't be started; the exit codes are those of a shell."""

    exit_code = 126

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} can't be started: {why}", "Check the command after --")


class NoSuchProgram(CantStart):
    """There is none of that name."""

    exit_code = 127


class Program:
    """A program with its arguments.

    It gets a process group of its own, so that a signal reaches what it has started as well. At a terminal it stays in
    ours, in the foreground: it can read the keyboard, and Ctrl-C is its own.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._has_group = not sys.stdin.isatty()
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def check(self) -> None:
        """Raise CantStart unless the program is there."""
        name = self._arguments[0]
        if shutil.which(name) is None:
            # A name without a slash is looked for along the PATH alone.
            if "/" in name and Path(name).exists():
                raise CantStart(name, "it isn't executable")
            raise NoSuchProgram(name, "there is no such program")

    def start(self, environment: Mapping[str, str]) -> None:
        """Start it. Raises CantStart."""
        try:
            self._process = subprocess.Popen(
                self._arguments, env=environment, process_group=0 if self._has_group else None
            )
        except FileNotFoundError as error:
            raise NoSuchProgram(self._arguments[0], str(error.strerror)) from error
        except OSError as error:
            raise CantStart(self._arguments[0], str(error.strerror)) from error
        for number in self._early:
            self._send(number)

    def ended(self, within: float) -> int | None:
        """Its exit code as a shell has it, 128 and more for a signal; None while it runs on."""
        assert self._process is not None
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def stop(self, grace: float) -> None:
        """End it if it was started: SIGTERM, and SIGKILL for what is left after `grace` seconds."""
        if self._process is None:
            return
        self._send(signal.SIGTERM)
        self.ended(grace)
        self._send(signal.SIGKILL)
        self._process.wait()

    @contextmanager
    def getting_our_signals(self) -> Iterator[None]:
        """What is sent to us within the block goes on to the program; one that comes before its start, afterwards."""
        # Whoever ignores a signal, as nohup does, wants the program to ignore it as well.
        before = {number: signal.getsignal(number) for number in FORWARDED}
        forwarded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
        for number in forwarded:
            signal.signal(number, self._forward)
        try:
            yield
        finally:
            for number in forwarded:
                signal.signal(number, before[number])

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        elif self._has_group or number != signal.SIGINT:
            self._send(number)

    def _send(self, number: int) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            if self._has_group:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
