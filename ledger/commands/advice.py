"""What TTL the recorded durations of a kind's leases speak for."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ledger.records import Kind

FEW = 20
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=24)

HELD = """
    select count(*) as holds,
        make_interval(secs => percentile_disc(0.5) within group (order by h.seconds)) as median,
        make_interval(secs => percentile_disc(0.99) within group (order by h.seconds)) as p99,
        make_interval(secs => max(h.seconds)) as longest,
        coalesce(sum(h.renewals), 0)::bigint as renewals,
        coalesce(sum(h.late), 0)::bigint as late_renewals
    from (
        select (e.detail ->> 'seconds')::float8 as seconds, (e.detail ->> 'renewals')::bigint as renewals,
            (e.detail ->> 'late')::bigint as late
        from ledger.event as e
        where e.event = 'held' and e.kind = %s and e.at > now() - %s::interval
    ) as h
"""


def advice(connection: psycopg.Connection[Any], kind: Kind, since: timedelta) -> dict[str, Any] | None:
    """The durations on record, and the TTL they speak for: twice the 99th percentile, renewed at a third of it.

    Not below the kind's idle limit, which a lease must outlast. None where nothing is on record.
    """
    with connection.cursor(row_factory=dict_row) as cursor:
        facts = cursor.execute(HELD, (kind.kind, since)).fetchone()
    if facts is None or not facts["holds"]:
        return None
    whole_seconds = timedelta(seconds=math.ceil(facts["p99"].total_seconds() * 2))
    advised = min(max(whole_seconds, kind.idle_limit, SHORTEST), LONGEST)
    return {
        "kind": kind.kind,
        **facts,
        "late_share": round(facts["late_renewals"] / facts["renewals"], 4) if facts["renewals"] else None,
        "lease_ttl": kind.lease_ttl,
        "advised_ttl": advised,
        "renew_every": advised / 3,
    }
