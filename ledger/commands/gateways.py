"""The gateway that a command was given: the sandbox's, or an adapter of the user's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, cast

from ledger.commands import output
from ledger.commands.app import BadInput, Unreachable, usable
from ledger.gateway import Gateway, Unknown

SANDBOX_LOG = Path("sandbox-gateway.log")
CHECK_TIMEOUT = 5.0

METAVAR = "sandbox|URL|MODULE:NAME"


@contextmanager
def opened(name: str) -> Iterator[Gateway]:
    """The gateway of that name while the block runs. Raises BadInput, or Unreachable for a URL where none answers."""
    from ledger.sandbox import SandboxGateway, SandboxProcess

    if name == "sandbox":
        with SandboxProcess(SANDBOX_LOG) as process, SandboxGateway(process.url) as adapter:
            output.say(f"sandbox gateway at {process.url}, its movements in {SANDBOX_LOG}")
            yield adapter
    elif name.startswith(("http://", "https://")):
        with usable():
            made = SandboxGateway(name)
        with made as adapter:
            # Or every refund would be claimed, and become unknown.
            answer = adapter.find("is anybody there", CHECK_TIMEOUT)
            if isinstance(answer, Unknown):
                raise Unreachable(
                    f"no sandbox gateway answers at {name}: {answer.reason}. Nothing was sent",
                    "Start one with ledger gateway serve; it says where it listens",
                )
            yield adapter
    else:
        yield _load(name)


def _load(name: str) -> Gateway:
    """A user's adapter, MODULE:NAME; a class or function is called without arguments."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise BadInput(
            f"--gateway {name!r} is neither sandbox, a URL, nor MODULE:NAME. Nothing was sent",
            "ledger settle --help has examples",
        )
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        if isinstance(found, type) or (callable(found) and not hasattr(found, "refund")):
            found = found()
    except Exception as error:
        raise BadInput(
            f"--gateway {name!r} can't be loaded: {type(error).__name__}: {error}. Nothing was sent",
            "NAME is an adapter, or something that makes one without arguments; modules are found from here as well",
        ) from error
    finally:
        sys.path.remove("")
    if not (callable(getattr(found, "refund", None)) and callable(getattr(found, "find", None))):
        raise BadInput(
            f"--gateway {name!r} has no methods refund and find. Nothing was sent",
            "ledger.gateway.Gateway tells what they do",
        )
    if iscoroutinefunction(found.refund) or iscoroutinefunction(found.find):
        raise BadInput(
            f"--gateway {name!r} is an asyncio adapter. Nothing was sent",
            "Give a blocking one, or call ledger.settle.settle_async from your own program",
        )
    return cast("Gateway", found)
