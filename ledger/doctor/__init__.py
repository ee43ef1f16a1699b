"""What is wrong with an installation, and how to mend it. Looks only; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import Connection
from psycopg.errors import InsufficientPrivilege

from ledger.doctor import drift, leases, server, sessions
from ledger.doctor.symptom import Level, Symptom, note

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["Diagnosis", "examine"]

Connect = Callable[[], "Connection[Any]"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a check found. `level`: `fault`, mend it; or `note`, know it."""

    check: str
    level: Level
    finding: str
    mend: str


# A schema that isn't the release's would be told of again by every check that asks it.
OF_ANY_DATABASE = (server.schema_revision, server.durability, server.autovacuum_is_on)
OF_THE_SCHEMA = (
    drift.drift,
    drift.public_grants,
    server.roles,
    server.server_is_known,
    server.invalid_indexes,
    server.autovacuum_is_behind,
    server.ending_frozen_clients,
    sessions.sight,
    sessions.session_holders,
    sessions.prepared_transactions,
    sessions.old_workers,
)
OF_REDIS = (leases.eviction, leases.persistence, leases.endless_leases)


def examine(
    connection: Connection[Any],
    *,
    connect: Connect | None = None,
    redis: Redis | None = None,
    clock: Callable[[], float] = time.time,
) -> list[Diagnosis]:
    """Every check that can be made, in order. `connection` is in autocommit.

    `connect` opens another connection of the same kind, to find out how a pooler shares them; `redis` is where the
    leases live, with `decode_responses`; `clock` is this machine's, in seconds. Raises what psycopg and redis raise
    when a server can't be reached.
    """
    found = [] if connect is None else _named("pooler", sessions.pooler(connection, connect))
    if any(diagnosis.level == "fault" for diagnosis in found):
        return found  # nothing that is asked through such a pooler can be believed
    found += _asked(OF_ANY_DATABASE, connection)
    found += _named("clock_distance", server.clock_distance(connection, clock))
    if not any(diagnosis.check == "schema_revision" for diagnosis in found):
        found += _asked(OF_THE_SCHEMA, connection)
        if redis is None:
            found += _named("redis", leases.not_looked_at(connection))
    if redis is not None:
        for check in OF_REDIS:
            found += _named(check.__name__, check(redis, connection))
        found += _named("clock_distance", leases.clock_distance(redis, clock))
    return found


def _asked(
    checks: Iterable[Callable[[Connection[Any]], Iterator[Symptom]]], connection: Connection[Any]
) -> Iterator[Diagnosis]:
    for check in checks:
        try:
            with connection.transaction():
                yield from _named(check.__name__, check(connection))
        except InsufficientPrivilege as denied:
            withheld = note(
                f"could not be looked at: {denied.diag.message_primary}", "Connect as a member of pg_monitor"
            )
            yield from _named(check.__name__, [withheld])


def _named(check: str, symptoms: Iterable[Symptom]) -> list[Diagnosis]:
    return [Diagnosis(check, *symptom) for symptom in symptoms]
