"""Where it happens: a database of its own that is dropped afterwards, and a Redis that may be harmed or not."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import psycopg
import redis
from psycopg import sql
from psycopg.conninfo import make_conninfo
from redis.backoff import NoBackoff
from redis.retry import Retry

from ledger import dev, schema
from ledger.client import Ledger
from ledger.dev.valkey import Valkey
from ledger.errors import LeaseUnreachable
from ledger.reproduce.guards import keys

ROLES = ("ledger_owner", "ledger_fn", "ledger_worker", "ledger_operator", "ledger_reader")
IDLE_LIMIT = timedelta(seconds=0.5)

# What the half-measures write to; the ledger has tables of its own.
TABLE = """
    create schema reproduce;
    create table reproduce.refund (
        merchant_id text not null,
        refund_id text not null,
        amount_minor bigint not null,
        currency text not null,
        state text not null default 'pending',
        fence bigint not null default 0,
        gateway_ref text,
        primary key (merchant_id, refund_id)
    );
"""

Say = Callable[[str], None]


class Unfit(Exception):
    """This Postgres or Redis can't be used, or not for this. Nothing was changed."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class OwnRedis:
    """A Redis that only this run uses, so that it may be wiped and killed."""

    server: Valkey

    @property
    def url(self) -> str:
        """Where it is."""
        return f"unix://{self.server.socket}"


@dataclass(frozen=True, slots=True)
class Place:
    """A database with the ledger and the half-measures' table, and a Redis.

    `servers` are the embedded ones; None where Redis is somebody's, which is never wiped or stopped.
    """

    dsn: str
    redis_url: str
    servers: dev.Servers | None = None

    def lacks(self, fault: str) -> str | None:
        """Why a fault can't be had here, or None."""
        if self.servers is not None:
            return None
        if fault == "redis-restart":
            return "a Redis that isn't ours is never stopped; give --embedded"
        if fault == "partition" and self.redis_url.startswith("rediss://"):
            return "the partition passes plain connections on, and this Redis wants TLS; give --embedded"
        return None

    @contextmanager
    def redis_for(self, merchant_id: str, fault: str) -> Iterator[tuple[str, OwnRedis | None]]:
        """The Redis of one run: one of its own where that is ours to harm."""
        if self.servers is None or not fault.startswith("redis-"):
            try:
                yield self.redis_url, None
            finally:
                with redis.Redis.from_url(self.redis_url) as client:
                    client.delete(*keys(merchant_id))
            return
        folder = self.servers.home / merchant_id
        folder.mkdir(mode=0o700)
        self.servers.redis.account.own(folder)
        server = replace(self.servers.redis, folder=folder, socket=self.servers.sockets / f"{merchant_id}.sock")
        server.start()
        try:
            own = OwnRedis(server)
            yield own.url, own
        finally:
            server.kill()


@contextmanager
def embedded(pg: str) -> Iterator[Place]:
    """Servers that are gone at the end. Raises DevError when one doesn't start."""
    with dev.temporary(pg) as servers:
        servers.prepare()
        dsn = servers.dsn()
        schema.upgrade(dsn)
        furnish(dsn)
        yield Place(dsn, servers.redis_url, servers)


@contextmanager
def yours(dsn: str, redis_url: str, say: Say) -> Iterator[Place]:
    """Somebody's servers: a database of its own on that Postgres, keys of its own in that Redis; both go at the end.

    Raises Unfit where no database can be made or the ledger can't be installed in it, and LeaseUnreachable where Redis
    gives no answer.
    """
    redis_url = _answering(redis_url)
    name = f"ledger_reproduce_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        found = _roles(admin)
        try:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise Unfit(
                f"a database of its own is needed, and {admin.info.user} may not make one: "
                f"{error.diag.message_primary}. Nothing was changed",
                "Give --dsn of a user with CREATEDB, or --embedded for servers of its own",
            ) from None
        say(f"database {name} is made for this, and dropped at the end")
        try:
            inside = make_conninfo(dsn, dbname=name)
            _install(inside)
            furnish(inside)
            yield Place(inside, redis_url)
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
            for role in _roles(admin) - found:
                # Somebody may have come to need it meanwhile.
                with suppress(psycopg.errors.DependentObjectsStillExist):
                    admin.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(role)))
            say(f"database {name} is dropped")


def _install(dsn: str) -> None:
    try:
        schema.upgrade(dsn)
    except Exception as error:  # a migration's errors come wrapped
        refused = getattr(error, "orig", error)
        if not isinstance(refused, psycopg.errors.InsufficientPrivilege):
            raise
        raise Unfit(
            f"the ledger can't be installed in a database of its own: {refused.diag.message_primary}",
            "Give --dsn of a user who may install it (docs/dba.md), or --embedded for servers of its own",
        ) from None


def _answering(url: str) -> str:
    """The URL in the words of redis-py, once the server there has answered."""
    for other, usual in (("valkey+unix://", "unix://"), ("valkey://", "redis://"), ("valkeys://", "rediss://")):
        url = usual + url.removeprefix(other) if url.startswith(other) else url
    try:
        with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=10) as client:
            client.ping()
    except redis.RedisError as error:
        raise LeaseUnreachable(
            f"Redis can't be used: {error}. Nothing was changed", {}, "Check --redis, or give --embedded"
        ) from None
    return url


def _roles(admin: psycopg.Connection) -> set[str]:
    """The ledger's roles that are there."""
    found = admin.execute("select rolname from pg_roles where rolname = any(%s)", (list(ROLES),)).fetchall()
    return {name for (name,) in found}


def furnish(dsn: str) -> None:
    """What is needed beside the ledger itself."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        Ledger(connection).set_kind("settle", idle_limit=IDLE_LIMIT, actor="reproduce", reason="short leases")
