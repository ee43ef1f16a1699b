"""How a command ends: every error as a message and an exit code, in one place."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

import click

from ledger.commands.app import App

UNEXPECTED, USAGE, REFUSED, UNREACHABLE, NOT_FOUND, BUSY = 1, 2, 3, 4, 5, 6
UNKNOWN, PARTLY, SCHEMA, PROBLEMS = 7, 8, 9, 10
INTERRUPTED, TERMINATED = 130, 143


class Terminated(BaseException):
    """SIGTERM came. Raised so that everything is cleaned up on the way out."""


def run(group: click.Command, arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code, having said what went wrong."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = group.main(arguments, prog_name="ledger", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo("interrupted" if isinstance(error, KeyboardInterrupt) else "aborted: nothing was changed", err=True)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else UNEXPECTED
    except Terminated:
        click.echo("terminated", err=True)
        return TERMINATED
    except click.ClickException as error:
        return _say(error, error.exit_code)
    except Exception as error:
        code = exit_code(error)
        if code == UNEXPECTED and os.environ.get("LEDGER_TRACEBACK"):
            raise
        return _say(error, code)
    return result if isinstance(result, int) else 0


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def exit_code(error: BaseException) -> int:
    """The exit code that an exception stands for."""
    import psycopg

    from ledger import errors
    from ledger.dev import DevError
    from ledger.schema import SchemaBehind

    table: list[tuple[type[BaseException] | tuple[type[BaseException], ...], int]] = [
        (SchemaBehind, SCHEMA),
        ((errors.LockHeld, errors.Busy, errors.LeaseLost), BUSY),
        (errors.NoSuchRefund, NOT_FOUND),
        ((errors.BadArgument, errors.BadAmount, errors.ConflictingDuplicate), USAGE),
        (errors.Refused, REFUSED),
        (errors.LeaseUnreachable, UNREACHABLE),
        ((psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName), SCHEMA),
        ((psycopg.OperationalError, psycopg.errors.InsufficientPrivilege), UNREACHABLE),
        ((DevError, ValueError, FileNotFoundError), USAGE),
    ]
    return next((code for kinds, code in table if isinstance(error, kinds)), UNEXPECTED)


def _say(error: BaseException, code: int) -> int:
    message, detail, hint = describe(error)
    if _wants_json():
        body = {"error": {"exit_code": code, "type": type(error).__name__, "message": message, **detail, "hint": hint}}
        click.echo(json.dumps(body, default=str), err=True)
        return code
    click.echo(click.style("error: ", fg="red") + message, err=True, color=_color())
    if hint:
        click.echo(f"  next: {hint}", err=True)
    return code


def describe(error: BaseException) -> tuple[str, dict[str, Any], str | None]:
    """An error as a message, its facts, and what to do next."""
    import psycopg

    from ledger.errors import LedgerError, Refused

    if isinstance(error, click.UsageError) and error.ctx is not None:
        return error.format_message(), {}, f"{error.ctx.command_path} --help"
    if isinstance(error, click.ClickException):
        message, _, hint = error.format_message().partition("\n")
        return message, {}, hint or None
    if isinstance(error, LedgerError):
        code = {"code": error.code} if isinstance(error, Refused) else {}
        return error.message, {**code, "detail": error.detail}, error.hint
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return _first_line(error), {}, "Ask for membership in ledger_worker, ledger_operator or ledger_reader"
    if isinstance(error, psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedTable):
        return _first_line(error), {}, "Run `ledger db upgrade`, or give your DBA the output of `ledger db sql`"
    if isinstance(error, psycopg.OperationalError):
        return (
            f"Postgres can't be reached or gave up: {_first_line(error)}",
            {},
            ("Check --dsn, LEDGER_DSN or PGHOST. What was under way may be recorded or not: `ledger show` tells"),
        )
    return str(error) or type(error).__name__, {}, None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _wants_json() -> bool:
    # An error may come before the options are parsed; what was typed is all there is then.
    ctx = click.get_current_context(silent=True)
    if ctx is not None and isinstance(ctx.obj, App) and ctx.obj.output:
        return ctx.obj.output == "json"
    arguments = " ".join(sys.argv[1:])
    return (
        "-o json" in arguments or "--output json" in arguments or "--output=json" in arguments or "-ojson" in arguments
    )


def _color() -> bool | None:
    return False if os.environ.get("NO_COLOR") or "--no-color" in sys.argv else None
