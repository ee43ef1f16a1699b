"""The sandbox gateway over HTTP.

    POST /refunds              a refund request; the key in the header Idempotency-Key
    GET  /refunds?key=K        what there is under a key
    GET  /movements            every movement of money; ?merchant_id= refund_id= key= ref= narrow it
    GET  /calls                what has been asked; ?key=K under one key
    POST /faults               {"key", "fault", "times"}: plan a fault
    POST /release              {"key"}: let held requests go on
    GET  /held                 ?key=K&count=1&timeout=5: wait until so many requests are held
    POST /complete             {"key", "outcome": "sent" or "declined"}: the final word on an accepted request
    POST /forget               {"key"}: forget a key now

Nothing here asks who is calling: keep it on loopback.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote

from ledger.gateway import Nothing

from .engine import Behaviour, Dropped, Engine, Failed, Fault
from .log import Log, SandboxError
from .movements import Movements
from .wire import (
    KEY_HEADER,
    MAX_BODY,
    Body,
    Rejected,
    bad_request,
    number,
    parse_json,
    parse_refund,
    text,
    write_answer,
)

Reply: TypeAlias = tuple[int, Body]
MAX_WAIT = 60.0  # seconds
LENGTHS = ("Content-Length", "Transfer-Encoding")  # the headers that tell of a body


def serve(
    log: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    behaviour: Behaviour | None = None,
    faults: Iterable[tuple[str, Fault]] = (),
) -> None:
    """Run a gateway until SIGTERM or Ctrl-C; call it from the main thread.

    Says on stdout where it listens once it does. `port` 0 takes a free one; `faults` are planned by key.
    Raises SandboxError if the log or the port can't be had. Afterwards both signals stay blocked, so that a
    second one doesn't turn a clean end into a kill: let the process end.
    """
    signals = (signal.SIGTERM, signal.SIGINT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        with SandboxServer(log, host=host, port=port, behaviour=behaviour) as server:
            for key, fault in faults:
                server.engine.plan(key, fault)
            if server.log.torn:
                print(f"{log}: the last line was cut off by a crash and is taken away", file=sys.stderr)
            print(f"sandbox gateway listening on {server.url}, log {log}", flush=True)
            signal.sigwait(signals)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise


class SandboxServer:
    """A gateway on a thread of this process, from `with` to its end. Raises SandboxError as `serve` does."""

    def __init__(
        self,
        log: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        behaviour: Behaviour | None = None,
    ) -> None:
        try:
            self.log = Log(log)
        except OSError as error:
            hint = "Nothing was changed. Give it a file in a folder that exists"
            raise SandboxError(f"the log {log} can't be opened: {error}", hint=hint) from error
        self.engine = Engine(self.log, behaviour or Behaviour())
        try:
            self._http = _Server(host, port, self.engine)
        except (OSError, OverflowError) as error:
            self.log.close()
            hint = "Take another port; 0 takes a free one"
            raise SandboxError(f"can't listen on {host} port {port}: {error}", hint=hint) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> SandboxServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.stop()
        self._http.shutdown()
        self._thread.join()
        self._http.finish_requests(timeout=1.0)
        self._http.server_close()
        self.log.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, engine: Engine) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.engine = engine
        self._busy = 0
        self._idle = threading.Condition()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would look its own name up in the DNS.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @contextmanager
    def request_under_way(self) -> Iterator[None]:
        with self._idle:
            self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def finish_requests(self, timeout: float) -> None:
        """Wait until every reply under way is written, `timeout` seconds at most."""
        with self._idle:
            self._idle.wait_for(lambda: self._busy == 0, timeout)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that has gone away is what this gateway is made for.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "sandbox-gateway"
    wbufsize = MAX_BODY  # headers and body leave in one packet
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        with self.server.request_under_way():
            try:
                self._reply(*self._answer(method))
            except Rejected as rejected:
                self._reply(rejected.status, rejected.body())
            except (Failed, SandboxError) as error:
                self._reply(500, {"error": "internal", "message": str(error)})
            except Dropped:
                self.close_connection = True
            self.wfile.flush()

    def _answer(self, method: str) -> Reply:
        raw = self._body() if method == "POST" or any(name in self.headers for name in LENGTHS) else b""
        path, _, query = self.path.partition("?")
        route = ROUTES.get((method, path))
        if route is None:
            raise Rejected(404, "no_such_path", f"there is no {method} {path}")
        return route(self.server.engine, _Asked(raw, query, self.headers.get(KEY_HEADER)))

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        size = int(length) if re.fullmatch(r"[0-9]{1,9}", length) else None
        if size is None or size > MAX_BODY or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # where the next request begins isn't known
            message = f"Content-Length is {length[:20] or 'missing'}, 0 to {MAX_BODY} was expected"
            raise Rejected(413 if size else 411, "bad_request", f"{message}; nothing was changed")
        raw = self.rfile.read(size)
        if len(raw) < size:
            raise Dropped
        return raw

    def _reply(self, status: int, body: Body) -> None:
        raw = json.dumps(body).encode() + b"\n"
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Say in JSON what http.server itself refuses."""
        self.close_connection = True
        self._reply(int(code), {"error": "bad_request", "message": f"{message or code}; nothing was changed"})

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the log holds what counts."""


@dataclass(frozen=True, slots=True)
class _Asked:
    raw: bytes
    query: str
    key_header: str | None

    @property
    def body(self) -> Body:
        return parse_json(self.raw)

    def params(self, *allowed: str) -> dict[str, str]:
        try:
            given = dict(parse_qsl(self.query, keep_blank_values=True, strict_parsing=bool(self.query)))
        except ValueError:
            raise bad_request(f"the query {self.query!r} can't be read") from None
        unknown = sorted(set(given) - set(allowed))
        if unknown:
            raise bad_request(f"unknown in the query: {', '.join(unknown)}")
        return given


def _refund(engine: Engine, asked: _Asked) -> Reply:
    order, token = parse_refund(asked.raw)
    if asked.key_header is None and engine.behaviour.keys:
        raise bad_request(f"the header {KEY_HEADER} is missing")
    key = f"{order.merchant_id}/{order.refund_id}" if asked.key_header is None else unquote(asked.key_header)
    return write_answer(engine.refund(text({KEY_HEADER: key}, KEY_HEADER), order, token))


def _find(engine: Engine, asked: _Asked) -> Reply:
    key = text(asked.params("key"), "key")
    answer = engine.find(key)
    if isinstance(answer, Nothing):
        raise Rejected(404, "no_such_key", f"there is nothing under {key}")
    return write_answer(answer)


def _movements(engine: Engine, asked: _Asked) -> Reply:
    params = asked.params("merchant_id", "refund_id", "key", "ref")
    found = Movements(tuple(engine.movements())).of(**params)
    return 200, {"count": len(found), "sums": found.sums, "movements": [asdict(item) for item in found]}


def _calls(engine: Engine, asked: _Asked) -> Reply:
    return 200, asdict(engine.calls(asked.params("key").get("key")))


def _faults(engine: Engine, asked: _Asked) -> Reply:
    body = asked.body
    try:
        fault = Fault(text(body, "fault"))
    except ValueError:
        raise bad_request(f"fault is {body['fault']!r}, one of {', '.join(Fault)} was expected") from None
    times = number({"times": 1, **body}, "times", least=1)
    engine.plan(text(body, "key"), fault, times)
    return 200, {"planned": times}


def _release(engine: Engine, asked: _Asked) -> Reply:
    return 200, {"released": engine.release(text(asked.body, "key"))}


def _held(engine: Engine, asked: _Asked) -> Reply:
    params = asked.params("key", "count", "timeout")
    try:
        count, timeout = int(params.get("count", "1")), float(params.get("timeout", "0"))
    except ValueError:
        raise bad_request("count and timeout are numbers") from None
    if not 0 <= timeout <= MAX_WAIT:
        raise bad_request(f"timeout is {timeout}, 0 to {MAX_WAIT:.0f} seconds was expected")
    return 200, {"held": engine.held(text(params, "key"), count, timeout)}


def _complete(engine: Engine, asked: _Asked) -> Reply:
    body = {"outcome": "sent", **asked.body}
    if body["outcome"] not in ("sent", "declined"):
        raise bad_request(f"outcome is {body['outcome']!r}, sent or declined was expected")
    return write_answer(engine.complete(text(body, "key"), moved=body["outcome"] == "sent"))


def _forget(engine: Engine, asked: _Asked) -> Reply:
    engine.forget(text(asked.body, "key"))
    return 200, {}


ROUTES: dict[tuple[str, str], Callable[[Engine, _Asked], Reply]] = {
    ("POST", "/refunds"): _refund,
    ("GET", "/refunds"): _find,
    ("GET", "/movements"): _movements,
    ("GET", "/calls"): _calls,
    ("POST", "/faults"): _faults,
    ("POST", "/release"): _release,
    ("GET", "/held"): _held,
    ("POST", "/complete"): _complete,
    ("POST", "/forget"): _forget,
}
