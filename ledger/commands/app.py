"""What every command needs: where Postgres and Redis are, who is acting, how to answer."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import psycopg

DSN_VARIABLES = ["LEDGER_DSN", "DATABASE_URL"]
REDIS_VARIABLES = ["LEDGER_REDIS_URL", "REDIS_URL"]
CONNECT_TIMEOUT = 10


class BadInput(click.ClickException):
    """What was given can't be used. Exit code 2."""

    exit_code = 2


class NotFound(click.ClickException):
    """What was named doesn't exist. Exit code 5."""

    exit_code = 5


class Unreachable(click.ClickException):
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

    @property
    def who(self) -> str:
        """The person who acts."""
        return self.actor or f"{_user()}@{socket.gethostname()}"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit, which carries actor and reason into the journal.

        Raises BadInput for a DSN that doesn't parse, without repeating it: it may hold a password.
        """
        import psycopg

        settings = {"connect_timeout": CONNECT_TIMEOUT, "application_name": "ledger"}
        given = _parse(self.dsn) if self.dsn else {}
        defaults = {name: value for name, value in settings.items() if name not in given}
        if "PGAPPNAME" in os.environ:
            defaults.pop("application_name", None)
        if "PGCONNECT_TIMEOUT" in os.environ:
            defaults.pop("connect_timeout", None)
        connection = psycopg.connect(self.dsn or "", autocommit=True, **defaults)  # type: ignore[arg-type]
        if self.actor or self.reason:
            connection.execute(
                "select set_config('ledger.actor', %s, false), set_config('ledger.reason', %s, false)",
                (self.who, self.reason or ""),
            )
        return connection

    def need_redis(self, why: str) -> str:
        """The URL of Redis. Raises Unreachable, with the way out, where none was named."""
        if self.redis:
            return self.redis
        raise Unreachable(
            f"{why}, and no Redis was named: give --redis URL or set LEDGER_REDIS_URL. Nothing was changed.\n"
            "Whoever has no Redis says so once: ledger kind set settle --lock advisory --reason '...'"
        )

    def need_reason(self) -> str:
        """The reason of a write by hand."""
        if self.reason and self.reason.strip():
            return self.reason
        raise click.UsageError(
            "a write by hand needs a reason for the journal. Give --reason 'why'. Nothing was changed."
        )

    def confirm(self, question: str) -> None:
        """Ask before something that can't be undone; without a terminal --yes must stand in.

        Raises click.Abort when the answer is no.
        """
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} There is no terminal to ask on: give --yes. Nothing was changed.")
        click.confirm(question, abort=True, err=True)

    def refuse_dry_run(self, command: str) -> None:
        """For commands that have none: better no answer than a false one."""
        if self.dry_run:
            raise click.UsageError(f"{command} has no dry run. Nothing was changed.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _parse(dsn: str) -> dict[str, Any]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return dict(conninfo_to_dict(dsn))
    except ProgrammingError:
        # The driver's message repeats the text, password and all.
        raise BadInput(
            "the DSN does not parse (it isn't shown, for it may hold a password). Give postgresql://user@host/dbname, "
            "with special characters percent-encoded, or key=value pairs, and keep the password in ~/.pgpass."
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
    }
    return [
        click.Option([*flags, name], hidden=hidden, expose_value=True, **settings)
        for name, (flags, settings) in described.items()
    ]


def add_global_options(command: click.Command, *, hidden: bool = True) -> click.Command:
    """Let a command take the global options too."""
    command.params.extend(global_options(hidden=hidden))
    inner = command.callback
    assert inner is not None

    def callback(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        given = {field.name: kwargs.pop(field.name) for field in fields(App) if field.name in kwargs}
        app = ctx.obj if isinstance(ctx.obj, App) else App()
        ctx.obj = replace(app, **{name: value for name, value in given.items() if value is not None})
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
        no_color=app.no_color or bool(os.environ.get("NO_COLOR")),
    )
    if ctx.obj.no_color:
        ctx.color = False


def _first(variables: list[str]) -> str | None:
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)


def command(group: click.Group | None = None, name: str | None = None, **settings: Any) -> Callable[..., click.Command]:
    """A click command that takes the global options after its own, too."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        made: click.Command = add_global_options(click.command(name, cls=click.Command, **settings)(function))
        if group is not None:
            group.add_command(made)
        return made

    return decorate


pass_app = click.make_pass_decorator(App, ensure=True)
