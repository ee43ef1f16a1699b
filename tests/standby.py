"""A standby of a test's own Postgres: it can be cut off, and promoted without what the primary wrote last."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from ledger import dev
from ledger.dev.postgres import Postgres
from ledger.dev.waiting import wait_until

Connection = psycopg.Connection[Any]


@dataclass(slots=True)
class Pair:
    """A primary, its standby, and how a client finds whichever takes writes."""

    servers: dev.Servers
    primary: Postgres
    standby: Postgres
    database: str
    receiver: int = 0

    def dsn(self, user: str) -> str:
        """Both servers; the one that takes writes is used."""
        place, ports = self.primary.sockets, f"{self.primary.port},{self.standby.port}"
        return f"host={place},{place} port={ports} user={user} dbname={self.database} target_session_attrs=read-write"

    def at(self, server: Postgres, user: str = "postgres") -> Connection:
        """A connection to one of them."""
        return psycopg.connect(
            host=str(server.sockets), port=server.port, user=user, dbname=self.database, autocommit=True
        )

    def catch_up(self) -> None:
        """Return once the standby has replayed all that the primary has written."""
        with self.at(self.primary) as primary, self.at(self.standby) as standby:
            ((written,),) = primary.execute("select pg_current_wal_lsn()::text").fetchall()
            reached = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
            assert wait_until(lambda: standby.execute(reached, [written]).fetchone() == (True,), seconds=10)

    def freeze_receiver(self) -> None:
        """From now on the standby hears nothing."""
        with self.at(self.standby) as standby:
            ((self.receiver,),) = standby.execute("select pid from pg_stat_wal_receiver").fetchall()
        os.kill(self.receiver, signal.SIGSTOP)

    def wake_receiver(self) -> None:
        """It hears again, what it missed included."""
        os.kill(self.receiver, signal.SIGCONT)

    def lose_primary(self) -> None:
        """The primary crashes for good, and the standby is promoted without what the primary wrote last."""
        self.primary.stop("immediate")
        promote = ThreadPoolExecutor(1)
        promoted = promote.submit(self.promote)
        # What waits in its socket must not be read: it is woken only when it has been told to end.
        assert wait_until(lambda: _is_told_to_end(self.receiver), seconds=20)
        self.wake_receiver()
        promoted.result(30)
        promote.shutdown()

    def promote(self) -> None:
        """The standby takes writes from now on."""
        self.standby.account.run(self.standby.bin / "pg_ctl", "promote", "--pgdata", self.standby.data, "--wait")


def _is_told_to_end(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in pending)


@contextmanager
def standby_of(servers: dev.Servers, database: str) -> Iterator[Pair]:
    """A standby that follows them, for the length of a block."""
    primary = servers.postgres
    standby = replace(
        primary, data=primary.data.with_name("standby"), log=primary.log.with_name("standby.log"), port=primary.port + 1
    )
    shutil.rmtree(standby.data, ignore_errors=True)
    primary.account.run(
        primary.bin / "pg_basebackup", "--pgdata", standby.data, "--host", str(primary.sockets), "--port",
        str(primary.port), "--username", "postgres", "--write-recovery-conf", "--checkpoint", "fast", "--no-sync",
    )  # fmt: skip
    standby.configure({"fsync": "off"})
    standby.start()
    try:
        yield Pair(servers, primary, standby, database)
    finally:
        standby.stop("immediate")
