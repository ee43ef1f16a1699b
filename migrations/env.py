"""Runs the revisions, online or as text. The text comes from sql/, which is what a DBA reads."""

from __future__ import annotations

import os

import psycopg
from alembic import context
from sqlalchemy import create_engine, pool

from ledger import schema
from ledger.revision import statement

config = context.config

OPTIONS = {
    "version_table": schema.VERSION_TABLE,
    "version_table_schema": schema.VERSION_SCHEMA,
    "target_metadata": None,
    # One transaction a revision, online and offline.
    "transaction_per_migration": True,
}

# Two upgrades at once: the second waits here, finds nothing to do and ends.
ONE_AT_A_TIME = "select pg_advisory_lock(hashtextextended('ledger.schema_version', 3))"


HOME_UP = statement(schema.SQL / "schema" / "home.sql")
HOME_DOWN = statement(schema.SQL / "schema" / "home.down.sql")


def offline() -> None:
    # Without "named", every % in a function body would come out doubled.
    context.configure(
        dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, output_buffer=config.output_buffer, **OPTIONS
    )
    going_down_to_base = context.get_revision_argument() in (None, "base")
    with context.begin_transaction():
        if not going_down_to_base and not context.get_starting_revision_argument():
            context.execute(HOME_UP)
        context.run_migrations()
        if going_down_to_base:
            context.execute(HOME_DOWN)


def connect() -> psycopg.Connection:
    dsn = config.attributes.get("dsn") or os.environ.get("LEDGER_DSN", "")
    connection = psycopg.connect(dsn, application_name="ledger-migrate", autocommit=True)
    connection.execute(ONE_AT_A_TIME)
    if config.attributes.get("discard"):
        connection.execute("set ledger.discard = 'on'")
    connection.autocommit = False
    return connection


def online() -> None:
    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=pool.NullPool)
    with engine.connect() as connection:
        going_down = context.get_revision_argument() in (None, "base")
        if not going_down:
            connection.execute(HOME_UP)
            connection.commit()
        context.configure(connection=connection, **OPTIONS)
        with context.begin_transaction():
            context.run_migrations()
        if going_down:
            connection.execute(HOME_DOWN)
            connection.commit()


if context.is_offline_mode():
    offline()
else:
    online()
