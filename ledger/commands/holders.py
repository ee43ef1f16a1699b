"""Who is in the way: a busy lease in words that help."""

from __future__ import annotations

from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import durations, output
from ledger.errors import Busy

NOTHING_CHANGED = ". Nothing was changed"


def told(busy: Busy, ledger: Ledger, resource: str) -> Busy:
    """A busy lease with since when it is held, and what a person can do. A busy gate says so by itself."""
    if "holder" not in busy.detail:
        return busy
    assert isinstance(ledger.connection, Connection)
    fence = ledger.connection.execute(
        "select active, holder, activated_at from ledger.fence where resource = %s", (resource,)
    ).fetchone()
    message, detail = busy.message, busy.detail
    if fence is not None and detail.get("token") in (None, fence[0]):
        active, holder, since = fence
        by = "" if holder == detail["holder"] else f" by {holder}"
        message = message.replace(NOTHING_CHANGED, "").rstrip(".").removesuffix("; nothing was changed")
        message += f"; token {active} was activated{by} at {output.cell(since)}{NOTHING_CHANGED}"
        detail = detail | {"active": active, "active_holder": holder, "active_since": since}
    ttl = ledger.get_kind(resource.partition(":")[0]).lease_ttl
    return Busy(
        message,
        detail,
        "If that process is alive, let it finish, or stop it with SIGTERM: it gives the lease back. If it is dead, "
        f"its lease ends by itself within {durations.readable(ttl)}; --wait {durations.readable(ttl * 2)} waits for it",
    )
