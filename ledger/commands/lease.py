"""`ledger lease`: who holds what."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.advice import FEW, advice
from ledger.commands.app import App, BadInput, NotFound, command, group, pass_app, usable
from ledger.commands.durations import DURATION, readable


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


@command(lease_command, "advise")
@click.argument("kind")
@click.option("--since", type=DURATION, default="30d", show_default=True, help="Leases given back not longer ago.")
@pass_app
def advise(app: App, kind: str, since: timedelta) -> None:
    """What TTL the leases of KIND speak for: twice the 99th percentile of how long they were held.

    A lease renews itself at a third of its TTL. A renewal is late when it came a whole interval after it was due: often
    late means that the TTL is too short for the pauses of those machines.

    \b
    Example:
      ledger lease advise payouts
    \b
    Exit codes:
      0 done       4 Postgres can't be reached       5 no such lease on record       9 schema missing or behind
    """
    with app.connect() as connection:
        limits = app.ledger(connection).get_kind(kind)
        found = advice(connection, limits, since)
    if found is None:
        raise NotFound(
            f"no lease of kind {kind} was given back in the last {readable(since)}",
            "A lease leaves how long it was held when it is given back. Run the job a few times, then ask again",
        )
    output.one(app, found)
    if found["holds"] < FEW:
        output.say(f"only {found['holds']} are on record: a first guess")
    if found["advised_ttl"] == limits.lease_ttl:
        output.say("its TTL is that already")
    else:
        seconds = found["advised_ttl"].total_seconds()
        output.say(f"next: ledger kind set {kind} --lease-ttl {seconds:g}s --reason 'ledger lease advise'")


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
