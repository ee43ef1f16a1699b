"""`ledger archive`, `ledger prune`: keeping the tables small, in steps of a thousand rows, each committed by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import click
from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app
from ledger.commands.durations import DURATION, readable

STEP = 1000

# Merchants one after another by the primary key: a distinct over the whole table would read all of it.
MERCHANTS = """
    with recursive merchant as (
        (select r.merchant_id from ledger.refund as r order by r.merchant_id limit 1)
        union all
        select n.merchant_id
        from merchant as m
        cross join lateral (
            select r.merchant_id from ledger.refund as r
            where r.merchant_id > m.merchant_id order by r.merchant_id limit 1
        ) as n
    )
    select merchant_id from merchant
"""


@command(name="archive")
@click.argument("merchants", nargs=-1, metavar="[MERCHANT...]")
@click.option("--older-than", type=DURATION, required=True, help="Only refunds that last changed before so long, 90d.")
@click.option("--limit", type=click.IntRange(1), help="At most so many refunds in all.")
@pass_app
def archive_command(app: App, merchants: tuple[str, ...], older_than: timedelta, limit: int | None) -> None:
    """Move finished refunds into the archive, with their journal; of MERCHANTs, or of all.

    What is open stays. Ids and keys stay taken, balances stay right, `ledger history` tells the same. An archived
    refund can't come back: record returns before. Stopped half-way, it goes on where it was when called again.

    \b
    Example:
      ledger archive --older-than 400d --reason 'yearly, ticket 91'
      ledger archive m_4471 --older-than 90d --dry-run --reason 'how many?'
    \b
    Exit codes:
      0 done, also when there was nothing       2 no reason given, or younger than the key window
      4 Postgres can't be reached, or this user may not      9 schema missing or behind
    """
    reason = app.need_reason()
    with app.connect() as connection:
        before = _ago(connection, older_than)
        wanted = list(merchants) or [name for (name,) in connection.execute(MERCHANTS).fetchall()]
        moved: dict[str, tuple[int, int]] = {}
        left = limit
        for merchant in wanted:
            refunds, entries = _archive(app, connection, merchant, before, left, reason)
            if refunds:
                moved[merchant] = refunds, entries
            left = None if left is None else left - refunds
            if left == 0:
                break
    rows = [{"merchant_id": name, "refunds": r, "entries": e} for name, (r, e) in moved.items()]
    output.rows(app, rows, ["merchant_id", "refunds", "entries"], empty="nothing to archive")
    _say_dry(app)


@command(name="prune")
@click.option("--refusals", type=DURATION, help="Forget refusals recorded longer ago, 90d.")
@click.option("--draws", type=DURATION, help="Forget numbers drawn longer ago and never activated, 7d.")
@click.option("--events", type=DURATION, help="Forget activations under which nothing was moved, and holds, 400d.")
@click.option("--work", type=DURATION, help="Forget work that was done longer ago, 90d; the queue must have, too.")
@pass_app
def prune_command(app: App, /, **ages: timedelta | None) -> None:
    """Forget old refusals, numbers that were never activated, events that no refund or person needs, and done work.

    A day at least is kept of refusals and draws, 30 days of events and work. What history and verify need stays.

    \b
    Example:
      ledger prune --refusals 90d --draws 7d --reason 'weekly'
      ledger prune --events 400d --work 90d --reason 'yearly, ticket 91'
    \b
    Exit codes:
      0 done, also when there was nothing       2 no reason given, nothing named, or too young
      4 Postgres can't be reached, or this user may not      9 schema missing or behind
    """
    reason = app.need_reason()
    named = {name: age for name, age in ages.items() if age is not None}
    if not named:
        raise BadInput(
            "nothing to forget was named. Nothing was changed",
            "Give --refusals 90d, --draws 7d, --events 400d, --work 90d, or some of them",
        )
    pruned: dict[str, int] = {}
    with app.connect() as connection:
        for name, age in named.items():
            step = _events if name == "events" else _rows(name)
            pruned[name] = sum(_steps(app, connection, step, _ago(connection, age), reason))
    output.one(app, pruned)
    _say_dry(app)


def _archive(
    app: App, connection: Connection[Any], merchant: str, before: datetime, limit: int | None, reason: str
) -> tuple[int, int]:
    ledger, refunds, entries, after = app.ledger(connection), 0, 0, ""
    while limit is None or refunds < limit:
        step = STEP if limit is None else min(STEP, limit - refunds)
        with connection.transaction(force_rollback=bool(app.dry_run)):
            moved = ledger.archive_refunds(merchant, before, step, after, app.who, reason)
        refunds, entries = refunds + moved.refunds, entries + moved.entries
        if moved.last_refund_id is None:
            break
        after = moved.last_refund_id
    return refunds, entries


# One step of pruning: how many rows went, and where the next step goes on; None when nothing is left.
Step = Callable[[Ledger, datetime, int, str, str], tuple[int, int | None]]


def _steps(app: App, connection: Connection[Any], step: Step, before: datetime, reason: str) -> Iterator[int]:
    ledger, after = app.ledger(connection), 0
    while True:
        with connection.transaction(force_rollback=bool(app.dry_run)):
            pruned, cursor = step(ledger, before, after, app.who, reason)
        yield pruned
        if cursor is None or (cursor == after and app.dry_run):  # without a cursor a dry run sees its first step alone
            return
        after = cursor


def _events(ledger: Ledger, before: datetime, after: int, who: str, reason: str) -> tuple[int, int | None]:
    pruned = ledger.prune_events(before, STEP, after, who, reason)
    return pruned.events, pruned.last_event_id


def _rows(name: str) -> Step:
    def step(ledger: Ledger, before: datetime, after: int, who: str, reason: str) -> tuple[int, int | None]:
        call = {"refusals": ledger.prune_refusals, "draws": ledger.prune_draws, "work": ledger.prune_work}[name]
        pruned = call(before, STEP, who, reason)
        return pruned, None if pruned < STEP else after

    return step


def _ago(connection: Connection[Any], age: timedelta) -> datetime:
    row = connection.execute("select clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    try:
        return now - age
    except OverflowError:
        raise BadInput(f"{readable(age)} ago is no time. Nothing was changed") from None


def _say_dry(app: App) -> None:
    if app.dry_run:
        output.say("dry run: rolled back, nothing was changed")
