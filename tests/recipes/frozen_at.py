"""Runs a recipe's program and freezes it, once, by a real SIGSTOP, as it leaves one of its own functions.

Run as `python frozen_at.py MODULE.FUNCTION ENTRY ARGUMENT ...`: the function `main` of the module ENTRY, in the working
folder, is called with the arguments. All of the process stops, the lease's watchdog with it; SIGCONT lets it go on. Its
pid is then in the file `frozen`, for it may be a child of the program's. FROZEN_AT_CALL says which call of the function
it is, if not the first.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def freeze() -> None:
    Path("frozen").write_text(str(os.getpid()))
    # To this very thread: another one might take the signal, and this one get further than it should.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def freeze_once_after(module: Any, name: str, call: int) -> None:
    plain = getattr(module, name)
    left = iter(range(call - 1, -1, -1))

    @functools.wraps(plain)
    def and_freeze(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if next(left, None) == 0:
            freeze()
        return result

    setattr(module, name, and_freeze)


if __name__ == "__main__":
    where, entry, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    sys.path.insert(0, str(Path.cwd()))
    home, _, function = where.rpartition(".")
    freeze_once_after(importlib.import_module(home), function, int(os.environ.get("FROZEN_AT_CALL", "1")))
    importlib.import_module(entry).main(*arguments)
