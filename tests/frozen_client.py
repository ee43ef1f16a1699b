"""A worker that gets stuck while it holds the gate, for tests to freeze with SIGSTOP.

Run as `python frozen_client.py WHERE DSN TOKEN`. It prints its session's pid, claims r_1 of m_1 in a transaction, goes
on to WHERE, says `ready` and waits there. When it is let go, by a line on stdin, it tries to commit and prints
`committed` or the SQLSTATE that it got instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import psycopg

CLAIM = "select (ledger.claim_refund('m_1', 'r_1', %s)).outcome"

Connection = psycopg.Connection[Any]


def stay() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def between_statements(connection: Connection, token: int) -> None:
    connection.execute(CLAIM, [token])
    stay()


def inside_copy(connection: Connection, token: int) -> None:
    connection.execute("create temporary table line (number integer) on commit drop")
    connection.execute(CLAIM, [token])
    with connection.cursor().copy("copy line from stdin") as copy:
        copy.write("1\n")
        stay()


def in_a_pipeline(connection: Connection, token: int) -> None:
    with connection.pipeline():
        connection.execute(CLAIM, [token]).fetchone()  # asks for a flush and sends no Sync
        stay()


def reading_a_large_result(connection: Connection, token: int) -> None:
    connection.execute(CLAIM, [token])
    # Sent and not read: the server fills the socket and waits.
    connection.pgconn.send_query(b"select repeat('x', 1000) from generate_series(1, 100000)")
    while connection.pgconn.flush():
        pass
    stay()
    while (result := connection.pgconn.get_result()) is not None:
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            sqlstate = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
            raise psycopg.errors.lookup(sqlstate.decode()) if sqlstate else psycopg.OperationalError


PLACES: dict[str, Callable[[Connection, int], None]] = {
    "between_statements": between_statements,
    "inside_copy": inside_copy,
    "in_a_pipeline": in_a_pipeline,
    "reading_a_large_result": reading_a_large_result,
}


def main(where: str, dsn: str, token: str) -> None:
    connection = psycopg.connect(dsn, application_name="frozen")
    sys.stdout.write(f"{connection.info.backend_pid}\n")
    try:
        PLACES[where](connection, int(token))
        connection.commit()
        sys.stdout.write("committed\n")
    except psycopg.Error as error:
        sys.stdout.write(f"{error.sqlstate or 'connection lost'}\n")
    finally:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
