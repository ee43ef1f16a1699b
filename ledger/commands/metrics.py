"""`ledger metrics`: what the database has to tell, for Prometheus."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import click

from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app
from ledger.commands.durations import DURATION
from ledger.commands.exits import describe
from ledger.metrics import Sample, exposition, of_verify, read
from ledger.observe import fact

TEXT = "text/plain; version=0.0.4; charset=utf-8"

log = logging.getLogger("ledger.metrics")


@command(name="metrics")
@click.option("--listen", metavar="HOST:PORT", help="Serve them at /metrics until stopped; port 0 takes a free one.")
@click.option(
    "--verify-every", type=DURATION, help="Run verify, too: once, or while serving so often. It reads whole tables."
)
@pass_app
def metrics_command(app: App, listen: str | None, verify_every: timedelta | None) -> None:
    """What to watch, as Prometheus text: open refunds by state, what is recent, and whether the server is known.

    Reads no whole table that grows. docs/metrics.md tells what each number means.

    \b
    Example:
      ledger metrics
      ledger metrics --listen 127.0.0.1:9463 --verify-every 6h
    \b
    Exit codes:
      0 done                        2 that is no address, or it is in use
      4 Postgres can't be reached   9 schema missing or behind   130, 143 stopped by Ctrl-C, SIGTERM
    """
    if listen is not None:
        _serve(app, listen, verify_every)
        return
    samples = _read(app) + (_verified(app) if verify_every else [])
    if app.output is None:
        click.echo(exposition(samples), nl=False)
    else:
        output.rows(app, [output.as_row(sample) for sample in samples], ["name", "labels", "value"])


def _read(app: App) -> list[Sample]:
    with app.connect() as connection:
        return read(connection)


def _verified(app: App) -> list[Sample]:
    begun_at = time.monotonic()
    with app.connect() as connection:
        findings = app.ledger(connection).verify()
    return of_verify(findings, time.time(), time.monotonic() - begun_at)


class _Verifying:
    """What verify found when it last ran to its end; it runs in a thread of its own, for it may take minutes."""

    def __init__(self, app: App, every: timedelta) -> None:
        self.samples: list[Sample] = []
        self._app = app
        self._every = every.total_seconds()
        threading.Thread(target=self._run, name="ledger-verify", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.samples = _verified(self._app)
            except Exception as error:  # the next one may come to its end
                fact(log, logging.WARNING, "verify_failed", error=describe(error)[0])
            time.sleep(self._every)


def _serve(app: App, listen: str, verify_every: timedelta | None) -> None:
    host, _, port = listen.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise BadInput(f"--listen {listen!r} is no address. Nothing is served", "Give HOST:PORT, like 127.0.0.1:9463")
    _read(app)  # what is wrong from the beginning is said here, and not to every scrape
    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), BaseHTTPRequestHandler)
    except OSError as error:
        raise BadInput(f"--listen {listen!r}: {error.strerror or error}. Nothing is served", "Give another") from None
    verifying = None if verify_every is None else _Verifying(app, verify_every)
    looking = threading.Lock()  # two who scrape at once don't make two connections

    def scrape() -> str:
        with looking:
            return exposition(_read(app) + (verifying.samples if verifying else []))

    server.RequestHandlerClass = partial(_Handler, scrape)
    server.daemon_threads = True
    output.say(f"serving metrics at http://{host}:{server.server_port}/metrics")
    with server:
        server.serve_forever(poll_interval=0.1)


class _Handler(BaseHTTPRequestHandler):
    """Answers a scrape."""

    def __init__(self, scrape: Callable[[], str], *args: object) -> None:
        self._scrape = scrape
        super().__init__(*args)  # type: ignore[arg-type]  # passed on as they came

    def do_GET(self) -> None:
        """The numbers at /metrics. Without an answer from Postgres 503, so that Prometheus' own `up` says it."""
        if self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "the metrics are at /metrics\n")
            return
        try:
            text = self._scrape()
        except Exception as error:  # a scrape that fails must not end the others
            message = describe(error)[0]
            fact(log, logging.WARNING, "scrape_failed", error=message)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{message}\n")
        else:
            self._answer(HTTPStatus.OK, text)

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", TEXT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are many, and not worth a line."""
