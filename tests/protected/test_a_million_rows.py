"""A table of a million rows that others write to: protected, watched, enforced and unprotected under their feet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.protected.tables import KIND, would_be
from tests.story import ALICE, Connection, until

# What docs/protected-tables.md promises: a lock is waited for two seconds at most, and a writer waits behind it. The
# change itself takes milliseconds, on a machine that isn't busy with other tests.
BOUND = 2.0 + 3.0


class Writer:
    """Updates row after row, each in its own transaction, as an application does; notes how long each one took."""

    def __init__(self, connection: Connection, job: str | None) -> None:
        self.connection = connection
        self.job = job
        self.written = 0
        self.slowest = 0.0
        self.failures: list[psycopg.Error] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stopped.is_set():
            begun = time.monotonic()
            try:
                self.write()
                self.written += 1
            except psycopg.Error as failure:
                self.failures.append(failure)
            self.slowest = max(self.slowest, time.monotonic() - begun)

    def write(self) -> None:
        with self.connection.transaction():
            if self.job:
                Ledger(self.connection).lock_job(self.job, ALICE)
            self.connection.execute(
                "update charge set amount = amount + 1 where id = %s", [self.written % 1000 * 100 + 1]
            )


@pytest.fixture
def writer(connection: Connection, admin: Connection, connect: Connect) -> Iterator[Writer]:
    admin.execute("grant create on schema public to ledger_worker")
    connection.execute("create table charge (id integer primary key, org_id text, amount integer default 0)")
    connection.execute("insert into charge select n, 'org_' || n % 100 from generate_series(1, 1000000) as n")
    writer = Writer(connect(), "charges:org_1")
    writer.thread.start()
    yield writer
    writer.stopped.set()
    writer.thread.join()


def some_more(writer: Writer) -> None:
    enough = writer.written + 50
    until(lambda: writer.written >= enough or writer.failures, within=30)


@pytest.mark.heavy
@pytest.mark.timeout(180)
def test_a_table_of_a_million_rows_is_taken_through_every_mode_while_it_is_written(
    writer: Writer, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    some_more(writer)
    relfilenode = admin.execute("select pg_relation_filenode('charge')").fetchone()

    operators.set_mode(KIND, "shadow", actor="carol", reason="roll-out")
    begun = time.monotonic()
    ledger.protect_table("charge", kind=KIND, column_name="org_id", stamp=True)
    assert time.monotonic() - begun < BOUND
    some_more(writer)

    operators.set_mode(KIND, "enforce", actor="carol", reason="nothing would have been refused")
    some_more(writer)
    with pytest.raises(psycopg.Error) as refusal:
        admin.execute("update charge set amount = 0 where id = 1")
    assert refusal.value.sqlstate == "LG103"

    begun = time.monotonic()
    ledger.unprotect_table("charge")
    assert time.monotonic() - begun < BOUND
    some_more(writer)
    writer.stopped.set()
    writer.thread.join()

    assert writer.failures == []
    assert writer.slowest < BOUND
    assert would_be(admin) == []
    assert admin.execute("select pg_relation_filenode('charge')").fetchone() == relfilenode
    assert ledger.verify() == []
