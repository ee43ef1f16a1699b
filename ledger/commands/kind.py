"""`ledger kind`: kinds of jobs and their limits."""

from __future__ import annotations

from datetime import timedelta

import click

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, command, pass_app
from ledger.commands.durations import DURATION

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


@click.group("kind")
def kind_command() -> None:
    """The kinds of jobs: where their leases live, and their limits."""


@command(kind_command, "list")
@pass_app
def list_(app: App) -> None:
    """The kinds that are in use.

    \b
    Example:
      ledger kind list
    Exit codes: 0 done, 4 unreachable, 9 schema missing.
    """
    with app.connect() as connection:
        names = [name for (name,) in connection.execute("select kind from ledger.kind order by kind").fetchall()]
        kinds = [output.as_row(Ledger(connection).get_kind(name)) for name in names]
    output.rows(app, kinds, COLUMNS)


@command(kind_command, "set")
@click.argument("kind")
@click.option("--lock", type=click.Choice(["redis", "advisory"]), help="Where its leases live.")
@click.option("--lease-ttl", type=DURATION, help="How long a lease lasts without renewal.")
@click.option("--idle-limit", type=DURATION, help="How long a client may be silent inside a fenced transaction.")
@click.option("--lock-limit", type=DURATION, help="How long a call waits at the gate.")
@click.option("--transaction-limit", type=DURATION, help="How long a fenced transaction may last; 0: no limit.")
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
    Exit codes: 0 done, 2 bad limits, 4 unreachable.
    """
    reason = app.need_reason()
    with app.connect() as connection, connection.transaction(force_rollback=bool(app.dry_run)):
        changed = Ledger(connection).set_kind(
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
