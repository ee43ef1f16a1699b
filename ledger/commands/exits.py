"""How a command ends: every error as a message and an exit code, in one place."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import click

from ledger.commands.app import App, Problem, no_redis
from ledger.logs import JsonLines, TextLines

UNEXPECTED, USAGE, REFUSED, UNREACHABLE, NOT_FOUND, BUSY = 1, 2, 3, 4, 5, 6
UNKNOWN, PARTLY, SCHEMA, PROBLEMS = 7, 8, 9, 10
INTERRUPTED, NO_READER, TERMINATED = 130, 141, 143

JSON = re.compile(r"\0(?:-[yn]*o\0?|--output[=\0])json\0")
NO_SCHEMA = "Run ledger db upgrade, or give your DBA the output of ledger db sql"
OURS = "This should not happen. LEDGER_TRACEBACK=1 shows where it did"


class Terminated(BaseException):
    """SIGTERM came. Raised so that everything is cleaned up on the way out."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How to say what went wrong. Known from what was typed, for the options themselves may be what is wrong."""

    json: bool
    color: bool | None

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Voice:
        """The voice that these arguments ask for."""
        # What stands behind -- is another program's.
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        plain = bool(os.environ.get("NO_COLOR")) or "--no-color" in ours
        return cls(JSON.search("\0".join(["", *ours, ""])) is not None, False if plain else None)

    def error(self, error: BaseException, code: int) -> int:
        """Say an error. Returns its exit code."""
        message, facts, hint = describe(error)
        if self.json:
            body = {"exit_code": code, "type": type(error).__name__, "message": message, **facts, "hint": hint}
            click.echo(json.dumps({"error": body}, default=str), err=True)
            return code
        click.echo(click.style("error: ", fg="red") + message, err=True, color=self.color)
        if hint:
            click.echo(f"  next: {hint}", err=True)
        return code


class _Log(logging.Handler):
    """Says what the library logs: warnings, unless the options ask for more, as text or JSON like the errors."""

    def __init__(self, voice: Voice) -> None:
        super().__init__()
        self._voice = voice
        self.setFormatter(JsonLines() if voice.json else TextLines())

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if isinstance(self.formatter, TextLines):
            level, colon, rest = line.partition(":")
            line = click.style(level + colon, fg="yellow" if record.levelno == logging.WARNING else None) + rest
        click.echo(line, err=True, color=self._voice.color)


def run(group: click.Command, arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code, having said what went wrong."""
    typed = sys.argv[1:] if arguments is None else arguments
    voice = Voice.of(typed)
    streams = sys.stdout, sys.stderr
    try:
        with _sigterm_raises(), _log_said(voice) as log:
            result = group.main(typed, prog_name="ledger", standalone_mode=False, obj=App(log=log))
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit:
        if sys.stdout is streams[0]:
            raise
        # How click ends for a broken pipe: with the streams wrapped.
        sys.stdout, sys.stderr = streams
        return _end(BrokenPipeError(), voice)
    except BaseException as error:
        return _end(error, voice)


def _end(error: BaseException, voice: Voice) -> int:
    """The exit code that an exception ends in, after saying it."""
    if isinstance(error, BrokenPipeError):
        _say_no_more()
        return NO_READER
    if isinstance(error, KeyboardInterrupt | click.Abort | EOFError):
        # Older releases of click make an Abort of every Ctrl-C, and all of them at a prompt.
        cause = error.__cause__ or error.__context__
        interrupted = isinstance(error, KeyboardInterrupt) or isinstance(cause, KeyboardInterrupt)
        click.echo("interrupted" if interrupted else "aborted: nothing was changed", err=True)
        return INTERRUPTED if interrupted else UNEXPECTED
    if isinstance(error, Terminated):
        click.echo("terminated", err=True)
        return TERMINATED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    if not isinstance(error, Exception):
        raise error
    code = exit_code(error)
    if code == UNEXPECTED and os.environ.get("LEDGER_TRACEBACK"):
        raise error
    return voice.error(error, code)


def _say_no_more() -> None:
    """Whoever read the output has seen enough; what is still buffered goes nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (AttributeError, OSError, ValueError):  # stdout isn't a file: nothing is buffered for it
        return


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def _log_said(voice: Voice) -> Iterator[logging.Handler]:
    handler, log = _Log(voice), logging.getLogger("ledger")
    before = log.level
    log.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def exit_code(error: BaseException) -> int:
    """The exit code that an exception stands for."""
    if isinstance(error, click.ClickException):
        return error.exit_code

    import psycopg
    from psycopg import errors as pg

    from ledger import errors
    from ledger.dev import DevError
    from ledger.sandbox import SandboxError
    from ledger.schema import SchemaBehind

    table: list[tuple[tuple[type[BaseException], ...], int]] = [
        ((SchemaBehind,), SCHEMA),
        ((errors.LockHeld, errors.Busy, errors.LeaseLost, errors.Paused), BUSY),
        ((errors.NoSuchRefund,), NOT_FOUND),
        ((errors.BadArgument, errors.BadAmount, errors.ConflictingDuplicate), USAGE),
        ((errors.Refused,), REFUSED),
        ((errors.LeaseUnreachable,), UNREACHABLE),
        (_no_schema(), SCHEMA),
        ((psycopg.OperationalError, psycopg.InterfaceError, pg.InsufficientPrivilege), UNREACHABLE),
        ((pg.ReadOnlySqlTransaction,), UNREACHABLE),
        ((DevError, SandboxError, psycopg.DataError, pg.RaiseException), USAGE),
    ]
    plain = errors.from_exception(error) or _plain(error)
    return next((code for kinds, code in table if isinstance(plain, kinds)), UNEXPECTED)


def _no_schema() -> tuple[type[BaseException], ...]:
    """What Postgres says when the schema, or something newer in it, isn't there."""
    from psycopg import errors as pg

    return (pg.UndefinedFunction, pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedObject, pg.InvalidSchemaName)


def _plain(error: BaseException) -> BaseException:
    """The driver's own error, where SQLAlchemy has wrapped it for a migration."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, BaseException) else error


def describe(error: BaseException) -> tuple[str, dict[str, Any], str | None]:
    """An error as a message, its facts, and what to do next."""
    if isinstance(error, Problem):
        return error.message, {}, error.hint
    if isinstance(error, click.ClickException):
        ctx = getattr(error, "ctx", None)
        return error.format_message(), {}, None if ctx is None else f"{ctx.command_path} --help"

    import psycopg

    from ledger.errors import LeaseUnreachable, LedgerError, Refused, from_exception

    error = from_exception(error) or error
    if isinstance(error, LeaseUnreachable) and "server" in error.detail:
        kind = str(error.detail.get("resource", "")).partition(":")[0] or "settle"
        return error.message, {"detail": error.detail}, f"{error.hint}. {no_redis(kind)}"
    if isinstance(error, LedgerError):
        code = {"code": error.code} if isinstance(error, Refused) else {}
        return error.message, {**code, "detail": error.detail}, error.hint
    plain = _plain(error)
    if isinstance(plain, psycopg.Error):
        return _describe_postgres(plain)
    hint = getattr(error, "hint", None)
    if exit_code(error) == UNEXPECTED:
        return f"{type(error).__name__}: {error}", {}, OURS
    return str(error.args[0] if hint and error.args else error), {}, hint


def _describe_postgres(error: Any) -> tuple[str, dict[str, Any], str | None]:
    from psycopg import errors as pg

    from ledger.schema import head

    said = error.diag.message_primary or _first_line(error)
    facts = {} if error.sqlstate is None else {"code": error.sqlstate}
    match exit_code(error):
        case 9:
            return f"schema ledger is missing, or older than this release needs ({head()}): {said}", facts, NO_SCHEMA
        case 4 if isinstance(error, pg.InsufficientPrivilege):
            hint = "Connect as a member of ledger_reader (to look), ledger_worker (to settle) or ledger_operator (both)"
            return f"Postgres doesn't let this user do that: {said}. Nothing was changed", facts, hint
        case 4 if isinstance(error, pg.ReadOnlySqlTransaction):
            hint = "Connect to the primary: target_session_attrs=read-write finds it among several hosts"
            return f"this Postgres takes no writes: {said}. Nothing was changed", facts, hint
        case 4 if said.startswith(("connection", "failed to resolve", "invalid", "could not")):
            return f"Postgres can't be reached: {said}", facts, "Check --dsn, LEDGER_DSN or PGHOST"
        case 4:
            hint = "What was under way may be recorded or not: ledger show tells. Then do the same again"
            return f"Postgres gave up: {said}", facts, hint
        case 2:
            return said, facts, error.diag.message_hint
    return f"Postgres: {said}", facts, error.diag.message_hint


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
