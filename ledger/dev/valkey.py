"""One Valkey or Redis server on a socket: started, stopped, killed. It keeps nothing on disk."""

from __future__ import annotations

import json
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

from ledger.dev.account import Account
from ledger.dev.errors import DevError
from ledger.dev.waiting import command_of, pid_in, send, tail, wait_until


@dataclass(frozen=True, slots=True)
class Valkey:
    """A server's program and places. Its socket is the only way in unless `port` is set."""

    program: Path
    folder: Path
    socket: Path
    port: int | None
    password: str | None
    account: Account

    @property
    def pid(self) -> int | None:
        """The running server's process, known by its command line and not by the number alone."""
        pid = pid_in(self._pid_file)
        return pid if pid is not None and str(self._config) in command_of(pid) else None

    def start(self) -> None:
        """Start the server, where it isn't running. Raises DevError with the end of its log."""
        if self.pid is not None:
            return
        # In a file and not as arguments, which everyone on the machine can read.
        self._config.touch(mode=0o600)
        quoted = {name: json.dumps(value, ensure_ascii=False) for name, value in self._settings().items()}
        self._config.write_text("".join(f"{name} {value}\n" for name, value in quoted.items()))
        self.account.own(self._config)
        self.account.run(self.program, self._config)
        if not wait_until(self._answers, seconds=10):
            raise DevError(f"{self.program.name} didn't start:\n{tail(self._log)}")

    def stop(self) -> None:
        """Stop the server, if it runs."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server as a crash would, if it runs."""
        self._end(signal.SIGKILL)

    @property
    def _config(self) -> Path:
        return self.folder / "redis.conf"

    @property
    def _log(self) -> Path:
        return self.folder / "redis.log"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "redis.pid"

    def _settings(self) -> dict[str, str]:
        settings = {
            "port": str(self.port or 0),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "pidfile": str(self._pid_file),
            "logfile": str(self._log),
            "save": "",
            "appendonly": "no",
            "daemonize": "yes",
            "set-proc-title": "no",  # the command line is how the process is known again
        }
        return settings if self.password is None else {**settings, "requirepass": self.password}

    def _end(self, how: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            return
        send(how, pid)
        if not wait_until(lambda: self.pid is None, seconds=5):
            send(signal.SIGKILL, pid)
            wait_until(lambda: self.pid is None, seconds=5)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False
