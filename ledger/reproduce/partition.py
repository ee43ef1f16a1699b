"""A way to Redis that can be cut: bytes stop, in both directions, and connections stay open."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

import redis

BLOCK = 65536


class Partition:
    """Stands between one worker and the Redis at `url`. What is sent while it is cut waits, as on a real network.

    Raises ValueError for a Redis whose connections can't be passed on as they are.
    """

    def __init__(self, url: str) -> None:
        self._settings = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        if url.startswith("rediss://"):
            raise ValueError("the partition passes plain connections on, and this Redis wants TLS")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._closed = False
        host, port = self._listener.getsockname()
        self.url = _moved(url, self._settings, f"{host}:{port}")

    def cut(self) -> None:
        """Let nothing through from now on."""
        self._open.clear()

    def heal(self) -> None:
        """Let everything through, also what has waited."""
        self._open.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self.heal()
        self._listener.close()
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = self._listener.accept()
                far = self._reach()
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _reach(self) -> socket.socket:
        if "path" in self._settings:
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._settings["path"])
            return far
        return socket.create_connection((self._settings.get("host", "localhost"), self._settings.get("port", 6379)))

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(BLOCK):
                self._open.wait()
                if self._closed:
                    return
                target.sendall(data)
        with suppress(OSError):
            self._open.wait()
            target.shutdown(socket.SHUT_WR)


def _moved(url: str, settings: dict[str, object], place: str) -> str:
    """The same URL at another place."""
    parts = urlsplit(url)
    if "path" not in settings:
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@{place}" if login else place))
    user, password = (quote(str(settings.get(name) or ""), safe="") for name in ("username", "password"))
    login = f"{user}:{password}@" if password else ""
    return f"redis://{login}{place}/{settings.get('db', 0)}"
