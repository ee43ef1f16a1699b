"""The sessions: poolers, locks that outlive their transaction, workers of an older release."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg
from psycopg import Connection
from psycopg.rows import namedtuple_row

from ledger import __version__
from ledger.doctor.symptom import Symptom, fault, note

# Gates are bigint keys and job locks pairs of integers, as pg_locks tells them apart.
HELD: LiteralString = """
    with key as (
        select f.resource, f.kind, k.space, k.key
        from ledger.fence as f
        cross join lateral (
            values (1, hashtextextended(f.resource, 0)), (2, hashtextextended(f.resource, 1))
        ) as k (space, key)
    )
    select
        k.resource,
        case k.space when 1 then 'gate' else 'job lock' end as lock,
        l.pid,
        concat_ws(', ', a.usename, nullif(a.application_name, '')) as who,
        a.state = 'idle' and a.xact_start is null as is_idle,
        clock_timestamp() - a.state_change as silent,
        n.lease_ttl,
        x.gid,
        x.owner::text,
        x.prepared
    from pg_locks as l
    join key as k
        on l.classid = ((k.key >> 32) & 4294967295)::oid
        and l.objid = (k.key & 4294967295)::oid
        and l.objsubid = k.space
    left join pg_stat_activity as a on a.pid = l.pid
    left join pg_locks as t
        on l.pid is null and t.pid is null and t.locktype = 'transactionid'
        and t.virtualtransaction = l.virtualtransaction
    left join pg_prepared_xacts as x on x.transaction = t.transactionid
    left join ledger.kind as n on n.kind = k.kind
    where l.locktype = 'advisory' and l.granted
        and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    order by k.resource, k.space, l.pid
"""


def pooler(connection: Connection[Any], connect: Callable[[], Connection[Any]]) -> Iterator[Symptom]:
    """Whether a pooler stands in between, and what it shares."""
    told, pid = connection.info.backend_pid, _pid(connection)
    if told == pid:
        return
    seen, open_at_once = {pid}, 4
    with ExitStack() as stack:
        others = [stack.enter_context(connect()) for _ in range(open_at_once)]
        seen |= {_pid(other) for other in others}
    if len(seen) == 1 + open_at_once:
        yield note(
            f"a pooler stands in between (told of process {told}, served by {pid}), in session mode",
            "Nothing: advisory leases need a straight connection even so",
        )
    elif not _keeps_transactions(connect):
        yield fault(
            "a pooler stands in between that shares sessions by the statement: no call is safe with another",
            "pool_mode = transaction or session",
        )
    else:
        yield note(
            f"a pooler in transaction mode stands in between (told of process {told}, served by {pid}): session locks "
            "are refused here, and statements prepared by psycopg break unless the pooler carries them over",
            "Give leases of kinds with lock advisory, and writes by hand, a straight connection; set "
            "prepare_threshold=None, or use PgBouncer 1.21+ with max_prepared_statements (docs/pooler.md)",
        )


def sight(connection: Connection[Any]) -> Iterator[Symptom]:
    """Whether other sessions can be seen."""
    row = connection.execute("select pg_has_role(current_user, 'pg_read_all_stats', 'usage')").fetchone()
    if row is not None and not row[0]:
        yield note(
            "other users' sessions can't be seen: what they hold and which release they run wasn't looked at",
            "Connect as a member of pg_monitor",
        )


def session_holders(connection: Connection[Any]) -> Iterator[Symptom]:
    """Locks of ours that a session holds outside of any transaction, and shouldn't."""
    for held in _held(connection):
        # A live holder of a job lock speaks thrice in a lease. A gate is never held outside a transaction.
        if not held.is_idle or (held.lock == "job lock" and held.silent < held.lease_ttl):
            continue
        effect = "no activation passes" if held.lock == "gate" else "the job can't run"
        yield fault(
            f"the {held.lock} of {held.resource} is held by an idle session, pid {held.pid} ({held.who}), silent for "
            f"{held.silent.total_seconds():,.0f} s: {effect} while it lives",
            f"select pg_terminate_backend({held.pid}); then find what takes session locks over a pool",
        )


def prepared_transactions(connection: Connection[Any]) -> Iterator[Symptom]:
    """Prepared transactions that hold a gate or a job lock: nothing ends them but a person."""
    for held in _held(connection):
        if held.gid is None:
            continue
        name = "'" + held.gid.replace("'", "''") + "'"
        yield fault(
            f"prepared transaction {held.gid} of {held.owner}, since {held.prepared:%Y-%m-%d %H:%M:%S}, holds the "
            f"{held.lock} of {held.resource}: no activation passes",
            f"commit prepared {name} or rollback prepared {name}, as its coordinator decides",
        )


def old_workers(connection: Connection[Any]) -> Iterator[Symptom]:
    """Sessions of another release, known by their application_name: ledger/0.1.0."""
    rows = connection.execute(
        "select application_name, count(*), array_agg(pid order by pid) from pg_stat_activity "
        "where datname = current_database() and application_name ~ '^ledger/[0-9]' group by 1 order by 1"
    ).fetchall()
    for name, count, pids in rows:
        version = str(name).removeprefix("ledger/").split()[0]
        where = f"{count} session{'s' if count > 1 else ''} of release {version} (pid {', '.join(map(str, pids))})"
        if _numbers(version) < _numbers(__version__):
            yield fault(f"{where}; this is {__version__}", "Restart those workers on the new release")
        elif version != __version__:
            yield note(f"{where}; this is {__version__}", "Ask the newer release's own doctor")


def _held(connection: Connection[Any]) -> list[Any]:
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(HELD).fetchall()


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)][:3]


def _pid(connection: Connection[Any]) -> int:
    row = connection.execute("select pg_backend_pid()").fetchone()
    return 0 if row is None else int(row[0])


def _keeps_transactions(connect: Callable[[], Connection[Any]]) -> bool:
    try:
        with connect() as connection, connection.transaction():
            connection.execute("select 1")
    except psycopg.Error:
        return False
    return True
