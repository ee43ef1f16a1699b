"""Logical replication into a protected table: a real publication, subscription and applier."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ledger import dev, schema
from ledger.client import Ledger
from tests.protected.tables import KIND, ORG_1, mode
from tests.story import Connection, until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def replicating(pytestconfig: pytest.Config) -> Iterator[dev.Servers]:
    """A server of its own: wal_level can't be changed on the one that tests share."""
    settings = {"wal_level": "logical", "wal_retrieve_retry_interval": "100ms"}
    with dev.temporary(pytestconfig.getoption("pg"), settings=settings) as servers:
        servers.prepare("source")
        servers.prepare("target")
        schema.upgrade(servers.dsn("ledger_admin", "target"))
        yield servers


@pytest.fixture
def source(replicating: dev.Servers) -> Iterator[Connection]:
    with psycopg.connect(replicating.dsn("postgres", "source"), autocommit=True) as connection:
        connection.execute("create table charge (id integer primary key, org_id text, amount integer default 0)")
        connection.execute("create publication charges for table charge")
        connection.execute("select pg_create_logical_replication_slot('charges', 'pgoutput')")
        yield connection
        connection.execute("drop publication charges; drop table charge")


@pytest.fixture
def target(replicating: dev.Servers, source: Connection) -> Iterator[Connection]:
    """The same table, protected, and a subscription to the source's."""
    with psycopg.connect(replicating.dsn("postgres", "target"), autocommit=True) as connection:
        connection.execute("create table charge (id integer primary key, org_id text, amount integer default 0)")
        Ledger(connection).protect_table("charge", kind=KIND, column_name="org_id")
        connection.execute(
            f"create subscription charges connection '{replicating.dsn('postgres', 'source')}' publication charges "
            "with (create_slot = false, slot_name = 'charges', copy_data = false)"
        )
        yield connection
        connection.execute("alter subscription charges disable")
        connection.execute("drop subscription charges")
        Ledger(connection).unprotect_table("charge")
        connection.execute("drop table charge")


@pytest.fixture
def operators(replicating: dev.Servers) -> Iterator[Ledger]:
    with psycopg.connect(replicating.dsn("ledger_operator", "target"), autocommit=True) as connection:
        yield Ledger(connection)


def failures(target: Connection) -> int:
    row = target.execute("select apply_error_count from pg_stat_subscription_stats").fetchone()
    return row[0] if row else 0


def test_an_applier_is_refused_like_anybody_and_goes_on_where_the_fence_is_off(
    source: Connection, target: Connection, operators: Ledger
) -> None:
    source.execute("insert into charge values (1, 'org_1'), (2, 'org_1')")
    until(lambda: failures(target) > 0, within=30)
    assert target.execute("select * from charge").fetchall() == []

    mode(operators, "shadow")
    until(lambda: target.execute("select id from charge").fetchall(), within=30)
    source.execute("update charge set amount = 5 where id = 1")
    source.execute("delete from charge where id = 2")
    until(lambda: target.execute("select * from charge").fetchall() == [(1, "org_1", 5)], within=30)
    recorded = target.execute(
        "select distinct resource, code, function from ledger.refusal where mode = 'shadow'"
    ).fetchall()
    assert recorded == [(ORG_1, "LG103", "check_row")]

    mode(operators, "enforce")
    before = failures(target)
    source.execute("truncate charge")
    until(lambda: failures(target) > before, within=30)
    assert target.execute("select * from charge").fetchall() == [(1, "org_1", 5)]
    mode(operators, "off")
    until(lambda: target.execute("select * from charge").fetchall() == [], within=30)
