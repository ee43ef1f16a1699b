"""Roles and a database, made the way a site's DBA would make them before the first migration."""

from __future__ import annotations

import psycopg
from psycopg import sql

MIGRATOR = "ledger_admin"
OWNERS = ("ledger_owner", "ledger_fn")
CALLERS = ("ledger_worker", "ledger_operator", "ledger_reader")


def prepare_database(superuser_dsn: str, database: str, password: str | None = None) -> None:
    """Create the roles and an empty database of the migrating role's, whichever of them are missing.

    The callers' roles may log in, which a site decides for itself. `password` is for those who come
    over TCP.
    """
    with psycopg.connect(superuser_dsn, autocommit=True) as connection:
        _make_roles(connection, password)
        if not _exists(connection, "pg_database", "datname", database):
            connection.execute(
                sql.SQL("create database {} owner {}").format(
                    sql.Identifier(database), sql.Identifier(MIGRATOR)
                )
            )


def _make_roles(connection: psycopg.Connection, password: str | None) -> None:
    for role in (MIGRATOR, *OWNERS, *CALLERS):
        if not _exists(connection, "pg_roles", "rolname", role):
            connection.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    connection.execute(sql.SQL("alter role {} login createrole").format(sql.Identifier(MIGRATOR)))
    for role in CALLERS:
        connection.execute(sql.SQL("alter role {} login").format(sql.Identifier(role)))
    for role in (*OWNERS, *CALLERS):
        connection.execute(_membership(connection, role))
    connection.execute("grant pg_signal_backend, pg_read_all_stats to ledger_fn")
    if password is not None:
        for role in (MIGRATOR, *CALLERS):
            connection.execute(
                sql.SQL("alter role {} password {}").format(sql.Identifier(role), sql.Literal(password))
            )


def _membership(connection: psycopg.Connection, role: str) -> sql.Composed:
    # Before 16 every member may switch to the role, and inherits by its own attribute.
    options = " with set true, inherit true" if connection.info.server_version >= 160000 else ""
    return sql.SQL("grant {} to {}" + options).format(sql.Identifier(role), sql.Identifier(MIGRATOR))


def _exists(connection: psycopg.Connection, catalog: str, column: str, name: str) -> bool:
    query = sql.SQL("select from {} where {} = %s").format(sql.Identifier(catalog), sql.Identifier(column))
    return connection.execute(query, [name]).fetchone() is not None
