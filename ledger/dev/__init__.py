"""Embedded servers: a real Postgres and a real Valkey in a folder, for a look, the demo and the tests."""

from __future__ import annotations

import shlex
from pathlib import Path

from ledger.dev.errors import DevError
from ledger.dev.servers import Servers
from ledger.dev.temporary import temporary

__all__ = ["DevError", "Servers", "down", "env", "temporary", "up"]


def up(folder: str | Path, pg: str = "18") -> Servers:
    """Start the pair kept in `folder`, with an empty database for the ledger; a no-op when it runs.

    Raises DevError when the folder isn't ours or a server doesn't start.
    """
    servers = Servers.start(folder, pg)
    servers.prepare()
    return servers


def down(folder: str | Path) -> bool:
    """Stop the pair kept in `folder`; the data stays. Whether anything was running.

    Raises DevError where there is none.
    """
    servers = Servers.at(folder)
    was_running = servers.postgres.pid is not None or servers.redis.pid is not None
    servers.stop()
    return was_running


def env(folder: str | Path) -> str:
    """The line for a shell's `eval` that points every command at the pair kept in `folder`.

    Raises DevError where it isn't running.
    """
    servers = Servers.at(folder)
    if not servers.running:
        raise DevError(f"the servers in {folder} aren't running. `ledger dev up {folder}` starts them.")
    dsn, redis_url = shlex.quote(servers.dsn()), shlex.quote(servers.redis_url)
    return f"export LEDGER_DSN={dsn} LEDGER_REDIS_URL={redis_url}"
