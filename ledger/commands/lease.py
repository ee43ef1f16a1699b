"""`ledger lease`: who holds what."""

from __future__ import annotations

from typing import Any

import click

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, NotFound, command, pass_app


@click.group("lease")
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
    Exit codes: 0 done, 4 unreachable, 5 never held.
    """
    from ledger.lease.redis_lock import RedisLock

    with app.connect() as connection:
        kind = Ledger(connection).get_kind(resource.partition(":")[0])
        fence = connection.execute(
            "select active, holder, activated_at, barrier from ledger.fence where resource = %s", (resource,)
        ).fetchone()
        facts: dict[str, Any] = {"resource": resource, "lock": kind.lock, "lease": "not held", "lease_ttl_left": None}
        if kind.lock == "redis":
            redis = app.need_redis(f"leases of kind {kind.kind} live in Redis")
            entry = RedisLock(redis, resource).peek()
            if entry is not None:
                facts |= {"lease": f"held by {entry.holder} with token {entry.token}", "lease_ttl_left": entry.ttl_left}
        else:
            holders = Ledger(connection).job_holders(resource)
            if holders:
                facts["lease"] = ", ".join(f"held by pid {one['pid']} ({one['user']})" for one in holders)
    if fence is None and facts["lease"] == "not held":
        raise NotFound(f"{resource} was never held. Resources are kind:name, like settle:m_4471.")
    if fence is not None:
        facts |= dict(zip(("active_token", "active_holder", "activated_at", "barrier"), fence, strict=True))
    output.one(app, facts)
