"""`ledger kind`: kinds of jobs and their limits."""

from __future__ import annotations

from datetime import timedelta

import click

from ledger.commands import output
from ledger.commands.app import App, BadInput, command, group, pass_app
from ledger.commands.durations import DURATION, DURATION_OR_ZERO

COLUMNS = [
    "kind",
    "lock",
    "lease_ttl",
    "idle_limit",
    "lock_limit",
    "transaction_limit",
    "max_attempts",
    "key_window",
]


@group("kind")
def kind_command() -> None:
    """The kinds of jobs: where their leases live, and their limits."""


@command(kind_command, "list")
@pass_app
def list_(app: App) -> None:
    """The kinds that are in use.

    \b
    Example:
      ledger kind list
    \b
    Exit codes:
      0 done       4 Postgres can't be reached       9 schema missing or behind
    """
    with app.connect() as connection:
        names = [name for (name,) in connection.execute("select kind from ledger.kind order by kind").fetchall()]
        kinds = [output.as_row(app.ledger(connection).get_kind(name)) for name in names]
    output.rows(app, kinds, COLUMNS)


@command(kind_command, "set")
@click.argument("kind")
@click.option("--lock", type=click.Choice(["redis", "advisory"]), help="Where its leases live.")
@click.option("--lease-ttl", type=DURATION, help="How long a lease lasts without renewal.")
@click.option("--idle-limit", type=DURATION, help="How long a client may be silent inside a fenced transaction.")
@click.option("--lock-limit", type=DURATION, help="How long a call waits at the gate.")
@click.option("--transaction-limit", type=DURATION_OR_ZERO, help="How long a fenced transaction may last; 0: no limit.")
@click.option("--max-attempts", type=click.IntRange(1, 1000), help="Claims of a refund before it goes to review.")
@click.option("--key-window", type=DURATION, help="How long the gateway surely remembers a key.")
@pass_app
def set_(
    app: App,
    kind: str,
    lock: str | None,
    lease_ttl: timedelta | None,
    idle_limit: timedelta | None,
    lock_limit: timedelta | None,
    transaction_limit: timedelta | None,
    max_attempts: int | None,
    key_window: timedelta | None,
) -> None:
    """Change KIND; what isn't given stays. Takes effect with the next call of every process.

    \b
    Example:
      ledger kind set settle --lock advisory --reason 'we have no Redis'
      ledger kind set settle --idle-limit 5s --lease-ttl 15s --reason 'faster takeover'
    \b
    Exit codes:
      0 done       2 no reason given, or limits that don't fit together
      4 Postgres can't be reached, or this user may not      9 schema missing or behind
    """
    reason = app.need_reason()
    wanted = (lock, lease_ttl, idle_limit, lock_limit, transaction_limit, max_attempts, key_window)
    if all(value is None for value in wanted):
        raise BadInput("nothing to set was given. Nothing was changed", "ledger kind set --help lists what can be set")
    with app.connect() as connection, connection.transaction(force_rollback=bool(app.dry_run)):
        changed = app.ledger(connection).set_kind(
            kind,
            lock=lock,
            lease_ttl=lease_ttl,
            idle_limit=idle_limit,
            lock_limit=lock_limit,
            transaction_limit=transaction_limit,
            max_attempts=max_attempts,
            key_window=key_window,
            actor=app.who,
            reason=reason,
        )
    output.rows(app, [output.as_row(changed)], COLUMNS)
    if app.dry_run:
        output.say("dry run: rolled back, nothing was changed")
