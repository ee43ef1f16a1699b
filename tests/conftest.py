"""Real servers for every test: one Postgres and one Valkey per test process, a fresh database per test."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import redis
from psycopg import sql
from pytest_postgresql import factories
from pytest_postgresql.executors import NoopExecutor

from ledger import dev
from ledger.client import Ledger
from tests import canary, elsewhere
from tests.dba.pgbouncer import PGBOUNCER, behind, pgbouncer

EMPTY = "ledger_empty"
SETTINGS = {"plpgsql.extra_errors": "all", "deadlock_timeout": "200ms"}

Connect = Callable[..., "psycopg.Connection[Any]"]


def pytest_configure() -> None:
    """Hear Ctrl-C and a hang-up, and let children hear them, also where a shell runs the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pg", default="18", help="major version of the Postgres to test on")
    parser.addoption("--redis-server", default=None, help="server program in place of the wheel's Valkey")
    elsewhere.add_options(parser)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what can't be tested from where the tests are."""
    elsewhere.leave_out(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """A test that printed or logged the password has failed, whatever else it shows."""
    report: pytest.TestReport = yield
    if report.passed and any(canary.CANARY in text for _, text in report.sections):
        report.outcome, report.longrepr = "failed", "the password that the suite gives was printed or logged"
    return report


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Iterator[dev.Servers]:
    """The pair of servers of this test process. A test may crash them; the next one finds them up."""
    pg, program = pytestconfig.getoption("pg"), pytestconfig.getoption("redis_server")
    with dev.temporary(pg, redis=program, settings=SETTINGS) as pair:
        yield pair
        for log in pair.folder.rglob("*.log"):
            assert canary.CANARY not in log.read_text(errors="replace"), f"{log.name} has the password"


@pytest.fixture(scope="session")
def cluster(servers: dev.Servers, pytestconfig: pytest.Config) -> NoopExecutor:
    """The servers in the words of pytest-postgresql, with a database to start a template from: empty, or restored."""
    base = NoopExecutor(
        host=str(servers.sockets), port=servers.postgres.port, user="postgres", options="", dbname=EMPTY
    )
    servers.prepare(base.template_dbname)
    if pytestconfig.getoption("restored"):
        elsewhere.restore_from_elsewhere(servers, base.template_dbname)
    return base


def load_schema(*, host: str, port: int, dbname: str, **_: Any) -> None:
    """Bring the template to the newest revision, as the role that a site would use."""
    from ledger import schema

    give_to_migrator(host, port, dbname)
    schema.upgrade(f"postgresql://ledger_admin@/{dbname}?host={host}&port={port}")


def give_to_migrator(host: str, port: int, dbname: str) -> None:
    """A clone belongs to whoever made it, and not to the owner of its template."""
    with psycopg.connect(host=host, port=port, user="postgres", dbname=dbname, autocommit=True) as owner:
        owner.execute(sql.SQL("alter database {} owner to ledger_admin").format(sql.Identifier(dbname)))


migrated_template = factories.postgresql_noproc(depends_on="cluster", dbname="ledger", load=[load_schema])
migrated_database = factories.postgresql("migrated_template")


@pytest.fixture
def running(servers: dev.Servers) -> dev.Servers:
    """The servers, started again where an earlier test left one of them down."""
    servers.start_postgres()
    servers.start_redis()
    return servers


@pytest.fixture
def admin_dsn(running: dev.Servers, migrated_database: psycopg.Connection[Any]) -> Iterator[str]:
    """A fresh migrated database, as the superuser."""
    name = migrated_database.info.dbname
    migrated_database.close()
    give_to_migrator(str(running.sockets), running.postgres.port, name)
    yield canary.given(running.dsn("postgres", name))
    running.start_postgres()  # or the database of a test that crashed it can't be dropped


@pytest.fixture
def database(admin_dsn: str) -> str:
    """The name of this test's database."""
    return str(psycopg.conninfo.conninfo_to_dict(admin_dsn)["dbname"])


@pytest.fixture(scope="session")
def pooler(servers: dev.Servers, pytestconfig: pytest.Config) -> Iterator[int | None]:
    """The port of the PgBouncer that callers go through; None where they go straight."""
    if pytestconfig.getoption("pooler") is None:
        yield None
    else:
        assert PGBOUNCER, "--pooler needs a pgbouncer"
        with pgbouncer(servers, "transaction") as port:
            yield port


@pytest.fixture
def reach(running: dev.Servers, database: str, pooler: int | None) -> Callable[[str], str]:
    """The way of a role to this test's database."""

    def way(role: str) -> str:
        return canary.given(running.dsn(role, database) if pooler is None else behind(pooler, database, role))

    return way


@pytest.fixture
def dsn(reach: Callable[[str], str]) -> str:
    """The same database, as `ledger_worker`."""
    return reach("ledger_worker")


@pytest.fixture
def operator_dsn(reach: Callable[[str], str]) -> str:
    """The same database, as `ledger_operator`."""
    return reach("ledger_operator")


@pytest.fixture
def reader_dsn(reach: Callable[[str], str]) -> str:
    """The same database, as `ledger_reader`."""
    return reach("ledger_reader")


@pytest.fixture
def migrator_dsn(running: dev.Servers, database: str) -> str:
    """The same database, as `ledger_admin`, who owns it and runs the migrations."""
    return canary.given(running.dsn("ledger_admin", database))


@pytest.fixture
def empty_dsn(running: dev.Servers) -> Iterator[str]:
    """A database before its first migration, as `ledger_admin`, who owns it."""
    running.prepare(EMPTY)
    yield running.dsn("ledger_admin", EMPTY)
    running.start_postgres()
    with psycopg.connect(running.dsn("postgres", "postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(EMPTY)))


@pytest.fixture
def redis_url(running: dev.Servers) -> str:
    """An empty Valkey."""
    with redis.Redis.from_url(running.redis_url) as client:
        client.flushall()
    return running.redis_url


@pytest.fixture
def connect(dsn: str, pytestconfig: pytest.Config) -> Iterator[Connect]:
    """Open connections that are closed after the test: `connect()`, `connect(operator_dsn)`.

    They are `ledger_worker`'s and in autocommit unless told otherwise.
    """
    opened: list[psycopg.Connection[Any]] = []
    given = elsewhere.POOLERS.get(pytestconfig.getoption("pooler"), {})

    def open_one(conninfo: str = dsn, *, autocommit: bool = True, **options: Any) -> psycopg.Connection[Any]:
        connection = psycopg.connect(conninfo, autocommit=autocommit, **{**given, **options})
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A worker's connection."""
    return connect()


@pytest.fixture
def rival(connect: Connect) -> psycopg.Connection[Any]:
    """Another worker's connection."""
    return connect()


@pytest.fixture
def admin(connect: Connect, admin_dsn: str) -> psycopg.Connection[Any]:
    """The superuser's connection, to look and to break things."""
    return connect(admin_dsn)


@pytest.fixture
def ledger(connection: psycopg.Connection[Any]) -> Ledger:
    """A worker's ledger."""
    return Ledger(connection)


@pytest.fixture
def rivals(rival: psycopg.Connection[Any]) -> Ledger:
    """Another worker's ledger."""
    return Ledger(rival)


@pytest.fixture
def operators(connect: Connect, operator_dsn: str) -> Ledger:
    """An operator's ledger."""
    return Ledger(connect(operator_dsn))
