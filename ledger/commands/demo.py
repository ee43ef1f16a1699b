"""`ledger demo`: see a double send happen, and see it prevented."""

from __future__ import annotations

import json

import click

from ledger import demo
from ledger.commands import output
from ledger.commands.app import App, command, pass_app
from ledger.commands.exits import UNEXPECTED


@command(name="demo")
@click.option("--pg", default="18", show_default=True, help="Major version of the embedded Postgres: 18 or 16.")
@pass_app
def demo_command(app: App, pg: str) -> int:
    """Two workers, one of them frozen past its lease and woken up: first with a TTL lock alone, then with the fence.

    Starts a Postgres and a Valkey of its own, which are gone at the end. Needs the extra `embedded`.

    \b
    Example:
      ledger demo
      ledger demo -o json
    \b
    Exit codes:
      0 as promised       1 the proof failed       2 a server doesn't start
    """
    app.refuse_dry_run("demo")
    result = demo.run(pg, click.echo if app.output != "json" else output.say)
    if app.output == "json":
        click.echo(json.dumps(result.as_json(), separators=(",", ":")))
    return 0 if result.holds else UNEXPECTED
