"""`ledger pause`, `resume`: stop a kind or a resource from beginning anything, and let it go on."""

from __future__ import annotations

import click
from psycopg.rows import dict_row

from ledger.commands import output
from ledger.commands.app import App, command, pass_app, rolled_back

COLUMNS = ["target", "paused_at", "actor", "reason"]


@command(name="pause")
@click.argument("target", required=False, metavar="[KIND|RESOURCE]")
@pass_app
def pause_command(app: App, target: str | None) -> None:
    """Stop a kind or a resource from beginning anything; without one, list what is paused.

    Drawing, activating and claiming are refused from now on. What is out still gets recorded. Who paused first, and
    why, stays.

    \b
    Example:
      ledger pause settle --reason 'gateway incident 812'
      ledger pause settle:m_4471 --reason 'the merchant disputes its list, ticket 91'
      ledger pause
    \b
    Exit codes:
      0 done, also: paused already       2 no reason given, or no such target
      4 Postgres can't be reached, or this user may not              9 schema missing or behind
    """
    if target is None:
        with app.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
            paused = cursor.execute(
                "select target, paused_at, actor, reason from ledger.pause order by paused_at"
            ).fetchall()
        output.rows(app, paused, COLUMNS, empty="nothing is paused")
        return
    reason = app.need_reason()
    with app.connect() as connection, rolled_back(app, connection):
        pause = app.ledger(connection).pause(target, app.who, reason)
    output.rows(app, [output.as_row(pause)], COLUMNS)


@command(name="resume")
@click.argument("target", metavar="KIND|RESOURCE")
@pass_app
def resume_command(app: App, target: str) -> None:
    """Let a kind or a resource that was paused go on.

    \b
    Example:
      ledger resume settle --reason 'incident 812 is over'
    \b
    Exit codes:
      0 done, also: it wasn't paused     2 no reason given, or no such target
      4 Postgres can't be reached, or this user may not              9 schema missing or behind
    """
    reason = app.need_reason()
    with app.connect() as connection, rolled_back(app, connection):
        resumed = app.ledger(connection).resume(target, app.who, reason)
        others = connection.execute(
            "select target from ledger.pause where target = split_part(%s, ':', 1)", (target,)
        ).fetchone()
    output.one(app, {"target": target, "outcome": "resumed" if resumed else "was_not_paused"})
    if others is not None:
        output.say(f"its kind {others[0]} is still paused: ledger resume {others[0]}")
