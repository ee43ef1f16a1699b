"""What every command needs: where Postgres and Redis are, who is acting, how to answer."""

from __future__ import annotations

import getpass
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from ledger import __version__
from ledger.logs import JsonLines, TextLines

if TYPE_CHECKING:
    import psycopg

    from ledger.client import Ledger

DSN_VARIABLES = ["LEDGER_DSN", "DATABASE_URL"]
REDIS_VARIABLES = ["LEDGER_REDIS_URL", "REDIS_URL"]
PATIENCE: dict[str, Any] = {"connect_timeout": 10}
APPLICATION_NAME = f"ledger/{__version__}"
LEVELS = ["debug", "info", "warning", "error"]
FORMATS = ["text", "json"]
EPILOG = "The global options may stand here too: ledger --help lists them. Wrong usage ends in exit code 2."


# A password's own @ or / would make the rest of it a host or a database, and messages name those.
URI = re.compile(r"postgres(ql)?://([^@/]*@)?[^@/]*(/[^@]*)?(\?.*)?")


class Problem(click.ClickException):
    """What ends a command, in words: what is wrong, and what to do next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class BadInput(Problem):
    """What was given can't be used. Exit code 2."""

    exit_code = 2


class NotFound(Problem):
    """What was named doesn't exist. Exit code 5."""

    exit_code = 5


class Unreachable(Problem):
    """A server can't be reached. Exit code 4."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class App:
    """The global options of one call."""

    dsn: str | None = None
    redis: str | None = None
    output: str | None = None
    no_color: bool | None = None
    yes: bool | None = None
    dry_run: bool | None = None
    actor: str | None = None
    reason: str | None = None
    log_level: str | None = None
    log_format: str | None = None
    log: logging.Handler | None = None

    @property
    def who(self) -> str:
        """The person who acts."""
        return self.actor or f"{_user()}@{socket.gethostname()}"

    def speak(self) -> None:
        """Log as the options ask."""
        if self.log is None:
            return
        if self.log_level is not None:
            logging.getLogger("ledger").setLevel(self.log_level.upper())
        if self.log_format is not None:
            tracebacks = self.log_level == "debug"
            self.log.setFormatter(JsonLines() if self.log_format == "json" else TextLines(tracebacks=tracebacks))

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit, which carries actor and reason into the journal.

        Raises BadInput for a DSN that doesn't parse, without repeating it: it may hold a password.
        """
        import psycopg

        given = _parse(self.dsn) if self.dsn else {}
        patience = {} if "connect_timeout" in given or "PGCONNECT_TIMEOUT" in os.environ else PATIENCE
        connection = psycopg.connect(
            self.dsn or "",
            autocommit=True,
            prepare_threshold=None,  # a pooler may lend the next call another session
            fallback_application_name=APPLICATION_NAME,
            **patience,
        )
        if self.actor or self.reason:
            self._say_who(connection)
        return connection

    def _say_who(self, connection: psycopg.Connection[Any]) -> None:
        told, row = connection.info.backend_pid, connection.execute("select pg_backend_pid()").fetchone()
        if row is not None and row[0] == told:
            connection.execute(
                "select set_config('ledger.actor', %s, false), set_config('ledger.reason', %s, false)",
                (self.who, self.reason or ""),
            )
        elif self.reason:
            connection.close()
            raise BadInput(
                "actor and reason can't be told over this connection: a connection pooler stands between, and lends "
                "one session to many clients, whose entries would carry them too. Nothing was changed",
                "Give --dsn that goes straight to Postgres",
            )

    def ledger(self, connection: psycopg.Connection[Any]) -> Ledger:
        """A ledger over a connection of ours, whose refusals are recorded on another one."""
        from ledger.client import Ledger

        return Ledger(connection, refusals=_Second(self))

    def need_redis(self, kind: str) -> str:
        """The URL of the Redis where a kind's leases live.

        Raises Unreachable, with the way out, where none was named, and BadInput for one that can't be read.
        """
        if self.redis:
            from ledger.lease.redis_lock import server_of

            with usable():
                server_of(self.redis)
            return self.redis
        raise Unreachable(
            f"the leases of kind {kind} live in Redis, and no Redis was named. Nothing was changed",
            f"Give --redis URL or set LEDGER_REDIS_URL. {no_redis(kind)}",
        )

    def need_reason(self) -> str:
        """The reason of a write by hand."""
        if self.reason and self.reason.strip():
            return self.reason
        raise BadInput("a write by hand needs a reason, for the record. Nothing was changed", "Give --reason 'why'")

    def confirm(self, question: str) -> None:
        """Ask before something that can't be undone; without a terminal --yes must stand in.

        Raises click.Abort when the answer is no.
        """
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise BadInput(f"{question} There is no terminal to ask on. Nothing was changed", "Give --yes")
        click.confirm(question, abort=True, err=True)

    def refuse_dry_run(self, command: str) -> None:
        """For commands that have none: better no answer than a false one."""
        if self.dry_run:
            raise BadInput(f"{command} has no dry run. Nothing was changed", "Leave --dry-run away")


class _Second:
    """Where refusals are recorded: connections of their own. A dry run leaves no record either."""

    def __init__(self, app: App) -> None:
        self._app = app

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for one record."""
        with self._app.connect() as connection, connection.transaction(force_rollback=bool(self._app.dry_run)):
            yield connection


@contextmanager
def rolled_back(app: App, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """The block as one transaction, which a dry run takes back at its end, and says so."""
    with connection.transaction(force_rollback=bool(app.dry_run)):
        yield
    if app.dry_run:
        click.echo("dry run: rolled back, nothing was changed", err=True)


@contextmanager
def usable() -> Iterator[None]:
    """The block's ValueError says why something that was given can't be used."""
    try:
        yield
    except ValueError as error:
        raise BadInput(f"{error}. Nothing was changed") from None


def no_redis(kind: str) -> str:
    """The way out for whoever has none."""
    return f"Whoever has no Redis says so once: ledger kind set {kind} --lock advisory --reason '...'"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _parse(dsn: str) -> dict[str, Any]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        parsed = dict(conninfo_to_dict(dsn))
        if not dsn.lstrip().startswith(("postgresql://", "postgres://")) or URI.fullmatch(dsn.strip()):
            return parsed
    except ProgrammingError:
        pass
    # The driver's message repeats the text, password and all.
    raise BadInput(
        "the DSN does not parse (it isn't shown, for it may hold a password). Nothing was changed",
        "Give postgresql://user@host/dbname, with special characters percent-encoded (@ is %40, / is %2F), "
        "or key=value pairs. The password is best kept in ~/.pgpass",
    ) from None


def global_options(*, hidden: bool) -> list[click.Option]:
    """The options that may stand before or after a command; shown where they are not hidden."""
    described: dict[str, tuple[list[str], dict[str, Any]]] = {
        "dsn": (
            ["--dsn"],
            {"metavar": "CONNINFO", "help": "Postgres, as URL or key=value.  [LEDGER_DSN, DATABASE_URL, PGHOST ...]"},
        ),
        "redis": (["--redis"], {"metavar": "URL", "help": "Where the leases live.  [LEDGER_REDIS_URL, REDIS_URL]"}),
        "output": (
            ["-o", "--output"],
            {
                "type": click.Choice(["table", "json", "csv"]),
                "help": "Data goes to stdout in this form; words to stderr.",
            },
        ),
        "no_color": (["--no-color"], {"is_flag": True, "default": None, "help": "No colours.  [NO_COLOR]"}),
        "yes": (["-y", "--yes"], {"is_flag": True, "default": None, "help": "Don't ask."}),
        "dry_run": (
            ["-n", "--dry-run"],
            {"is_flag": True, "default": None, "help": "Do it in a transaction that is rolled back."},
        ),
        "actor": (["--actor"], {"metavar": "NAME", "help": "Who is acting.  [LEDGER_ACTOR; user@host]"}),
        "reason": (["--reason"], {"metavar": "TEXT", "help": "Why; writes by hand need one."}),
        "log_level": (
            ["--log-level"],
            {
                "type": click.Choice(LEVELS),
                "help": "Log to stderr from this level on.  [LEDGER_LOG_LEVEL; warning]",
            },
        ),
        "log_format": (
            ["--log-format"],
            {"type": click.Choice(FORMATS), "help": "How to log.  [LEDGER_LOG_FORMAT; text, with -o json json]"},
        ),
    }
    return [
        click.Option([*flags, name], hidden=hidden, expose_value=True, **settings)
        for name, (flags, settings) in described.items()
    ]


def add_global_options(command: click.Command, *, hidden: bool = True) -> click.Command:
    """Let a command take the global options too."""
    options = global_options(hidden=hidden)
    command.params.extend(options)
    inner = command.callback
    assert inner is not None

    def callback(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        given = {str(option.name): kwargs.pop(str(option.name)) for option in options}
        app = ctx.obj if isinstance(ctx.obj, App) else App()
        ctx.obj = replace(app, **{name: value for name, value in given.items() if value is not None})
        ctx.obj.speak()
        if ctx.obj.no_color or os.environ.get("NO_COLOR"):
            ctx.color = False
        return inner(*args, **kwargs)

    callback.__doc__ = inner.__doc__
    command.callback = callback
    return command


def take_global_options(ctx: click.Context) -> None:
    """Complete the options of the command line from the environment."""
    app: App = ctx.obj
    ctx.obj = replace(
        app,
        dsn=app.dsn or _first(DSN_VARIABLES),
        redis=app.redis or _first(REDIS_VARIABLES),
        actor=app.actor or _first(["LEDGER_ACTOR"]),
        log_level=app.log_level or _one_of(LEVELS, "LEDGER_LOG_LEVEL"),
        log_format=app.log_format or _one_of(FORMATS, "LEDGER_LOG_FORMAT"),
    )
    ctx.obj.speak()


def _one_of(choices: list[str], variable: str) -> str | None:
    given = _first([variable])
    if given is None or given in choices:
        return given
    raise BadInput(f"{variable} is {given!r}. Nothing was changed", f"Give one of {', '.join(choices)}")


def _first(variables: list[str]) -> str | None:
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)


def command(parent: click.Group | None = None, name: str | None = None) -> Callable[..., click.Command]:
    """A click command that takes the global options after its own, too."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        made = add_global_options(click.command(name, cls=click.Command, epilog=EPILOG)(function))
        if parent is not None:
            parent.add_command(made)
        return made

    return decorate


def group(name: str) -> Callable[..., click.Group]:
    """A click group that takes the global options, too."""

    def decorate(function: Callable[..., Any]) -> click.Group:
        made = click.group(name)(function)
        add_global_options(made)
        return made

    return decorate


pass_app = click.make_pass_decorator(App, ensure=True)
