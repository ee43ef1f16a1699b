"""`ledger refusals`: what was refused, and what shadow mode would have refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
from psycopg.rows import dict_row

from ledger.commands import output
from ledger.commands.app import App, command, pass_app
from ledger.commands.durations import DURATION

WHERE = """
    where (%(kind)s::text is null or r.kind = %(kind)s)
        and (%(code)s::text is null or r.code = %(code)s)
        and (%(merchant)s::text is null or r.merchant_id = %(merchant)s)
        and (%(since)s::interval is null or r.at > now() - %(since)s::interval)
        and (%(mode)s::text is null or r.mode = %(mode)s)
"""
LIST = f"""
    select r.at, r.mode, r.code, r.reason, r.resource, r.merchant_id, r.refund_id, r.table_name as "table", r.function,
        r.token, r.active, r.holder, r.active_holder, (r.detail ->> 'late_seconds')::float8 as late_seconds,
        r.database_user as "user", host(r.client_address) as host, r.application_name as application, r.actor,
        r.detail ->> 'statement' as statement, r.message, r.number, r.detail
    from ledger.refusal as r {WHERE}
    order by r.refusal_id desc
    limit %(limit)s
"""  # noqa: S608 (texts from this file alone)
TOTALS = f"""
    select r.kind, r.mode, r.code, r.reason, r.table_name as "table", r.database_user as "user",
        host(r.client_address) as host, r.application_name as application, count(*) as refusals,
        count(distinct r.resource) as resources, min(r.at) as earliest, max(r.at) as latest,
        max((r.detail ->> 'late_seconds')::float8) as late_seconds
    from ledger.refusal as r {WHERE}
    group by r.kind, r.mode, r.code, r.reason, r.table_name, r.database_user, r.client_address, r.application_name
    order by refusals desc, latest desc
    limit %(limit)s
"""  # noqa: S608
COLUMNS = [
    "at", "mode", "code", "reason", "resource", "refund_id", "table", "function", "token", "active", "holder",
    "active_holder", "late_seconds", "user", "host", "application", "statement",
]  # fmt: skip
TOTAL_COLUMNS = [
    "refusals", "kind", "mode", "code", "reason", "table", "user", "host", "application", "resources", "late_seconds",
    "earliest", "latest",
]  # fmt: skip


@command(name="refusals")
@click.option("--kind", help="Of this kind of job.")
@click.option("--code", metavar="LGnnn", help="Of this code.")
@click.option("--merchant", help="Of this merchant.")
@click.option("--since", type=DURATION, help="Not older than that: 24h, 30m.")
@click.option("--mode", type=click.Choice(["shadow", "enforce"]), help="shadow: what would have been refused.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="So many lines.")
@click.option("--totals", is_flag=True, help="How many, by kind, reason and intruder.")
@pass_app
def refusals_command(
    app: App,
    kind: str | None,
    code: str | None,
    merchant: str | None,
    since: timedelta | None,
    mode: str | None,
    limit: int,
    totals: bool,
) -> None:
    """What was refused, newest first: by which code, under which token, and who that was.

    An intruder is a database user, the host it came from and its application_name. Refusals are on record where the
    application gave its ledger a second connection for them; the server's log has all of them.

    \b
    Example:
      ledger refusals --kind charges --since 24h
      ledger refusals --mode shadow --totals
    \b
    Exit codes:
      0 done       4 Postgres can't be reached       9 schema missing or behind
    """
    wanted = {"kind": kind, "code": code, "merchant": merchant, "since": since, "mode": mode, "limit": limit}
    with app.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
        found: list[dict[str, Any]] = cursor.execute(TOTALS if totals else LIST, wanted).fetchall()
    output.rows(app, told(app, found), TOTAL_COLUMNS if totals else COLUMNS, empty="no refusals")
    if len(found) == limit and not totals:
        output.say(f"the newest {limit}; --limit shows more")


def told(app: App, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Refusals as they are shown: for a person a statement stands in one line."""
    if app.output is not None:
        return rows
    return [row | {"statement": " ".join((row.get("statement") or "").split())} for row in rows]
