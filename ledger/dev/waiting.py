"""Waiting for a condition, and what is asked of processes by their number."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, `seconds` at most; whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def command_of(pid: int) -> str:
    """The command line of a process; empty when there is none, or only its remains."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    listed = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, check=False)
    return listed.stdout.decode(errors="replace")


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as SIGSTOP leaves it."""
    listed = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1] == "T"


def pid_in(file: Path) -> int | None:
    """The process number on the first line of a pid file, if there is one."""
    try:
        return int(file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def send(number: signal.Signals, pid: int) -> None:
    """Send a signal to a process, if it is still there: somebody else may have ended it just now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def tail(file: Path, lines: int = 15) -> str:
    """The last lines of a log, or nothing."""
    try:
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
