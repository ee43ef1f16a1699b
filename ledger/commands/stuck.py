"""`ledger stuck`: what needs a person, oldest first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
from psycopg.rows import dict_row

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, command, pass_app, usable
from ledger.commands.durations import DURATION_OR_ZERO
from ledger.commands.exits import PROBLEMS
from ledger.commands.next_steps import next_steps
from ledger.errors import LeaseUnreachable
from ledger.records import Kind

# Only the partial index of open refunds is read. The clock is the server's.
OPEN = """
    select
        r.merchant_id, r.refund_id, r.state, r.maybe_sent, r.amount_minor, r.currency, c.exponent, r.fence as token,
        e.holder, f.active as active_token, f.holder as active_holder, r.attempts, r.changed_at as since,
        clock_timestamp() - r.changed_at as age, said.reason, refused.message as last_refusal
    from ledger.refund as r
    join ledger.currency as c on c.currency = r.currency
    left join ledger.fence as f on f.resource = 'settle:' || r.merchant_id
    left join ledger.event as e
        on e.resource = 'settle:' || r.merchant_id and e.token = r.fence and e.event = 'activated'
    left join lateral (
        select j.reason
        from ledger.journal as j
        where j.merchant_id = r.merchant_id and j.refund_id = r.refund_id and j.reason is not null
        order by j.number desc
        limit 1
    ) as said on true
    left join lateral (
        select x.code || ' ' || x.message as message
        from ledger.refusal as x
        where x.merchant_id = r.merchant_id and x.refund_id = r.refund_id
        order by x.refusal_id desc
        limit 1
    ) as refused on true
    where r.settled_at is null
        and (%(merchant)s::text is null or r.merchant_id = %(merchant)s)
        and (
            r.state in ('unknown', 'review', 'sending')
            or (r.state = 'accepted' and r.changed_at <= clock_timestamp() - %(accepted)s::interval)
        )
    order by r.changed_at, r.merchant_id, r.refund_id
"""

COLUMNS = ["age", "merchant_id", "refund_id", "state", "why", "amount", "token", "holder", "reason", "next"]
CSV_COLUMNS = [*("merchant_id", "refund_id", "state", "why", "since", "age", "amount", "currency", "token", "holder")]
CSV_COLUMNS += ["reason", "last_refusal"]

Row = dict[str, Any]


@command(name="stuck")
@click.argument("merchant", required=False)
@click.option(
    "--accepted-after",
    type=DURATION_OR_ZERO,
    default="24h",
    show_default=True,
    help="How long the gateway may take for its final word.",
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="The oldest so many.")
@pass_app
def stuck_command(app: App, merchant: str | None, accepted_after: timedelta, limit: int) -> int:
    """What needs a person, of MERCHANT or of all, oldest first, with what may be typed next.

    That is: sending under a token that isn't active, or whose lease is gone; unknown; accepted for too long; review.

    \b
    Example:
      ledger stuck
      ledger stuck m_4471 --accepted-after 2h -o json
    \b
    Exit codes:
      0 nothing is stuck       4 Postgres can't be reached       9 schema missing or behind       10 something is
    """
    with app.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
        why = _Why(app, app.ledger(connection))
        rows = cursor.execute(OPEN, {"merchant": merchant, "accepted": accepted_after}).fetchall()
        found = [row | {"why": reason} for row in rows if (reason := why(row))]
    data = [_told(row, human=app.output is None) for row in found[:limit]]
    output.rows(app, data, COLUMNS, csv_columns=CSV_COLUMNS, empty="nothing is stuck")
    if len(found) > limit:
        output.say(f"{len(found) - limit} more: --limit {len(found)}")
    return PROBLEMS if found else 0


class _Why:
    """Why a refund needs a person; None where it doesn't. Each merchant's lease is looked at once."""

    def __init__(self, app: App, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kind = ledger.get_kind("settle")
        self._look = _looker(app, ledger, self._kind)
        self._holders: dict[str, int | bool | None] = {}

    def __call__(self, row: Row) -> str | None:
        if row["state"] == "unknown":
            return "nobody knows whether it was sent"
        if row["state"] == "review":
            return "a person must look"
        if row["state"] == "accepted":
            return "the gateway's final word is late"
        if row["token"] != row["active_token"]:
            return "its holder was fenced out"
        return self._of_lease(row)

    def _of_lease(self, row: Row) -> str | None:
        merchant = row["merchant_id"]
        if merchant not in self._holders:
            self._holders[merchant] = self._look(f"settle:{merchant}")
        held = self._holders[merchant]
        if held is None:
            # A worker that can't reach Redis has given up by now.
            late = row["age"] > self._kind.lease_ttl
            return "its lease can't be seen, and it is late" if late else None
        return None if held is True or held == row["token"] else "its lease is gone"


def _looker(app: App, ledger: Ledger, kind: Kind) -> Callable[[str], int | bool | None]:
    """How to look at a lease: its token, or whether it is held at all; None where it can't be seen."""
    if kind.lock == "advisory":
        return lambda resource: bool(ledger.job_holders(resource))
    if not app.redis:
        output.say("leases weren't looked at: no Redis was named (--redis or LEDGER_REDIS_URL)")
        return lambda resource: None
    url = app.need_redis("settle")
    unreachable = False

    def look(resource: str) -> int | bool | None:
        from ledger.lease.redis_lock import RedisLock

        nonlocal unreachable
        if unreachable:
            return None
        try:
            with usable():
                entry = RedisLock(url, resource).peek()
        except LeaseUnreachable as error:
            unreachable = True
            output.say(f"leases weren't looked at: {error.message}")
            return None
        return False if entry is None else entry.token or False

    return look


def _told(row: Row, *, human: bool) -> Row:
    exponent = row["exponent"]
    facts = {name: value for name, value in row.items() if name not in ("exponent", "maybe_sent")}
    facts["next"] = next_steps(row)
    if human:
        age = timedelta(seconds=max(1, int(row["age"].total_seconds())))
        money = output.money(row["amount_minor"], row["currency"], exponent)
        told = row["reason"] or row["last_refusal"]
        return facts | {
            "amount": money,
            "age": age,
            "reason": told,
            "next": f"ledger why {row['merchant_id']} {row['refund_id']}",
        }
    return facts | {"amount": output.decimal(row["amount_minor"], exponent)}
