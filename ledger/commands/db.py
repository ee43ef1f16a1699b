"""`ledger db`: the schema."""

from __future__ import annotations

import click

from ledger import schema
from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app


@click.group("db")
def db_command() -> None:
    """The schema: bring it to a revision, take it away, or print the SQL for a DBA."""


@command(db_command, "upgrade")
@click.argument("revision", default="head")
@pass_app
def upgrade(app: App, revision: str) -> None:
    """Bring the database to REVISION (default: the newest). Run again, it changes nothing.

    \b
    Example:
      ledger db upgrade --dsn postgresql://ledger_admin@db.internal/payments
    Exit codes: 0 done, 2 no such revision, 4 unreachable.
    """
    app.refuse_dry_run("db upgrade")
    with app.connect() as connection:
        before = schema.current(connection)
    _known(revision)
    schema.upgrade(app.dsn or "", revision)
    with app.connect() as connection:
        after = schema.current(connection)
    output.say(f"schema ledger is at {after}" + (", as before" if before == after else f" (was: {before or 'none'})"))


@command(db_command, "downgrade")
@click.argument("revision")
@pass_app
def downgrade(app: App, revision: str) -> None:
    """Take the database back to REVISION; `base` takes the whole schema away, with every refund in it.

    \b
    Example:
      ledger db downgrade base --yes
    Exit codes: 0 done, 1 answered no, 2 no such revision, 4 unreachable.
    """
    app.refuse_dry_run("db downgrade")
    _known(revision)
    with app.connect() as connection:
        found = schema.current(connection)
        if found is None:
            output.say("there is no schema ledger; nothing to do")
            return
        row = connection.execute("select count(*), current_database() from ledger.refund").fetchone()
        assert row is not None
    app.confirm(
        f"Take schema ledger of database {row[1]} from {found} to {revision}? "
        f"This drops {row[0]} refunds and their journal, for good."
    )
    schema.downgrade(app.dsn or "", revision, discard=True)
    output.say("schema ledger is gone; its roles belong to the cluster and stay" if revision == "base" else revision)


@command(db_command, "current")
@pass_app
def current(app: App) -> None:
    """Which revision the database is at, and which this release needs.

    \b
    Example:
      ledger db current -o json
    Exit codes: 0 as needed, 4 unreachable, 9 missing or behind.
    """
    with app.connect() as connection:
        output.one(app, {"found": schema.current(connection), "needed": schema.head()})
        schema.check(connection)


@command(db_command, "sql")
@click.argument("revisions", default="head")
@click.option("--down", is_flag=True, help="The way back; needs FROM:TO.")
@pass_app
def sql(app: App, revisions: str, down: bool) -> None:
    """Print the SQL that an upgrade would run, without a connection. REVISIONS is TO or FROM:TO.

    \b
    Example:
      ledger db sql > ledger.sql && psql -v ON_ERROR_STOP=1 -f ledger.sql
      ledger db sql 0001_roles:0002_ledger
      ledger db sql head:base --down
    Exit codes: 0 done, 2 no such revision.
    """
    app.refuse_dry_run("db sql")
    if down and ":" not in revisions:
        raise click.UsageError("--down needs FROM:TO, like head:base.")
    for revision in revisions.split(":"):
        _known(revision)
    click.echo(schema.offline_sql(revisions, down=down), nl=False)


def _known(revision: str) -> None:
    names = schema.revisions()
    if revision not in (*names, "head", "base", ""):
        raise BadInput(
            f"there is no revision {revision!r}. Known: base, {', '.join(names)}, head. Nothing was changed."
        )
