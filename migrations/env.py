"""Runs the revisions, online or as text. The text comes from sql/, which is what a DBA reads."""

from __future__ import annotations

import os

import psycopg
from alembic import context
from sqlalchemy import create_engine, pool, text

from ledger import schema
from ledger.revision import escaped, statement

config = context.config

OPTIONS = {
    "version_table": schema.VERSION_TABLE,
    "version_table_schema": schema.VERSION_SCHEMA,
    "target_metadata": None,
    # One transaction a revision online; a text runs in one as a whole.
    "transaction_per_migration": True,
}

# Two upgrades at once: the second waits here, finds nothing to do and ends.
ONE_AT_A_TIME = "select pg_advisory_lock(hashtextextended('ledger.schema_version', 3))"

IS_INSTALLED = text("select to_regclass('ledger.schema_version') is not null")
NOWHERE = "nowhere"

HOME_UP = statement(schema.SQL / "schema" / "home.sql")
HOME_DOWN = statement(schema.SQL / "schema" / "home.down.sql")


def destination() -> str | None:
    """The revision that the command goes to, None for base, or `nowhere` for one that only asks."""
    try:
        return context.get_revision_argument()
    except KeyError:
        return NOWHERE


def offline() -> None:
    # Without "named", every % in a function body would come out doubled.
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        output_buffer=config.output_buffer,
        transactional_ddl=False,  # no BEGIN and COMMIT of its own: psql -1 has them
        **OPTIONS,
    )
    start = context.get_starting_revision_argument()
    going_down_to_base = destination() is None
    with context.begin_transaction():
        context.execute(escaped(schema.beginning(start)))
        if not going_down_to_base and not start:
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
        is_installed = connection.scalar(IS_INSTALLED)
        connection.rollback()
        going_down_to_base = destination() is None
        if going_down_to_base and not is_installed:
            return

        context.configure(connection=connection, **OPTIONS)
        if destination() not in (None, NOWHERE):
            # After configure: so it belongs to the first revision's transaction, and goes with it if that fails.
            connection.execute(HOME_UP)
        with context.begin_transaction():
            context.run_migrations()
        if going_down_to_base:
            connection.execute(HOME_DOWN)
            connection.commit()


if context.is_offline_mode():
    offline()
else:
    online()
