"""The servers of a run, started when first asked for, and databases in them that last as long as a block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import psycopg
from psycopg import sql

from ledger import dev, schema
from ledger.client import Ledger

TEMPLATE = "ledger"
# No checkpoint and no autovacuum by the clock may fall into one variant's turn and not into the other's.
SETTINGS = {
    "shared_buffers": "512MB",
    "min_wal_size": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "log_min_messages": "fatal",
}
HOLDER = "bench/1/aaaaaaaaaaaaaaaa"


@dataclass(frozen=True, slots=True)
class Database:
    """A database with the schema in it. `worker` is what an application connects with."""

    name: str
    worker: str
    operator: str
    admin: str


class Pair:
    """A Postgres and a Valkey. Databases are clones of a template."""

    def __init__(self, servers: dev.Servers) -> None:
        self._servers = servers
        self._numbers = itertools.count(1)
        servers.prepare(TEMPLATE)
        schema.upgrade(servers.dsn(dbname=TEMPLATE))

    @property
    def redis_url(self) -> str:
        """Its Valkey."""
        return self._servers.redis_url

    @property
    def redis_pid(self) -> int:
        """The process of its Valkey."""
        pid = self._servers.redis.pid
        assert pid is not None
        return pid

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A fresh database for the length of a block."""
        name = f"bench_{next(self._numbers)}"
        with psycopg.connect(self._servers.dsn("postgres", "postgres"), autocommit=True) as postgres:
            names = {"name": sql.Identifier(name), "template": sql.Identifier(TEMPLATE)}
            postgres.execute(sql.SQL("create database {name} template {template} owner ledger_admin").format(**names))
            try:
                yield Database(
                    name,
                    self._servers.dsn("ledger_worker", name),
                    self._servers.dsn("ledger_operator", name),
                    self._servers.dsn("postgres", name),
                )
            finally:
                postgres.execute(sql.SQL("drop database {name} with (force)").format(**names))


class Servers:
    """The servers of a run; `with Servers(...)` takes them away again."""

    def __init__(self, pg: str = "18") -> None:
        self.pg = pg
        self._started = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._started.close()

    @cached_property
    def fast(self) -> Pair:
        """Without fsync, in memory where there is enough: for what is about CPU."""
        return Pair(self._started.enter_context(dev.temporary(self.pg, settings=SETTINGS)))

    @cached_property
    def durable(self) -> Pair:
        """With fsync, on a disk."""
        return Pair(self._started.enter_context(dev.temporary(self.pg, on_disk=True, settings=SETTINGS)))

    @cached_property
    def large(self) -> Pair:
        """Without fsync, on a disk: for more than memory should hold."""
        # With the smallest WAL level, what is loaded into a new table isn't written twice.
        unlogged = {"wal_level": "minimal", "max_wal_senders": "0"}
        settings = {**SETTINGS, "fsync": "off", "full_page_writes": "off", **unlogged}
        return Pair(self._started.enter_context(dev.temporary(self.pg, on_disk=True, settings=settings)))


def numbered(first: int, last: int) -> list[str]:
    """Ids of refunds, in order."""
    return [f"r_{number:08}" for number in range(first, last)]


def load(ledger: Ledger, merchant_id: str, refund_ids: list[str]) -> None:
    """Add refunds, pending."""
    for start in range(0, len(refund_ids), 1000):
        some = refund_ids[start : start + 1000]
        refs = [f"pay_{refund_id}" for refund_id in some]
        ledger.add_refunds(merchant_id, some, [7025] * len(some), ["EUR"] * len(some), refs)


def activated(ledger: Ledger, merchant_id: str) -> int:
    """A token that is the merchant's active one."""
    resource = f"settle:{merchant_id}"
    token = ledger.draw_token(resource)
    ledger.activate_token(resource, token, HOLDER)
    return token
