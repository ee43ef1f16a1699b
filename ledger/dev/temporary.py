"""Servers that last as long as the process that wanted them, however that ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ledger.dev.servers import Servers

IN_MEMORY = Path("/dev/shm")
ENOUGH = 2 * 1024**3
SMALL_LOG = {"min_wal_size": "32MB", "max_wal_size": "128MB"}


@contextlib.contextmanager
def temporary(
    pg: str = "18", *, redis: str | None = None, settings: Mapping[str, str] | None = None, on_disk: bool = False
) -> Iterator[Servers]:
    """A pair for the length of the block. Nothing is left of it, even after a SIGKILL.

    It does without fsync, and lies in memory where there is enough, unless it is wanted `on_disk`.
    Raises DevError when a server doesn't start.
    """
    folder = tempfile.mkdtemp(prefix="ledger-tmp-", dir="/var/tmp" if on_disk else _fastest_place())
    # The guardian reads from us: a line when we are done, or the end of the file when we are no more.
    # The line is for the sake of forked children, who would keep the file open.
    guardian = subprocess.Popen(
        [sys.executable, "-m", "ledger.dev.guardian", folder],
        stdin=subprocess.PIPE,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    try:
        yield Servers.start(folder, pg, fsync=on_disk, redis=redis, settings={**SMALL_LOG, **(settings or {})})
    finally:
        guardian.communicate(b"\n")


def _fastest_place() -> str:
    # A database is 300 small files: cloning one takes 6 ms in memory and up to 100 on a disk.
    # Containers often have a /dev/shm too small for servers, or one that programs can't be run from.
    suits = (
        IN_MEMORY.is_dir()
        and shutil.disk_usage(IN_MEMORY).free >= ENOUGH
        and not os.statvfs(IN_MEMORY).f_flag & os.ST_NOEXEC
    )
    return str(IN_MEMORY) if suits else "/tmp"
