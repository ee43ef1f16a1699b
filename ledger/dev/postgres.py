"""One Postgres server in a folder: made, started, stopped, crashed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ledger.dev.account import Account
from ledger.dev.errors import DevError
from ledger.dev.waiting import command_of, pid_in, send, tail, wait_until

SUPERUSER = "postgres"
OWN_SETTINGS = "ledger.conf"
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server's programs and places. Its socket is the only way in unless `tcp` is set."""

    bin: Path
    data: Path
    log: Path
    sockets: Path
    port: int
    tcp: bool
    account: Account

    def make(self) -> None:
        """Create the data folder, where that hasn't been done."""
        if (self.data / "PG_VERSION").exists():
            return
        self.account.run(
            self.bin / "initdb", "--pgdata", self.data, "--username", SUPERUSER, "--encoding", "UTF8",
            "--no-locale", "--auth-local", "trust", "--auth-host", "scram-sha-256", "--no-sync",
        )  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"\ninclude '{OWN_SETTINGS}'\n")

    def configure(self, settings: Mapping[str, str]) -> None:
        """Write the settings of the next start; ours first, so that `settings` wins."""
        merged = {
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            "port": str(self.port),
            "unix_socket_directories": str(self.sockets),
            "max_connections": "200",
            "max_prepared_transactions": "10",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] %q%u@%d %e ",
            **settings,
        }
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in merged.items()]
        file = self.data / OWN_SETTINGS
        file.write_text("".join(lines))
        self.account.own(file)

    @property
    def pid(self) -> int | None:
        """The running server's process, known by its command line and not by the number alone."""
        pid = pid_in(self.data / "postmaster.pid")
        return pid if pid is not None and str(self.data) in command_of(pid) else None

    def start(self) -> None:
        """Start the server, where it isn't running. Raises DevError with the end of its log."""
        if self.pid is not None:
            return
        self._forget_reused_pid()
        try:
            self.account.run(
                self.bin / "pg_ctl", "start", "--pgdata", self.data, "--log", self.log, "--wait",
            )  # fmt: skip
        except DevError as error:
            raise DevError(f"Postgres didn't start: {error}\n{tail(self.log)}") from None

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, if it runs; `immediate` is a crash, `smart` waits for its clients.

        Raises DevError when it is still running after a minute.
        """
        pid = self.pid
        if pid is None:
            return
        send(STOP_SIGNALS[mode], pid)
        if not wait_until(lambda: self.pid is None, seconds=60):
            raise DevError(f"Postgres, process {pid}, is still running a minute after a {mode} stop.")

    def _forget_reused_pid(self) -> None:
        # After a reboot the number may belong to some other process of ours, and the server would
        # refuse to start for ever. Where the number is free it finds that out, and more, by itself.
        file = self.data / "postmaster.pid"
        pid = pid_in(file)
        if pid is not None and command_of(pid):
            file.unlink(missing_ok=True)
