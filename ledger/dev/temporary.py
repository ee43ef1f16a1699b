"""Servers that last as long as the process that wanted them, however that ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ledger.dev.servers import Servers


@contextlib.contextmanager
def temporary(
    pg: str = "18", *, redis: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Servers]:
    """A pair for the length of the block, without fsync. Nothing is left of it, even after a SIGKILL.

    Raises DevError when a server doesn't start.
    """
    folder = tempfile.mkdtemp(prefix="ledger-tmp-", dir="/tmp")
    # The guardian reads from us and gets the end of the file when we close, or are no more.
    guardian = subprocess.Popen(
        [sys.executable, "-m", "ledger.dev.guardian", folder],
        stdin=subprocess.PIPE,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    try:
        yield Servers.start(folder, pg, fsync=False, redis=redis, settings=settings)
    finally:
        guardian.communicate()
