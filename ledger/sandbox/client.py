"""A sandbox gateway seen from a worker: blocking and asyncio, and honest about what isn't known."""

from __future__ import annotations

import asyncio
import http.client
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from ledger.gateway import Answer, Found, Payable, Unknown

from .wire import KEY_HEADER, read_answer, read_found, write_refund

T = TypeVar("T")


class SandboxGateway:
    """A `ledger.gateway.Gateway`: the sandbox gateway at `url`, for any number of threads.

    Never sends a request a second time by itself, not even over a connection that turned out to be dead.
    Raises ValueError for a URL it can't use; calls raise nothing, what goes wrong is Unknown with the reason.
    """

    def __init__(self, url: str) -> None:
        self._connections = Connections(url)

    def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        """Send the refund under its idempotency key, in `timeout` seconds altogether."""
        return _send(self._connections, refund, token, time.monotonic() + timeout)

    def find(self, key: str, timeout: float) -> Found:
        """What the gateway has under the key, in `timeout` seconds altogether."""
        return _look_up(self._connections, key, time.monotonic() + timeout)

    def close(self) -> None:
        """Close the connections that no call uses now."""
        self._connections.close()

    def __enter__(self) -> SandboxGateway:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncSandboxGateway:
    """A `ledger.gateway.AsyncGateway`: the same on threads of its own, `calls` of them at once.

    A call that is cancelled goes on in its thread: its request may be at the gateway.
    """

    def __init__(self, url: str, calls: int = 64) -> None:
        self._connections = Connections(url)
        self._threads = ThreadPoolExecutor(calls, "sandbox-gateway")

    async def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        """Send the refund under its idempotency key, in `timeout` seconds altogether."""
        return await self._run(_send, self._connections, refund, token, time.monotonic() + timeout)

    async def find(self, key: str, timeout: float) -> Found:
        """What the gateway has under the key, in `timeout` seconds altogether."""
        return await self._run(_look_up, self._connections, key, time.monotonic() + timeout)

    def close(self) -> None:
        """Take no more calls, and close the connections that none uses now."""
        self._threads.shutdown(wait=False)
        self._connections.close()

    async def __aenter__(self) -> AsyncSandboxGateway:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


def _send(connections: Connections, refund: Payable, token: int, deadline: float) -> Answer:
    try:
        headers = {KEY_HEADER: _header(refund.idempotency_key), "Content-Type": "application/json"}
        body = write_refund(refund, token)
        return read_answer(*connections.ask("POST", "/refunds", deadline, body, headers))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Unknown(_reason(error))


def _look_up(connections: Connections, key: str, deadline: float) -> Found:
    try:
        return read_found(*connections.ask("GET", f"/refunds?key={quote(key, safe='')}", deadline))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Unknown(_reason(error))


class Connections:
    """Keep-alive connections to one server: each call has one to itself, and waits for nobody."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"the sandbox gateway's URL is {url!r}, http://HOST:PORT was expected")
        self._host, self._port = parts.hostname, parts.port or 80
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    def ask(
        self,
        method: str,
        target: str,
        deadline: float,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """The status and body of the reply, by `deadline` on the monotonic clock.

        Raises OSError or HTTPException; then the request may have been carried out all the same.
        """
        connection = self._take()
        connection.deadline = deadline
        try:
            connection.request(method, target, body, headers or {})
            reply = connection.getresponse()
            status, raw = reply.status, reply.read()
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return status, raw

    def close(self) -> None:
        """Close the idle connections now, and those in use when they are given back."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _take(self) -> _Connection:
        with self._lock:
            if self._pid != os.getpid():  # a fork must not speak on its parent's connections
                self._idle, self._pid = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open():
                    return connection
                connection.close()
        return _Connection(self._host, self._port)

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            if not self._closed and self._pid == os.getpid():
                self._idle.append(connection)
                return
        connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection whose every step ends by one deadline."""

    deadline: float
    sock: Any

    def connect(self) -> None:
        self.timeout = _time_left(self.deadline)
        super().connect()
        plain: socket.socket = self.sock
        self.sock = _DeadlineSocket(plain.family, plain.type, plain.proto, plain.detach())

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        self.sock.deadline = self.deadline
        super().send(data)

    def is_open(self) -> bool:
        """Whether the server has left it open. Nothing was asked, so there is nothing to read but its end."""
        if self.sock is None:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)


class _DeadlineSocket(socket.socket):
    # http.client's own timeout begins anew with every byte that trickles in.
    deadline: float

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.settimeout(_time_left(self.deadline))
        super().sendall(data, flags)

    def recv_into(self, *args: Any) -> int:
        self.settimeout(_time_left(self.deadline))
        return super().recv_into(*args)


def _time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for the call is over")
    return left


def _header(key: str) -> str:
    return quote(key, safe="/:@!$&'()*+,;=-._~")


def _reason(error: Exception) -> str:
    return f"no usable answer from the sandbox gateway: {str(error) or type(error).__name__}"
