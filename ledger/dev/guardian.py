"""The process that takes temporary servers away: `python -m ledger.dev.guardian FOLDER`."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

from ledger.dev.errors import DevError
from ledger.dev.servers import Servers


def guard(folder: Path) -> None:
    """Wait for a line, or the end of our input, then take the servers away."""
    sys.stdin.readline()
    with contextlib.suppress(DevError):  # there are none when the start was cut short
        Servers.at(folder).remove()
    shutil.rmtree(folder)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
