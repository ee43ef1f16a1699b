"""`ledger recover`: going on after a promotion or a restore."""

from __future__ import annotations

import click

from ledger.commands import output
from ledger.commands.app import App, command, group, pass_app, rolled_back

DONE = {
    "nothing_to_do": "this is the server that handed the tokens out: nothing to do",
    "acknowledged": "this server is the known one now; tokens and refunds are as they were",
    "recovered": "this server is the known one now; every holder is fenced out, open refunds are asked about first",
}


@group("recover")
def recover_command() -> None:
    """Going on after a promotion or a restore, and what happens by itself then."""


@command(recover_command, "failover")
@click.option("--nothing-lost", is_flag=True, help="It was planned and no commit was lost: only make the server known.")
@pass_app
def failover(app: App, nothing_lost: bool) -> None:
    """Let work go on (LG106 until then). Make sure first that the old server is down for good.

    Tokens are lifted above anything that can have been handed out, which fences out every holder; every open refund is
    marked, so that the gateway is asked before any is sent. Run again, it changes nothing.

    \b
    Example:
      ledger recover failover --reason 'db-2 was promoted, incident 812'
      ledger recover failover --nothing-lost --reason 'planned switchover, all replicas had caught up'
    \b
    Exit codes:
      0 done, also: nothing to do       1 answered no       2 no reason given, or nobody to ask
      4 Postgres can't be reached, or this user may not     9 schema missing or behind
    """
    reason = app.need_reason()
    if not app.dry_run:
        app.confirm(
            "Is it certain that no commit was lost, and the old server down for good?"
            if nothing_lost
            else "Fence out every holder and mark every open refund? The old server must be down for good."
        )
    with app.connect() as connection, rolled_back(app, connection):
        outcome = app.ledger(connection).recover_failover(nothing_lost, app.who, reason)
        event = connection.execute(
            "select s.timeline, s.failover, m.value::bigint,"
            " (select count(*) from ledger.refund as r where r.settled_at is null and r.maybe_sent)"
            " from ledger.server as s, ledger.metrics as m where m.name = 'ledger_tokens_drawn_total'"
        ).fetchone()
    assert event is not None
    facts = dict(zip(("timeline", "failover", "last_token", "ask_first"), event, strict=True))
    output.one(app, {"outcome": outcome, **facts})
    output.say(DONE[outcome])


@command(recover_command, "setting")
@click.argument("failover", required=False, type=click.Choice(["hold", "lift"]))
@pass_app
def setting(app: App, failover: str | None) -> None:
    """What happens on a new timeline: hold, until `recover failover` has run; or lift, by the first call itself.

    Without an argument, how it is set now.

    \b
    Example:
      ledger recover setting
      ledger recover setting lift --reason 'the managed service promotes by itself'
    \b
    Exit codes:
      0 done       2 no reason given       4 Postgres can't be reached, or this user may not
      9 schema missing or behind
    """
    reason = app.need_reason() if failover else ""
    with app.connect() as connection, rolled_back(app, connection):
        if failover:
            app.ledger(connection).set_failover(failover, app.who, reason)
        row = connection.execute("select failover, timeline, started_at from ledger.server").fetchone()
    assert row is not None
    output.one(app, dict(zip(("failover", "timeline", "started_at"), row, strict=True)))
