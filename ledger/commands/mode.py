"""`ledger mode`: how the protected tables of a kind are checked."""

from __future__ import annotations

from datetime import timedelta

import click

from ledger.commands import output
from ledger.commands.app import App, command, group, pass_app
from ledger.commands.durations import DURATION_OR_ZERO
from ledger.commands.refusals import told
from ledger.errors import BadArgument

LIST = """
    select k.kind, k.mode,
        (select array_agg(p.relation::text order by p.relation::text) from ledger.protected_table as p
            where p.kind = k.kind) as tables,
        (select count(*) from ledger.refusal as r
            where r.kind = k.kind and r.mode = 'shadow' and r.at > now() - interval '24 hours') as would_be_refusals,
        e.at as since, e.actor, e.reason
    from ledger.kind as k
    left join lateral (
        select e.at, e.actor, e.reason from ledger.event as e
        where e.kind = k.kind and e.event = 'mode_set' order by e.event_id desc limit 1
    ) as e on true
    where k.kind <> 'settle'
    order by k.kind
"""
COLUMNS = ["kind", "mode", "tables", "would_be_refusals", "since", "actor", "reason"]
IN_THE_WAY = [
    "refusals", "code", "reason", "table", "resource", "user", "host", "application", "late_seconds", "latest",
    "statement",
]  # fmt: skip


@group("mode")
def mode_command() -> None:
    """How the protected tables of a kind are checked: off, shadow or enforce."""


@command(mode_command, "list")
@pass_app
def list_(app: App) -> None:
    """The kinds and their modes, with the writes of the last 24 hours that enforce would have refused.

    Kind settle isn't listed: refund functions always enforce.

    \b
    Example:
      ledger mode list
    \b
    Exit codes:
      0 done       4 Postgres can't be reached       9 schema missing or behind
    """
    with app.connect() as connection:
        found = connection.execute(LIST).fetchall()
    output.rows(app, [dict(zip(COLUMNS, row, strict=True)) for row in found], COLUMNS, empty="no kinds but settle")


@command(mode_command, "set")
@click.argument("kind")
@click.argument("mode", type=click.Choice(["off", "shadow", "enforce"]))
@click.option("--force", is_flag=True, help="Enforce although writes would have been refused lately.")
@click.option(
    "--quiet-for",
    type=DURATION_OR_ZERO,
    default="24h",
    show_default=True,
    help="How far back would-be refusals stand in the way of enforce.",
)
@pass_app
def set_(app: App, kind: str, mode: str, force: bool, quiet_for: timedelta) -> None:
    """Check the protected tables of KIND by MODE from the next call of every process on.

    off: not at all. shadow: decide, record what would have been refused, let it through. enforce: refuse.

    \b
    Example:
      ledger mode set charges shadow --reason 'roll-out, day 1'
      ledger mode set charges enforce --reason 'quiet for a week'
    \b
    Exit codes:
      0 done       2 no reason given; or writes would have been refused lately: they are listed, and nothing was changed
      4 Postgres can't be reached, or this user may not      6 unchecked transactions are under way
      9 schema missing or behind
    """
    reason = app.need_reason()
    with app.connect() as connection, connection.transaction(force_rollback=bool(app.dry_run)):
        try:
            changed = app.ledger(connection).set_mode(
                kind, mode, actor=app.who, reason=reason, forced=force, quiet_for=quiet_for
            )
        except BadArgument as refused:
            in_the_way = refused.detail.get("would_be_refusals")
            if in_the_way:
                output.rows(app, told(app, in_the_way), IN_THE_WAY)
                refused.hint = (
                    f"Let those writers present a token, or find out why they came late: ledger refusals --kind {kind}"
                    " --mode shadow. --force enforces all the same"
                )
            raise
    output.rows(app, [output.as_row(changed)], ["kind", "mode"])
    if app.dry_run:
        output.say("dry run: rolled back, nothing was changed")
