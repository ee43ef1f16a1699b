"""`ledger db`: the schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ledger import schema
from ledger.commands import output
from ledger.commands.app import App, BadInput, command, group, pass_app


@group("db")
def db_command() -> None:
    """The schema: bring it to a revision, take it away, or print what a DBA reads and runs."""


@command(db_command, "upgrade")
@click.argument("revision", default="head")
@pass_app
def upgrade(app: App, revision: str) -> None:
    """Bring the database to REVISION (default: the newest). Run again, it changes nothing.

    With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      ledger db upgrade --dsn postgresql://ledger_admin@db.internal/payments
    \b
    Exit codes:
      0 done       2 no such revision, or a schema of that name that isn't ours       4 Postgres can't be reached
    """
    app.refuse_dry_run("db upgrade")
    _known(revision, "head")
    with app.connect() as connection:
        before = schema.current(connection)
    with _understood():
        schema.upgrade(app.dsn or "", revision)
    with app.connect() as connection:
        after = schema.current(connection)
    output.say(f"schema ledger is at {after}" + (", as before" if before == after else f" (was: {before or 'none'})"))


@command(db_command, "downgrade")
@click.argument("revision")
@pass_app
def downgrade(app: App, revision: str) -> None:
    """Take the database back to REVISION; `base` takes the whole schema away, with every refund in it.

    With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      ledger db downgrade base --yes
    \b
    Exit codes:
      0 done       1 answered no       2 no such revision, or nobody to ask       4 Postgres can't be reached
    """
    app.refuse_dry_run("db downgrade")
    _known(revision, "base")
    with app.connect() as connection:
        found = schema.current(connection)
        if found is None or found == revision:
            output.say(f"schema ledger is at {found}; nothing to do" if found else "no schema ledger; nothing to do")
            return
        database = connection.info.dbname
        has_refunds = connection.execute("select to_regclass('ledger.refund') is not null").fetchone()
        refunds = 0
        if has_refunds is not None and has_refunds[0]:
            counted = connection.execute(
                "select (select count(*) from ledger.refund) + (select count(*) from ledger.archived_refund)"
            ).fetchone()
            refunds = 0 if counted is None else counted[0]
    app.confirm(
        f"Take schema ledger of database {database} from {found} to {revision}? "
        f"This drops {refunds} refunds and their journal, for good."
    )
    with _understood():
        schema.downgrade(app.dsn or "", revision, discard=True)
    output.say(
        "schema ledger is gone; its roles belong to the cluster and stay"
        if revision == "base"
        else f"schema ledger is at {revision} (was: {found})"
    )


@command(db_command, "current")
@pass_app
def current(app: App) -> None:
    """Which revision the database is at, and which this release needs.

    \b
    Example:
      ledger db current -o json
    \b
    Exit codes:
      0 as needed       4 Postgres can't be reached       9 missing or behind
    """
    with app.connect() as connection:
        output.one(app, {"found": schema.current(connection), "needed": schema.head()})
        schema.check(connection)


@command(db_command, "sql")
@click.argument("revisions", default="head")
@click.option(
    "--part",
    type=click.Choice(schema.PARTS),
    help="The roles alone, which belong to the cluster; all but them; or what mends a schema at head.",
)
@click.option("--down", is_flag=True, help="The way back; needs FROM:TO.")
@pass_app
def sql(app: App, revisions: str, part: str | None, down: bool) -> None:
    """Print the SQL that an upgrade would run, without a connection. REVISIONS is TO or FROM:TO.

    It runs in one transaction. Each revision begins with what it locks, rewrites and needs. With -o json its errors are
    JSON, and nothing else is.

    \b
    Example:
      ledger db sql > ledger.sql && psql -v ON_ERROR_STOP=1 -1 -f ledger.sql
      ledger db sql 0001_roles:0002_ledger
      ledger db sql --part roles
      ledger db sql --part functions       replaces functions, grants and guard triggers that were changed by hand
      ledger db sql head:base --down
    \b
    Exit codes:
      0 done       2 no such revision, or no such part of it
    """
    ends = revisions.split(":")
    if len(ends) > 2 or "" in ends:
        raise BadInput(f"{revisions!r} is neither TO nor FROM:TO", "ledger db sql 0001_roles:0002_ledger")
    if down and len(ends) == 1:
        raise BadInput("the way back needs FROM:TO", "ledger db sql --down head:base")
    if down and part:
        raise BadInput("the way back has no parts: roles stay, and the rest goes together", "Leave --part away")
    if part == "functions" and revisions != "head":
        raise BadInput(
            "functions are replaced at the newest revision alone",
            "ledger db sql --part functions, and ledger db sql FROM:head for a schema that is behind",
        )
    for revision in ends:
        _known(revision, "head", "base")
    order = ["base", *schema.revisions()]
    places = [order.index(schema.head() if end == "head" else end) for end in ["base", *ends][-2:]]
    if places != sorted(places, reverse=down) or places[0] == places[1]:
        raise BadInput(f"{revisions} is no way {'down' if down else 'up'}", f"The order is {', '.join(order)}")
    with _understood():
        text = schema.offline_sql(revisions, down=down, part=part)
    if not text:
        raise BadInput(f"{revisions} makes no roles", "ledger db sql --part roles prints those of all revisions")
    click.echo(text, nl=False)


DUTIES = {
    "worker": ("ledger_worker", "calls what a worker needs"),
    "operator": ("ledger_operator", "calls what a worker needs, and what a person on call needs"),
    "reader": ("ledger_reader", "verifies"),
    "migrator": ("ledger_owner, ledger_fn", "installs and upgrades"),
}


@command(db_command, "grants")
@click.argument("role")
@click.option("--as", "duty", type=click.Choice(list(DUTIES)), required=True, help="What ROLE is to be.")
@pass_app
def grants(app: App, role: str, duty: str) -> None:
    """Print the GRANTs that make ROLE a worker, an operator, a reader or a migrator. Needs no connection.

    With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      ledger db grants refunds_app --as worker | psql -v ON_ERROR_STOP=1 -1 -f -
    \b
    Exit codes:
      0 done       2 no name of a role
    """
    if not role.isprintable() or not 0 < len(role.encode()) < 64:
        raise BadInput(f"{role!r} is no name of a role: 1 to 63 bytes, printable")
    quoted = '"' + role.replace('"', '""') + '"'
    group_role, does = DUTIES[duty]
    click.echo(f"-- {quoted} as {duty}: {does}.")
    functions = schema.callable_by(group_role)
    if functions:
        click.echo("-- Reads every table and view of schema ledger, writes to none, and may call:")
        click.echo("\n".join(f"--   {function}" for function in functions))
    click.echo(f"-- Taken back by: revoke {group_role} from {quoted};")
    click.echo(f"grant {group_role} to {quoted};")


@command(db_command, "docs")
@pass_app
def docs(app: App) -> None:
    """Print the reference of functions, moves, codes, tables and types as Markdown, from the catalog's comments.

    With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      ledger db docs > docs/sql.md
    \b
    Exit codes:
      0 done       4 Postgres can't be reached       9 the schema is missing or behind
    """
    from ledger.commands import reference

    with app.connect() as connection:
        schema.check(connection)
        click.echo(reference.write(connection), nl=False)


def _known(revision: str, *words: str) -> None:
    names = [*schema.revisions(), *words]
    if revision not in names:
        raise BadInput(f"there is no revision {revision!r} to go to. Nothing was changed", f"Give {', '.join(names)}")


@contextmanager
def _understood() -> Iterator[None]:
    """What Alembic can't do with the revisions that were given is bad input."""
    from alembic.util import CommandError

    try:
        yield
    except CommandError as error:
        raise BadInput(f"{error}. Nothing was changed") from None
