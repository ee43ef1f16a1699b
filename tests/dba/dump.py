"""A dump, and its restore into another cluster, as docs/dump.md says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg

from ledger import dev
from tests.dba.linters import CHECKOUT

PAGE = CHECKOUT / "docs/dump.md"


def program(servers: dev.Servers, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of Postgres' programs, which has nothing to complain of."""
    done = subprocess.run(
        [servers.pg_bin / name, *arguments], text=True, capture_output=True, check=False, cwd="/"
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done


def dump(servers: dev.Servers, dsn: str, file: Path) -> Path:
    """The ledger of a database."""
    program(servers, "pg_dump", "--format=custom", "--schema=ledger", f"--file={file}", dsn)
    return file


def restore(servers: dev.Servers, dsn: str, file: Path) -> None:
    """A dump, into an empty database of whoever connects."""
    with psycopg.connect(dsn, autocommit=True) as migrator:
        migrator.execute(from_page("before"))
        program(
            servers, "pg_restore", "--exit-on-error", "--single-transaction", "--schema=ledger", f"--dbname={dsn}",
            str(file),
        )  # fmt: skip
        migrator.execute(from_page("after"))


def from_page(part: str) -> bytes:
    """The SQL that the page has around the restore."""
    found = re.search(rf"```sql {part}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1].encode()
