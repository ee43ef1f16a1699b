"""`ledger export`: entries and balances by day, for whoever reconciles."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import click
from psycopg.rows import dict_row

from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app

# Every entry up to the last day is summed, for a balance is the sum of all that went before. Days are UTC.
BY_DAY = """
    with entry as (
        select (j.at at time zone 'UTC')::date as day, j.merchant_id, j.currency, side.account, side.minor
        from (select * from ledger.journal union all select * from ledger.archived_journal) as j
        cross join lateral (values (j.debit, -j.amount_minor), (j.credit, j.amount_minor)) as side (account, minor)
        where j.debit is not null
            and j.at < (%(to)s::date + 1)::timestamp at time zone 'UTC'
            and (%(merchant)s::text is null or j.merchant_id = %(merchant)s)
    ),
    by_day as (
        select
            e.day, e.merchant_id, e.currency, e.account, count(*) as entries,
            coalesce(-sum(e.minor) filter (where e.minor < 0), 0)::bigint as debit_minor,
            coalesce(sum(e.minor) filter (where e.minor > 0), 0)::bigint as credit_minor,
            (sum(sum(e.minor)) over (
                partition by e.merchant_id, e.currency, e.account order by e.day
            ))::bigint as balance_minor
        from entry as e
        group by e.day, e.merchant_id, e.currency, e.account
    )
    select
        d.day, d.merchant_id, d.currency, c.exponent, d.account, d.entries, d.debit_minor, d.credit_minor,
        d.balance_minor
    from by_day as d
    join ledger.currency as c on c.currency = d.currency
    where d.day >= %(from)s::date
    order by d.day, d.merchant_id, d.currency, d.account
"""

FOR_PEOPLE = ["day", "merchant_id", "currency", "account", "entries", "debit", "credit", "balance"]
MINOR = ["debit_minor", "credit_minor", "balance_minor"]
DAY = click.DateTime(["%Y-%m-%d"])


@command(name="export")
@click.option("--from", "first", type=DAY, required=True, metavar="DAY", help="The first day, as 2026-11-01; UTC.")
@click.option("--to", "last", type=DAY, required=True, metavar="DAY", help="The last day, itself included; UTC.")
@click.option("--merchant", help="Only this merchant.")
@pass_app
def export_command(app: App, first: datetime, last: datetime, merchant: str | None) -> None:
    """Entries and balances by day, merchant, currency and account, as CSV unless -o says otherwise.

    A line stands where an account had entries on that day; its balance is that of the day's end, over all time.
    merchant_available counts what refunds took and gave back; refund_reserved what is open; gateway_clearing what was
    sent.

    \b
    Example:
      ledger export --from 2026-11-01 --to 2026-11-30 > november.csv
    \b
    Exit codes:
      0 done, also when there were none       2 no such days       4 Postgres can't be reached
      9 schema missing or behind
    """
    if last < first:
        raise BadInput(f"--to {last.date()} is before --from {first.date()}")
    days = {"from": first.date(), "to": last.date(), "merchant": merchant}
    with app.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(BY_DAY, days).fetchall()
    data = []
    for row in found:
        exponent = row.pop("exponent")
        amounts = {name: output.decimal(row[f"{name}_minor"], exponent) for name in ("debit", "credit", "balance")}
        data.append(row | amounts)
    asked = replace(app, output=app.output or "csv")
    output.rows(asked, data, FOR_PEOPLE, csv_columns=FOR_PEOPLE + MINOR, empty="no entries on those days")
