"""The database server: revision, durability, vacuum, indexes, roles, the timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from psycopg import Connection

from ledger import schema
from ledger.doctor.symptom import Symptom, fault, note

ENOUGH_DEAD = 10_000
"""Dead rows, beyond twice what autovacuum waits for, that are worth a word."""

FAR = 1.0
"""Seconds between two clocks that are worth a word."""

COMMITS = """
    select 'synchronous_commit', setting, 'this session' from pg_settings where name = 'synchronous_commit'
    union
    select 'synchronous_commit', split_part(c, '=', 2),
        concat_ws(' in ', 'role ' || nullif(s.setrole, 0)::regrole::text, 'database ' || d.datname)
    from pg_db_role_setting as s
    cross join unnest(s.setconfig) as c
    left join pg_database as d on d.oid = s.setdatabase
    where c like 'synchronous_commit=%' and (s.setdatabase = 0 or d.datname = current_database())
"""

PASSING = """
    select c.rolname, o.rolname
    from pg_roles as c
    join pg_roles as o on pg_has_role(c.oid, o.oid, 'member')
    where c.rolname in ('ledger_worker', 'ledger_operator', 'ledger_reader')
        and o.rolname in ('ledger_owner', 'ledger_fn')
        and not c.rolsuper
    order by 1, 2
"""

BEHIND = """
    select s.relid::regclass::text, s.n_dead_tup, w.waits_for
    from pg_stat_all_tables as s
    join pg_class as c on c.oid = s.relid
    cross join lateral (
        select
            coalesce(
                (select option_value from pg_options_to_table(c.reloptions)
                    where option_name = 'autovacuum_vacuum_threshold'),
                current_setting('autovacuum_vacuum_threshold')
            )::float8
            + coalesce(
                (select option_value from pg_options_to_table(c.reloptions)
                    where option_name = 'autovacuum_vacuum_scale_factor'),
                current_setting('autovacuum_vacuum_scale_factor')
            )::float8 * greatest(c.reltuples, 0) as waits_for
    ) as w
    where s.schemaname = 'ledger' and s.n_dead_tup > 2 * w.waits_for + %s
    order by 1
"""


def schema_revision(connection: Connection[Any]) -> Iterator[Symptom]:
    """The schema is there, at the revision that this release needs."""
    current, needed = schema.current(connection), schema.head()
    if current is None:
        yield fault("there is no schema ledger", "ledger db upgrade, or give your DBA the output of ledger db sql")
    elif current != needed and current in schema.revisions():
        yield fault(f"the schema is at {current}, this release needs {needed}", f"ledger db sql {current}:{needed}")
    elif current != needed:
        yield fault(f"the schema is at {current}, which this release doesn't know", "Upgrade the ledger here")


def durability(connection: Connection[Any]) -> Iterator[Symptom]:
    """What was committed outlives a crash."""
    for name in ("fsync", "full_page_writes"):
        if _setting(connection, name) == "off":
            yield fault(
                f"{name} is off: after a crash of the machine tokens may be handed out twice",
                f"alter system set {name} = on; select pg_reload_conf()",
            )
    for name, value, where in connection.execute(COMMITS).fetchall():
        if value in ("off", "local"):
            yield note(
                f"{name} is {value} for {where}: the ledger raises it for its own calls, but what else is committed "
                "then may be lost in a crash or a failover",
                f"set {name} = on where writes to protected tables must last",
            )


def autovacuum_is_on(connection: Connection[Any]) -> Iterator[Symptom]:
    """Autovacuum runs at all."""
    for name in ("autovacuum", "track_counts"):
        if _setting(connection, name) == "off":
            yield fault(
                f"{name} is off: the tables grow without end", f"alter system set {name} = on; select pg_reload_conf()"
            )


def autovacuum_is_behind(connection: Connection[Any]) -> Iterator[Symptom]:
    """Dead rows are removed about as fast as they are made."""
    for table, dead, waits_for in connection.execute(BEHIND, [ENOUGH_DEAD]).fetchall():
        yield fault(
            f"{table} has {dead:,} dead rows; autovacuum should have come at {waits_for:,.0f}",
            f"vacuum (analyze) {table}; then look for what holds it back: old transactions, replication slots, "
            "too few workers (docs/sizes.md)",
        )


def invalid_indexes(connection: Connection[Any]) -> Iterator[Symptom]:
    """Every index is used."""
    rows = connection.execute(
        "select i.indexrelid::regclass::text from pg_index as i join pg_class as c on c.oid = i.indexrelid "
        "where c.relnamespace = 'ledger'::regnamespace and not (i.indisvalid and i.indisready) order by 1"
    ).fetchall()
    for (index,) in rows:
        yield fault(f"index {index} is invalid", f"reindex index concurrently {index}")


def roles(connection: Connection[Any]) -> Iterator[Symptom]:
    """Nobody can log in as the roles that own the schema and may write, and no role of callers can become one."""
    rows = connection.execute(
        "select rolname, rolcanlogin, rolsuper from pg_roles where rolname in ('ledger_owner', 'ledger_fn') order by 1"
    ).fetchall()
    for name, can_login, is_super in rows:
        if can_login:
            yield fault(f"{name} can log in, and would pass every guard", f"alter role {name} nologin")
        if is_super:
            yield fault(f"{name} is a superuser", f"alter role {name} nosuperuser")
    for caller, owner in connection.execute(PASSING).fetchall():
        yield fault(f"{caller} is a member of {owner}, and passes every guard", f"revoke {owner} from {caller}")


def server_is_known(connection: Connection[Any]) -> Iterator[Symptom]:
    """This is the server that handed the tokens out."""
    row = connection.execute("select value from ledger.metrics where name = 'ledger_server_known'").fetchone()
    if row is None:
        yield note("this is a standby: it takes no writes, and some checks see less here", "Examine the primary too")
    elif not row[0]:
        yield fault(
            "this server was promoted or restored: every call with a token is refused (LG106)",
            "select ledger.recover_failover(actor => ..., reason => ...); docs/errors.md, LG106, says what it does",
        )


def ending_frozen_clients(connection: Connection[Any]) -> Iterator[Symptom]:
    """An activation may end the session of a client that is frozen inside a COPY, a pipeline or a large result."""
    rows = connection.execute(
        "select r.name from unnest(array['pg_signal_backend', 'pg_read_all_stats']) as r (name) "
        "where not pg_has_role('ledger_fn', r.name, 'usage') order by 1"
    ).fetchall()
    for (name,) in rows:
        yield note(
            f"ledger_fn has no {name}: a client frozen inside a COPY, a pipeline or a large result is named, not ended",
            f"grant {name} to ledger_fn, where that is wanted",
        )


def clock_distance(connection: Connection[Any], clock: Callable[[], float]) -> Iterator[Symptom]:
    """Postgres' clock and this machine's tell about the same time."""
    before = clock()
    row = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
    if row is not None:
        yield from distance("Postgres", row[0], before, clock())


def distance(whose: str, told: float, before: float, after: float) -> Iterator[Symptom]:
    """Whether a clock that was read between two looks at ours is far from it."""
    apart = max(before - told, told - after, 0.0)
    if apart > FAR:
        yield note(
            f"the clock of {whose} and this machine's are {apart:,.1f} s apart: no decision depends on it, but logs "
            "don't line up",
            "Look at the time synchronisation of both",
        )


def _setting(connection: Connection[Any], name: str) -> str:
    row = connection.execute("select current_setting(%s)", [name]).fetchone()
    return "" if row is None else str(row[0])
