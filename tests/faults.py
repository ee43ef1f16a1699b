"""A TCP proxy on loopback that loses replies, goes dark or refuses, on command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

Mode = Literal["pass", "drop_reply", "blackhole", "refuse"]


class FaultProxy:
    """Stands between a client and `upstream`: a (host, port) pair or the path of a unix socket.

    `mode` holds until it is set again:
    - `pass`: what a good network does;
    - `drop_reply`: requests arrive, but each reply is lost and its connection cut;
    - `blackhole`: connections stay open and nothing gets through, either way;
    - `refuse`: open connections are cut and new ones closed at once.
    """

    def __init__(self, upstream: tuple[str, int] | str) -> None:
        self.upstream = upstream
        self.host = "127.0.0.1"
        self.port = 0
        self.replies_lost = 0
        self.replies_passed = 0
        self._mode: Mode = "pass"
        self._to_lose: int | None = None
        self._to_pass: int | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._do(lambda: self._set(mode, None))

    def lose_replies(self, count: int = 1) -> None:
        """Lose the next replies, then pass again."""
        self._do(lambda: self._set("drop_reply", count))

    def go_dark_after(self, replies: int) -> None:
        """Pass that many replies, then be a black hole."""

        def change() -> None:
            self._mode, self._to_pass = "pass", replies

        self._do(change)

    def cut(self) -> None:
        """Cut every open connection."""
        self._do(self._cut)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, self.host, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _do(self, change: Callable[[], None]) -> None:
        """Make a change in the proxy's thread, and return when it is made."""
        done = threading.Event()

        def make() -> None:
            change()
            done.set()

        self._loop.call_soon_threadsafe(make)
        assert done.wait(5)

    def _set(self, mode: Mode, to_lose: int | None) -> None:
        self._mode, self._to_lose, self._to_pass = mode, to_lose, None
        if mode == "refuse":
            self._cut()

    def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "refuse":
            writer.transport.abort()
            return
        try:
            if isinstance(self.upstream, str):
                up_reader, up_writer = await asyncio.open_unix_connection(self.upstream)
            else:
                up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, up_writer}
        self._open |= pair
        try:
            await asyncio.gather(self._pump(reader, up_writer, False, pair), self._pump(up_reader, writer, True, pair))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in pair:
                each.transport.abort()
            self._open -= pair

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool, pair: set[Any]
    ) -> None:
        while data := await reader.read(65536):
            if self._mode == "blackhole":
                continue
            if replies and self._mode == "drop_reply":
                self.replies_lost += 1
                if self._to_lose is not None:
                    self._to_lose -= 1
                    if self._to_lose == 0:
                        self._mode = "pass"
                break
            self.replies_passed += replies
            if replies and self._to_pass is not None:
                self._to_pass -= 1
                if self._to_pass == 0:
                    self._mode = "blackhole"
            writer.write(data)
            await writer.drain()
        for each in pair:
            each.transport.abort()
