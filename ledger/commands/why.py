"""`ledger why`: a refund's whole story, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from psycopg import Connection
from psycopg.rows import dict_row

from ledger.client import Ledger
from ledger.commands import evidence, gateways, output
from ledger.commands.app import App, BadInput, command, pass_app, usable
from ledger.commands.look import find, readable
from ledger.commands.next_steps import next_steps
from ledger.commands.why_page import page
from ledger.errors import LeaseUnreachable

MOVES = """
    select
        h.at, 'move' as what, h.number, h.from_state, h.to_state, h.token, h.holder, h.attempts, h.maybe_sent, h.debit,
        h.credit, h.amount_minor, h.currency, h.gateway_ref, h.database_user, h.actor, h.reason, h.evidence
    from ledger.history as h
    where h.merchant_id = %(merchant)s and h.refund_id = %(refund)s
"""

REFUSALS = """
    select
        x.at, 'refusal' as what, x.code, x.function, x.token, x.holder, x.active as active_token, x.active_holder,
        x.database_user, x.actor, x.message as reason
    from ledger.refusal as x
    where x.merchant_id = %(merchant)s and (x.refund_id = %(refund)s or x.detail -> 'unrecorded' ? %(refund)s)
"""

# What happened to the merchant's fence, its kind and the server while the refund was open, and at most so long after.
EVENTS = """
    select
        e.at, e.event as what, e.token, e.holder, e.previous_token, e.previous_holder, e.database_user, e.actor,
        e.reason, e.detail
    from ledger.event as e
    where (e.resource = 'settle:' || %(merchant)s or (e.resource is null and coalesce(e.kind, 'settle') = 'settle'))
        and e.at >= %(since)s
        and (e.at <= %(until)s or e.token = any(%(tokens)s))
    order by e.event_id
    limit 2000
"""

DRAWS = """
    select d.drawn_at as at, 'drawn' as what, d.token
    from ledger.draw as d
    where d.resource = 'settle:' || %(merchant)s and d.drawn_at between %(since)s and %(until)s
"""

COLUMNS = ["at", "what", "token", "holder", "money", "gateway_ref", "actor", "reason"]
CSV_COLUMNS = ["at", "what", "token", "holder", "debit", "credit", "amount_minor", "currency", "gateway_ref", "actor"]
CSV_COLUMNS += ["reason", "evidence", "detail"]

Row = dict[str, Any]


@command(name="why")
@click.argument("merchant")
@click.argument("refund")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page; it needs no network."
)
@evidence.GATEWAY
@pass_app
def why_command(app: App, merchant: str, refund: str, html: Path | None, gateway: str | None) -> None:
    """A refund's whole story in order, who has the lease now, what the gateway says, and what may be done.

    Moves with their money and evidence, refusals, tokens drawn and activated around it, leases broken, sessions ended.

    \b
    Example:
      ledger why m_4471 r_815
      ledger why m_4471 r_815 --gateway myshop.payments:gateway --html r_815.html
    \b
    Exit codes:
      0 done       2 the page can't be written       4 Postgres or the gateway can't be reached
      5 no such refund                               9 schema missing or behind
    """
    with app.connect() as connection:
        row = find(connection, merchant, refund)
        story = tell(connection, row)
        lease = _lease_now(app, app.ledger(connection), merchant)
    found = {
        "refund": readable(row),
        "story": story,
        "lease": lease,
        "gateway": _at_gateway(gateway, row["idempotency_key"]),
        "next": next_steps(row),
    }
    if html is not None:
        try:
            html.write_text(page(found, output.money(row["amount_minor"], row["currency"], row["exponent"])))
        except OSError as error:
            raise BadInput(f"{html} can't be written: {error.strerror}. Nothing was changed") from None
        output.say(f"the story of {merchant} {refund} is in {html}")
    elif app.output == "json":
        output.one(app, found)
    else:
        _say(app, found)


def tell(connection: Connection[Any], refund: Row) -> list[Row]:
    """Everything that happened to a refund and to its merchant's fence meanwhile, in order of time."""
    asked: Row = {"merchant": refund["merchant_id"], "refund": refund["refund_id"]}
    with connection.cursor(row_factory=dict_row) as cursor:
        story = cursor.execute(MOVES, asked).fetchall() + cursor.execute(REFUSALS, asked).fetchall()
        tokens = sorted({row["token"] for row in story if row["token"]})
        ends = [row["at"] for row in story]
        if refund["settled_at"] is None:
            now = cursor.execute("select clock_timestamp() as at").fetchone()
            assert now is not None
            ends.append(now["at"])
        around = asked | {"since": refund["added_at"], "until": max(ends), "tokens": tokens}
        story += cursor.execute(EVENTS, around).fetchall() + cursor.execute(DRAWS, around).fetchall()
    story.sort(key=lambda row: row["at"])
    for row in story:
        row["text"] = _in_words(row)
        if row.get("debit"):
            amount = output.money(row["amount_minor"], row["currency"], refund["exponent"])
            row["money"] = f"{amount}: {row['debit']} to {row['credit']}"
    return story


def _in_words(row: Row) -> str:
    match row["what"]:
        case "move":
            return f"{row['from_state'] or 'added'} -> {row['to_state']}"
        case "refusal":
            return f"refused {row['code']} {row['function']}"
        case "activated":
            return f"token {row['token']} activated"
        case "drawn":
            return f"token {row['token']} drawn, not activated"
        case "lease_broken":
            return f"lease of {row['previous_holder']} broken"
    return str(row["what"]).replace("_", " ")


def _lease_now(app: App, ledger: Ledger, merchant: str) -> Row:
    """Who has the merchant's lease now; `seen` is False where that can't be known."""
    resource = f"settle:{merchant}"
    facts: Row = {"resource": resource, "seen": True, "held": False, "holder": None, "token": None, "ttl_left": None}
    if ledger.get_kind("settle").lock == "advisory":
        names = [f"pid {one['pid']} ({one['user']})" for one in ledger.job_holders(resource)]
        return facts | {"held": bool(names), "holder": "; ".join(names) or None}
    from ledger.lease.redis_lock import RedisLock

    if not app.redis:
        return facts | {"seen": False}
    try:
        with usable():
            entry = RedisLock(app.need_redis("settle"), resource).peek()
    except LeaseUnreachable as error:
        output.say(f"the lease wasn't looked at: {error.message}")
        return facts | {"seen": False}
    if entry is None:
        return facts
    holder = entry.holder or entry.value
    return facts | {"held": True, "holder": holder, "token": entry.token, "ttl_left": round(entry.ttl_left, 3)}


def _at_gateway(name: str | None, key: str) -> Row | None:
    if name is None:
        return None
    with gateways.opened(name) as gateway:
        answer = evidence.ask(gateway, key)
    return {"key": key, "answer": type(answer).__name__.lower(), "text": evidence.told(answer)}


def lease_in_words(lease: Row) -> str:
    """Who has the lease, for a person."""
    if not lease["seen"]:
        return "not looked at: no Redis was named, or it can't be reached"
    if not lease["held"]:
        return "nobody has it"
    token = f" with token {lease['token']}" if lease["token"] else ""
    ends = f", for {lease['ttl_left']:.1f} s more unless renewed" if lease["ttl_left"] is not None else ""
    return f"{lease['holder']}{token}{ends}"


def _say(app: App, found: Row) -> None:
    if app.output is None:
        refund = found["refund"]
        head = {name: refund[name] for name in ("merchant_id", "refund_id", "state", "idempotency_key", "gateway_ref")}
        head |= {"amount": f"{refund['amount']} {refund['currency']}", "active token": refund["active_token"]}
        head |= {"lease": lease_in_words(found["lease"])}
        if found["gateway"]:
            head |= {"gateway": found["gateway"]["text"]}
        output.one(app, head)
        click.echo("")
    rows = [row | {"what": row["text"]} for row in found["story"]]
    output.rows(app, rows, COLUMNS, csv_columns=CSV_COLUMNS)
    if app.output is None:
        click.echo("")
        click.echo("what may be done now" if found["next"] else "nothing may be done any more: it is final")
        for step in found["next"]:
            click.echo(f"  {step}")
