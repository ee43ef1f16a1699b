"""Redis servers beside the stage's own: a replica, the nodes of a cluster."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from ledger.dev import binaries
from tests.story import until


@dataclass(slots=True)
class Node:
    """One server on a port of its own; it keeps its place in a cluster, and nothing else, when it starts again."""

    port: int
    bus: int
    folder: str
    options: tuple[str, ...]
    client: Any = None
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start it, and return once it answers."""
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "", *self.options]
        self._process = subprocess.Popen([str(binaries.redis_server()), *arguments], stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port, decode_responses=True)
        until(self.answers)

    def kill(self) -> None:
        """End it at once, with all that it held."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.client.close()

    def answers(self) -> bool:
        """Whether it takes commands."""
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.client.ping())
        return False


@contextlib.contextmanager
def node(options: Callable[[Node], tuple[str, ...]] | None = None) -> Iterator[Node]:
    """A server for the length of a block."""
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        port, bus = first.getsockname()[1], second.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        made = Node(port, bus, folder, ())
        made.options = options(made) if options is not None else ()
        made.start()
        try:
            yield made
        finally:
            made.kill()
