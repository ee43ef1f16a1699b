"""The sandbox gateway's log: JSON lines, only ever appended to, on disk before anyone is told.

Five events: `moved` (money), `accepted`, `declined` (a refusal remembered under its key), `token` (the
highest one seen under a key) and `forgotten` (a key). Only `moved` is money.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ledger.errors import LedgerError

from .wire import Order

ORDER = tuple(field.name for field in fields(Order))
EVENTS = ("moved", "accepted", "declined", "token", "forgotten")
HEAD = b'{"event": "'  # how each line begins


class SandboxError(LedgerError):
    """The sandbox gateway can't start, can't write its log, or wasn't understood."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log. `at` is in seconds since 1970."""

    event: str
    at: float
    key: str
    token: int | None = None
    ref: str | None = None
    reason: str | None = None
    order: Order | None = None

    def line(self) -> bytes:
        """The entry as it stands in the log, newline included."""
        data: dict[str, Any] = {
            "event": self.event,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="microseconds"),
            "key": self.key,
        }
        for name in ("token", "ref", "reason"):
            value = getattr(self, name)
            if value is not None:
                data[name] = value
        if self.order is not None:
            data.update({name: getattr(self.order, name) for name in ORDER})
        return json.dumps(data).encode() + b"\n"


class Log:
    """The open log of one gateway, which no other gateway may open meanwhile.

    `entries` is what was in it, `torn` whether a last line cut off by a crash was taken away: such a line was
    never told to anyone. Raises SandboxError if another gateway has the log open or if it isn't one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        existed = self.path.exists()
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._lock_file()
            content = self.path.read_bytes()
            self.entries, self._end = parse(content, self.path)
            self.torn = self._end < len(content)
            os.ftruncate(self._fd, self._end)
            if not existed:
                _sync_folder(self.path.parent)
        except BaseException:
            os.close(self._fd)
            raise
        self._failed: Exception | None = None
        self._synced = self._end
        self._writing = threading.Lock()
        self._syncing = threading.Lock()

    def append(self, entry: Entry) -> None:
        """Write the entry and return when it is on disk. Raises SandboxError; then nothing is told.

        Whoever comes while a sync is under way shares the next one.
        """
        data = entry.line()
        with self._writing:
            self._check()
            end = self._write(data)
        with self._syncing:
            if self._synced >= end:
                return
            self._check()
            reached = self._end
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._failed = error  # what reached the disk isn't known, and a later sync wouldn't tell
                raise self._error(error) from error
            self._synced = reached

    def close(self) -> None:
        """Close the log after the writes under way."""
        with self._writing, self._syncing:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
            self._failed = self._failed or ValueError("it is closed")

    def _write(self, data: bytes) -> int:
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes could be written")
        except OSError as error:
            self._take_back()
            raise self._error(error) from error
        self._end += written
        return self._end

    def _take_back(self) -> None:
        # Half a line in the middle of the log would make all of it unreadable.
        try:
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            self._failed = error

    def _check(self) -> None:
        if self._failed is not None:
            raise self._error(self._failed)

    def _error(self, error: Exception) -> SandboxError:
        hint = "The call is not answered for. See to the disk, restart the gateway, then ask it under the key"
        return SandboxError(f"the sandbox gateway can't write its log {self.path}: {error}", hint=hint)

    def _lock_file(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SandboxError(
                f"another sandbox gateway has the log {self.path} open",
                hint="Nothing was changed. Stop that one, or give this one a log of its own",
            ) from None


def parse(content: bytes, path: Path) -> tuple[list[Entry], int]:
    """The entries in a log, and where the last whole one ends. Raises SandboxError if it isn't a log."""
    end = content.rfind(b"\n") + 1
    tail = content[end:]
    if not tail.startswith(HEAD[: len(tail)]):
        raise _not_a_log(path, content.count(b"\n") + 1)
    entries = []
    for count, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        try:
            entries.append(_read(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise _not_a_log(path, count) from None
    return entries, end


def _read(data: dict[str, Any]) -> Entry:
    event = data["event"]
    if event not in EVENTS:
        raise ValueError(event)
    order = None
    if event in ("moved", "accepted", "declined"):
        order = Order(**{name: data[name] for name in ORDER})
    return Entry(
        event=event,
        at=datetime.fromisoformat(data["at"]).timestamp(),
        key=data["key"],
        token=None if event == "forgotten" else data["token"],
        ref=data["ref"] if event in ("moved", "accepted") else data.get("ref"),
        reason=data["reason"] if event == "declined" else None,
        order=order,
    )


def _not_a_log(path: Path, line: int) -> SandboxError:
    return SandboxError(
        f"line {line} of {path} is not a line of a sandbox gateway's log",
        hint="The file was left as it is. Give the gateway another log, or repair that line",
    )


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
