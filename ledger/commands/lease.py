"""`ledger lease`: who holds what."""

from __future__ import annotations

from typing import Any

import click

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, BadInput, NotFound, command, group, pass_app, usable


@group("lease")
def lease_command() -> None:
    """The leases, and the fences behind them."""


@command(lease_command, "show")
@click.argument("resource")
@pass_app
def show(app: App, resource: str) -> None:
    """Who holds RESOURCE: its lease, and its active token.

    \b
    Example:
      ledger lease show settle:m_4471
    \b
    Exit codes:
      0 done       2 that is no resource       4 Postgres or Redis can't be reached
      5 it was never held                      9 schema missing or behind
    """
    kind, colon, name = resource.partition(":")
    if not (kind and colon and name):
        raise BadInput(f"{resource!r} is no resource: those are kind:name", "ledger lease show settle:MERCHANT")
    with app.connect() as connection:
        ledger = app.ledger(connection)
        facts: dict[str, Any] = {"resource": resource, "lock": ledger.get_kind(kind).lock}
        facts |= _in_redis(app, resource) if facts["lock"] == "redis" else _in_postgres(ledger, resource)
        fence = connection.execute(
            "select active, holder, activated_at, barrier from ledger.fence where resource = %s", (resource,)
        ).fetchone()
    if fence is None and not facts["held"]:
        raise NotFound(f"{resource} was never held", "Check the name: it is kind:name, like settle:m_4471")
    facts |= dict(zip(("active_token", "active_holder", "activated_at", "barrier"), fence or (None,) * 4, strict=True))
    human = {name: value for name, value in facts.items() if name != "ttl_left"}
    if facts.get("ttl_left") is not None:
        human["ends"] = f"in {facts['ttl_left']:.1f}s, unless renewed"
    output.one(app, facts, human=human)


def _in_redis(app: App, resource: str) -> dict[str, Any]:
    from ledger.lease.redis_lock import RedisLock

    with usable():
        lock = RedisLock(app.need_redis(resource.partition(":")[0]), resource)
    entry = lock.peek()
    if entry is None:
        return {"held": False, "holder": None, "token": None, "ttl_left": None}
    return {
        "held": True,
        "holder": entry.holder or entry.value,
        "token": entry.token,
        "ttl_left": round(entry.ttl_left, 3),
    }


def _in_postgres(ledger: Ledger, resource: str) -> dict[str, Any]:
    holders = ledger.job_holders(resource)
    names = [f"pid {one['pid']} ({one['user']}, since {one['since']})" for one in holders]
    return {"held": bool(holders), "holder": "; ".join(names) or None, "token": None, "ttl_left": None}
