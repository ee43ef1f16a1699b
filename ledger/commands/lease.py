"""`ledger lease`: who holds what."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.advice import FEW, advice
from ledger.commands.app import App, BadInput, NotFound, command, group, pass_app, rolled_back, usable
from ledger.commands.durations import DURATION, readable
from ledger.commands.exits import BUSY
from ledger.errors import Busy

if TYPE_CHECKING:
    from ledger.lease.redis_lock import Entry, RedisLock


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
    kind = _kind(resource)
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


@command(lease_command, "list")
@click.option("--kind", help="Only this kind.")
@click.option("--held", is_flag=True, help="Only where somebody has the lease now.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="The newest so many.")
@pass_app
def list_(app: App, kind: str | None, held: bool, limit: int) -> None:
    """Who holds what: the resources that were activated last, and their leases now.

    A lease that was taken and never activated is not among them; ledger lease show RESOURCE sees it.

    \b
    Example:
      ledger lease list --kind settle --held
    \b
    Exit codes:
      0 done, also when there are none       4 Postgres or Redis can't be reached       9 schema missing or behind
    """
    with app.connect() as connection:
        ledger = app.ledger(connection)
        fences = connection.execute(
            "select f.resource, k.lock, f.active, f.holder, f.activated_at from ledger.fence as f"
            " join ledger.kind as k on k.kind = f.kind where %s::text is null or f.kind = %s"
            " order by f.activated_at desc, f.resource limit %s",
            (kind, kind, limit),
        ).fetchall()
        found = []
        for resource, lock, active, holder, since in fences:
            state = _in_redis(app, resource) if lock == "redis" else _in_postgres(ledger, resource)
            fence = {"active_token": active, "active_holder": holder, "activated_at": since}
            found.append({"resource": resource, "lock": lock, **state, **fence})
    shown = [one for one in found if one["held"] or not held]
    columns = ["resource", "held", "holder", "token", "ttl_left", "active_token", "active_holder", "activated_at"]
    output.rows(app, shown, columns, empty="nobody holds anything" if held else "nothing was ever held")
    if len(fences) == limit:
        output.say(f"there may be more: --limit {limit * 10}")


@command(lease_command, "break")
@click.argument("resource")
@click.option("--holder", required=True, help="Whom, as ledger lease show named it.")
@click.option("--without-lease", is_flag=True, help="Go on though Redis can't be reached: raises the fence alone.")
@pass_app
def break_(app: App, resource: str, holder: str, without_lease: bool) -> int:
    """Fence out HOLDER, then clear its lease. From then on nothing that it writes is recorded.

    The fence is raised first; the lease is cleared only if it still is the one that was shown. A session's advisory
    lock ends with its session alone.

    \b
    Example:
      ledger lease show settle:m_4471
      ledger lease break settle:m_4471 --holder 'worker-1/7/0123456789abcdef' --reason 'its host is gone, ticket 91'
    \b
    Exit codes:
      0 done       1 answered no       2 bad input       4 Postgres or Redis can't be reached
      5 it was never held      6 somebody else holds it, or it is paused      9 schema missing or behind
    """
    reason = app.need_reason()
    with app.connect() as connection:
        ledger = app.ledger(connection)
        lock = _lock(app, resource) if _lives_in_redis(ledger, resource) and not without_lease else None
        _refuse_another_holder(ledger, lock, resource, holder)
        if not app.dry_run:
            app.confirm(f"Fence out {holder} and clear its lease on {resource}?")
        entry = _refuse_another_holder(ledger, lock, resource, holder)
        with rolled_back(app, connection):
            token = ledger.break_lease(resource, holder, app.who, reason)
        cleared = lock is not None and entry is not None and not app.dry_run and lock.release(entry.value)
    output.one(app, {"resource": resource, "holder": holder, "token": token, "lease_cleared": cleared})
    if entry is not None and not cleared and not app.dry_run:
        output.say("the fence was raised, but the lease had passed on or ended by then, and was left as it is")
        return BUSY
    return 0


def _refuse_another_holder(ledger: Ledger, lock: RedisLock | None, resource: str, holder: str) -> Entry | None:
    """The lease, where it is the holder's. Raises Busy where somebody else has it, and NotFound where nobody had it."""
    entry = None if lock is None else lock.peek()
    assert isinstance(ledger.connection, Connection)
    fence = ledger.connection.execute("select holder from ledger.fence where resource = %s", (resource,)).fetchone()
    shown = (entry.holder or entry.value) if entry is not None else None if fence is None else fence[0]
    if shown is None:
        raise NotFound(f"{resource} was never held", "Check the name: it is kind:name, like settle:m_4471")
    if shown != holder:
        raise Busy(
            f"{resource} is held by {shown}, not by {holder}. Nothing was changed",
            {"resource": resource, "holder": shown},
            f"Look again: ledger lease show {resource}",
        )
    return entry


def _lives_in_redis(ledger: Ledger, resource: str) -> bool:
    return ledger.get_kind(_kind(resource)).lock == "redis"


def _kind(resource: str) -> str:
    """The kind of a resource. Raises BadInput for what is none."""
    kind, colon, name = resource.partition(":")
    if not (kind and colon and name):
        raise BadInput(f"{resource!r} is no resource: those are kind:name", "ledger lease show settle:MERCHANT")
    return kind


def _lock(app: App, resource: str) -> RedisLock:
    from ledger.lease.redis_lock import RedisLock

    with usable():
        return RedisLock(app.need_redis(_kind(resource)), resource)


def _in_redis(app: App, resource: str) -> dict[str, Any]:
    entry = _lock(app, resource).peek()
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
    names = [f"pid {one['pid']} ({one['user']})" for one in holders]
    return {"held": bool(holders), "holder": "; ".join(names) or None, "token": None, "ttl_left": None}
