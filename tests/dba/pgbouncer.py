"""A real PgBouncer before the test servers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ledger import dev
from ledger.dev.account import server_account
from tests.story import until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
USERS = ("ledger_worker", "ledger_operator", "ledger_reader", "postgres")


@contextmanager
def pgbouncer(servers: dev.Servers, pool_mode: str, **settings: object) -> Iterator[int]:
    """The port of a PgBouncer that forwards every database and user, as Debian ships it and a site would set it.

    `settings` are further lines of its configuration.
    """
    if PGBOUNCER is None:
        pytest.skip("there is no pgbouncer here")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    account = server_account()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        users = Path(folder, "users.txt")
        users.write_text("".join(f'"{user}" ""\n' for user in USERS))
        config = Path(folder, "pgbouncer.ini")
        config.write_text(
            f"[databases]\n* = host={servers.sockets} port={servers.postgres.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {users}\npool_mode = {pool_mode}\nserver_idle_timeout = 1\n"
            # Tests take databases away, and some take the server; the next test doesn't wait for its return.
            "server_login_retry = 0.1\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
        )
        as_user = ["-u", account.name] if os.geteuid() == 0 else []
        with subprocess.Popen([PGBOUNCER, "-q", *as_user, str(config)], stderr=subprocess.DEVNULL) as process:
            try:
                until(lambda: accepts(port))
                yield port
            finally:
                process.terminate()


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def behind(port: int, database: str, user: str = "ledger_worker") -> str:
    """A database through the pooler, as any of the roles."""
    return f"postgresql://{user}@/{database}?host=127.0.0.1&port={port}"
