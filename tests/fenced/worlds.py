"""The ways in which people write to their tables: each opens a transaction, and adds a charge in its own manner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from django.db import connections, transaction
from sqlalchemy import Engine, NullPool, create_engine, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from tests.fenced import django_app

INSERT = "insert into charge (org_id, amount) values (%s, %s)"
ALIAS = "charges"

Add = Callable[..., Any]


class Base(DeclarativeBase):
    """SQLAlchemy's."""


class Charge(Base):
    """A charge to an organisation."""

    __tablename__ = "charge"

    charge_id: Mapped[int] = mapped_column(primary_key=True)
    org_id: Mapped[str]
    amount: Mapped[int]


def url(dsn: str, driver: str) -> str:
    """A dsn in the words of SQLAlchemy."""
    return dsn.replace("postgresql:", f"postgresql+{driver}:")


# Blocking worlds: the db to hand to `fenced`, inside an open transaction, and how a charge is added.


@contextmanager
def psycopg_connection(dsn: str) -> Iterator[tuple[Any, Add]]:
    with psycopg.connect(dsn) as connection:
        yield connection, lambda org, amount=1: connection.execute(INSERT, [org, amount])


@contextmanager
def psycopg_transaction(dsn: str) -> Iterator[tuple[Any, Add]]:
    with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction():
        yield connection, lambda org, amount=1: connection.execute(INSERT, [org, amount])


@contextmanager
def sqlalchemy_session(dsn: str) -> Iterator[tuple[Any, Add]]:
    def add(org: str, amount: int = 1) -> None:
        session.add(Charge(org_id=org, amount=amount))
        session.flush()

    with _engine(dsn) as engine, Session(engine) as session, session.begin():
        yield session, add


@contextmanager
def sqlalchemy_scoped_session(dsn: str) -> Iterator[tuple[Any, Add]]:
    with _engine(dsn) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            with session.begin():
                yield session, lambda org, amount=1: session.execute(insert(Charge).values(org_id=org, amount=amount))
        finally:
            session.remove()


@contextmanager
def sqlalchemy_connection(dsn: str) -> Iterator[tuple[Any, Add]]:
    with _engine(dsn) as engine, engine.begin() as connection:
        yield connection, lambda org, amount=1: connection.execute(insert(Charge).values(org_id=org, amount=amount))


@contextmanager
def django_alias(dsn: str) -> Iterator[tuple[Any, Add]]:
    with django_database(dsn), transaction.atomic(ALIAS):
        yield ALIAS, lambda org, amount=1: django_app.Charge.objects.using(ALIAS).create(org_id=org, amount=amount)


@contextmanager
def django_database(dsn: str) -> Iterator[None]:
    """The database under its alias, for the length of a block."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    described = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "HOST": query["host"][0],
        "PORT": query["port"][0],
    }
    connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: described})[ALIAS]
    try:
        yield
    finally:
        connections[ALIAS].close()
        del connections[ALIAS], connections.settings[ALIAS]


@contextmanager
def _engine(dsn: str) -> Iterator[Engine]:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    yield engine
    engine.dispose()


WORLDS = [
    psycopg_connection,
    psycopg_transaction,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
    sqlalchemy_connection,
    django_alias,
]


# The same for asyncio; adding a charge is awaited.


@asynccontextmanager
async def async_psycopg(dsn: str) -> AsyncIterator[tuple[Any, Add]]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield connection, lambda org, amount=1: connection.execute(INSERT, [org, amount])


@asynccontextmanager
async def async_sqlalchemy_over_psycopg(dsn: str) -> AsyncIterator[tuple[Any, Add]]:
    async with _async_session(dsn, "psycopg") as (session, add):
        yield session, add


@asynccontextmanager
async def async_sqlalchemy_over_asyncpg(dsn: str) -> AsyncIterator[tuple[Any, Add]]:
    async with _async_session(dsn, "asyncpg") as (session, add):
        yield session, add


@asynccontextmanager
async def async_sqlalchemy_connection_over_asyncpg(dsn: str) -> AsyncIterator[tuple[Any, Add]]:
    async with _async_engine(dsn, "asyncpg") as engine, engine.begin() as connection:
        yield connection, lambda org, amount=1: connection.execute(insert(Charge).values(org_id=org, amount=amount))


@asynccontextmanager
async def _async_session(dsn: str, driver: str) -> AsyncIterator[tuple[Any, Add]]:
    async def add(org: str, amount: int = 1) -> None:
        session.add(Charge(org_id=org, amount=amount))
        await session.flush()

    async with _async_engine(dsn, driver) as engine, AsyncSession(engine) as session, session.begin():
        yield session, add


@asynccontextmanager
async def _async_engine(dsn: str, driver: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url(dsn, driver), poolclass=NullPool)
    try:
        yield engine
    finally:
        await engine.dispose()


ASYNC_WORLDS = [
    async_psycopg,
    async_sqlalchemy_over_psycopg,
    async_sqlalchemy_over_asyncpg,
    async_sqlalchemy_connection_over_asyncpg,
]
