"""`ledger show`, `list`, `history`, `verify`: looking, without changing anything."""

from __future__ import annotations

from typing import Any

import click
from psycopg import Connection
from psycopg.rows import dict_row

from ledger.commands import output
from ledger.commands.app import App, NotFound, command, pass_app
from ledger.commands.exits import PROBLEMS

STATES = ["pending", "sending", "unknown", "accepted", "review", "sent", "failed", "cancelled", "returned"]

REFUND = """
    select
        r.merchant_id, r.refund_id, r.state, r.amount_minor, r.currency, c.exponent, r.fence as token, e.holder,
        f.active as active_token, f.holder as active_holder, r.attempts, r.maybe_sent, r.payment_ref, r.gateway,
        r.idempotency_key, r.gateway_ref, r.added_at, r.first_claimed_at, r.changed_at, r.settled_at
    from ledger.refund as r
    left join ledger.currency as c on c.currency = r.currency
    left join ledger.fence as f on f.resource = 'settle:' || r.merchant_id
    left join ledger.event as e
        on e.resource = 'settle:' || r.merchant_id and e.token = r.fence and e.event = 'activated'
"""

# What a person may type next, by state. A refund that is sending belongs to its holder until that is fenced out.
NEXT = {
    "pending": "ledger settle {m} --gateway ...",
    "sending": "ledger lease show settle:{m} tells whether its holder lives; if not, settle again, or by hand: "
    "ledger confirm|fail|unknown {m} {r} --reason '...'",
    "unknown": "settle again, which asks the gateway first; or ask it yourself about the key, and "
    "ledger confirm|fail {m} {r} --reason '...'",
    "accepted": "wait for the gateway's final word; then ledger confirm|fail {m} {r} --reason '...'",
    "review": "ledger why {m} {r} says why it is here; compare it with the gateway, then "
    "ledger resolve|requeue|cancel {m} {r} --reason '...'",
    "sent": "nothing, unless the money came back: ledger return {m} {r} --reason '...'",
    "failed": "nothing: it is final; another try is a new refund id",
    "cancelled": "nothing: it is final",
    "returned": "nothing: it is final",
}


LIST_CSV = [
    *("merchant_id", "refund_id", "state", "amount", "currency", "amount_minor", "payment_ref", "gateway"),
    *("idempotency_key", "gateway_ref", "token", "attempts", "maybe_sent", "added_at", "changed_at", "settled_at"),
]


@command(name="show")
@click.argument("merchant")
@click.argument("refund")
@pass_app
def show_command(app: App, merchant: str, refund: str) -> None:
    """One refund as it stands, who changed it last, and what may be done now.

    \b
    Example:
      ledger show m_4471 r_815
    \b
    Exit codes:
      0 done       4 Postgres can't be reached       5 no such refund       9 schema missing or behind
    """
    with app.connect() as connection:
        row = find(connection, merchant, refund)
    facts = readable(row) | {"next": NEXT[row["state"]].format(m=merchant, r=refund)}
    human = {name: value for name, value in facts.items() if name not in ("amount_minor", "currency")}
    output.one(app, facts, human=human | {"amount": _money(row)})


@command(name="list")
@click.argument("merchant")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be repeated.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@click.option("--after", default="", help="Only refund ids after this one, for the next page.")
@pass_app
def list_command(app: App, merchant: str, states: tuple[str, ...], limit: int, after: str) -> None:
    """A merchant's refunds, in the order of their ids.

    \b
    Example:
      ledger list m_4471 --state unknown --state review
    \b
    Exit codes:
      0 done, also when there are none       4 Postgres can't be reached       9 schema missing or behind
    """
    with app.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(
            REFUND + " where r.merchant_id = %s and r.refund_id > %s and (%s::text[] = '{}' or r.state = any(%s))"
            " order by r.refund_id limit %s",
            (merchant, after, list(states), list(states), limit),
        ).fetchall()
    data = [readable(row) | ({} if app.output else {"amount": _money(row)}) for row in found]
    columns = ["refund_id", "state", "amount", "token", "attempts", "changed_at", "gateway_ref"]
    output.rows(app, data, columns, csv_columns=LIST_CSV, empty=f"merchant {merchant} has no such refunds")
    if len(found) == limit:
        output.say(f"there may be more: --after '{found[-1]['refund_id']}'")


@command(name="history")
@click.argument("merchant")
@click.argument("refund")
@pass_app
def history_command(app: App, merchant: str, refund: str) -> None:
    """Every transition of a refund, and every refusal on record, in order of time.

    \b
    Example:
      ledger history m_4471 r_815
    \b
    Exit codes:
      0 done       4 Postgres can't be reached       5 no such refund       9 schema missing or behind
    """
    with app.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
        row = find(connection, merchant, refund)
        entries = cursor.execute(
            "select number, at, from_state, to_state, token, holder, attempts, maybe_sent, debit, credit, amount_minor,"
            " currency, gateway_ref, database_user, actor, reason, evidence"
            " from ledger.history where merchant_id = %s and refund_id = %s order by number",
            (merchant, refund),
        ).fetchall()
        refusals = cursor.execute(
            "select at, code, reason, function, token, active, holder, active_holder, message, actor, database_user"
            " from ledger.refusal where merchant_id = %s and (refund_id = %s or detail -> 'unrecorded' ? %s)"
            " order by refusal_id",
            (merchant, refund, refund),
        ).fetchall()
    story: list[dict[str, Any]] = [{"what": _arrow(entry), **entry} for entry in entries]
    story += [{"what": f"refused {one['code']} {one['function']}", **one} for one in refusals]
    story.sort(key=lambda line: line["at"])
    for line in story:
        if line.get("amount_minor") is not None:
            line["money"] = f"{_money(line | {'exponent': row['exponent']})}: {line['debit']} to {line['credit']}"
    output.rows(app, story, ["at", "what", "token", "holder", "money", "gateway_ref", "actor", "reason"])


@command(name="verify")
@click.argument("merchant", required=False)
@pass_app
def verify_command(app: App, merchant: str | None) -> int:
    """Compare everything that is written down twice, for MERCHANT or for all.

    \b
    Example:
      ledger verify
    \b
    Exit codes:
      0 nothing is wrong       4 Postgres can't be reached       9 schema missing or behind       10 findings
    """
    with app.connect() as connection:
        findings = app.ledger(connection).verify(merchant)
    columns = ["check", "merchant_id", "refund_id", "resource", "finding"]
    output.rows(app, [output.as_row(finding) for finding in findings], columns, empty="nothing is wrong")
    return PROBLEMS if findings else 0


def find(connection: Connection[Any], merchant: str, refund: str) -> dict[str, Any]:
    """One refund with all about it, archived or not. Raises NotFound."""
    of_one = " where r.merchant_id = %s and r.refund_id = %s"
    with connection.cursor(row_factory=dict_row) as cursor:
        for query in (REFUND, REFUND.replace("ledger.refund", "ledger.archived_refund")):
            row = cursor.execute(query + of_one, (merchant, refund)).fetchone()
            if row is not None:
                return row
    raise NotFound(
        f"merchant {merchant} has no refund {refund}", f"Check both ids, the merchant first: ledger list {merchant}"
    )


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """A refund with its amount as a decimal too, and no token where there is none."""
    facts = {key: value for key, value in row.items() if key != "exponent"}
    head = {key: facts.pop(key) for key in ("merchant_id", "refund_id", "state")}
    amount = {"amount": output.decimal(row["amount_minor"], row["exponent"])}
    return head | amount | facts | {"token": row["token"] or None}


def _money(row: dict[str, Any]) -> str:
    return output.money(row["amount_minor"], row["currency"], row["exponent"])


def _arrow(entry: dict[str, Any]) -> str:
    return f"{entry['from_state'] or 'added'} -> {entry['to_state']}"
