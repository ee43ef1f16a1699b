"""A DBA with psql alone, under a role that is no superuser: install, verify, upgrade, repair, remove."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from ledger import dev, schema
from ledger.client import Ledger
from tests.conftest import Connect
from tests.dba.conftest import Printed, Psql
from tests.dba.linters import CHECKOUT
from tests.story import activated, added, in_background, until
from tests.test_migrations import Catalogue, catalogue, schemas

pytestmark = pytest.mark.heavy

Connection = psycopg.Connection[Any]
ROLES = ("owner", "fn", "worker", "operator", "reader")
IN_THE_CLUSTER = "select rolname from pg_roles where rolname ~ '^ledger_' order by 1"


@pytest.fixture(scope="module")
def bare(pytestconfig: pytest.Config) -> Iterator[dev.Servers]:
    """Servers of a site that has never heard of the ledger: no roles, no database."""
    with dev.temporary(pytestconfig.getoption("pg")) as pair:
        yield pair


@pytest.fixture
def root(bare: dev.Servers) -> Iterator[Connection]:
    with psycopg.connect(bare.dsn("postgres", "postgres"), autocommit=True) as superuser:
        yield superuser


@pytest.fixture
def deploy(bare: dev.Servers, root: Connection) -> Iterator[str]:
    """The database of a site, as the role that deploys there: its owner, and nothing more."""
    root.execute("create role deploy login")
    root.execute("create role role_team login createrole")
    root.execute("create database shop owner deploy")
    yield bare.dsn("deploy", "shop")
    root.execute("drop database shop with (force)")
    made = root.execute("select rolname from pg_roles where rolname ~ '^(ledger_|deploy|role_team)'").fetchall()
    for (name,) in made:
        root.execute(sql.SQL("drop owned by {0}").format(sql.Identifier(name)))
        root.execute(sql.SQL("drop role {0}").format(sql.Identifier(name)))


@pytest.fixture
def prepared(deploy: str, bare: dev.Servers, psql: Psql, printed: Printed) -> str:
    """The same, once the team that makes roles has made them."""
    team = bare.dsn("role_team", "postgres")
    psql(team, printed("db", "sql", "--part", "roles")).check_returncode()
    psql(team, printed("db", "grants", "deploy", "--as", "migrator")).check_returncode()
    return deploy


def works(bare: dev.Servers) -> bool:
    with psycopg.connect(bare.dsn("postgres", "shop"), autocommit=True) as connection:
        connection.execute("set role ledger_worker")
        ledger = Ledger(connection)
        added(ledger, "r_1")
        return ledger.claim_refund("m_1", "r_1", activated(ledger)).outcome == "claimed" and ledger.verify() == []


def refused(done: subprocess.CompletedProcess[str], told: str) -> bool:
    return done.returncode == 3 and told in done.stderr and "nothing was changed" in done.stderr


# Install


def test_roles_are_made_by_one_team_and_the_schema_by_another(
    prepared: str, bare: dev.Servers, psql: Psql, printed: Printed, admin_dsn: str
) -> None:
    done = psql(prepared, printed("db", "sql", "--part", "schema"))

    assert (done.returncode, done.stderr) == (0, "")
    assert catalogue_but_server(prepared) == catalogue_but_server(admin_dsn)
    assert works(bare)


def catalogue_but_server(dsn: str) -> Catalogue:
    return {name: rows for name, rows in catalogue(dsn).items() if name not in {"server", "schema"}}


def test_the_parts_together_are_the_whole(printed: Printed) -> None:
    roles, rest = printed("db", "sql", "--part", "roles"), printed("db", "sql", "--part", "schema")
    whole = printed("db", "sql")
    assert roles in whole
    assert whole.replace(roles.rstrip() + "\n\n", "") == rest
    assert printed("db", "sql", "--part", "functions").partition("\n-- Functions and guards")[2].rstrip() in whole


def test_a_role_that_makes_roles_installs_the_whole_by_itself(
    deploy: str, bare: dev.Servers, root: Connection, psql: Psql, printed: Printed
) -> None:
    root.execute("alter role deploy createrole")
    psql(deploy, printed("db", "sql")).check_returncode()
    assert works(bare)


def test_roles_that_exist_already_are_left_as_they_are(root: Connection, deploy: str, psql: Psql, printed: Printed,
                                                       bare: dev.Servers) -> None:  # fmt: skip
    root.execute("create role ledger_worker login connection limit 7")
    psql(bare.dsn("role_team", "postgres"), printed("db", "sql", "--part", "roles")).check_returncode()
    assert root.execute(
        "select rolcanlogin, rolconnlimit from pg_roles where rolname = 'ledger_worker'"
    ).fetchone() == (True, 7)
    assert [name for (name,) in root.execute(IN_THE_CLUSTER)] == sorted(f"ledger_{role}" for role in ROLES)


def test_the_schema_without_its_roles_is_refused_by_name(deploy: str, psql: Psql, printed: Printed) -> None:
    done = psql(deploy, printed("db", "sql", "--part", "schema"))
    assert refused(done, "role ledger_owner does not exist")
    assert "ledger db sql --part roles" in done.stderr
    assert schemas(deploy) == {"public"}


def test_a_migrator_that_is_no_member_is_refused_by_name(
    deploy: str, bare: dev.Servers, psql: Psql, printed: Printed
) -> None:
    psql(bare.dsn("role_team", "postgres"), printed("db", "sql", "--part", "roles")).check_returncode()
    done = psql(deploy, printed("db", "sql", "--part", "schema"))
    assert refused(done, "deploy is not a member of ledger_owner")
    assert "grant ledger_owner, ledger_fn to deploy" in done.stderr
    assert schemas(deploy) == {"public"}


@pytest.mark.parametrize("part", [(), ("--part", "schema")], ids=["whole", "schema"])
def test_a_schema_of_that_name_that_is_somebody_elses_is_left_alone(
    part: tuple[str, ...], prepared: str, psql: Psql, printed: Printed
) -> None:
    psql(prepared, "create schema ledger create table entries (id integer)").check_returncode()
    assert refused(psql(prepared, printed("db", "sql", *part)), "is not the fenced ledger's")
    with psycopg.connect(prepared) as connection:
        tables = connection.execute("select relname from pg_class where relnamespace = 'ledger'::regnamespace")
        assert tables.fetchall() == [("entries",)]


# The text


def test_it_is_the_same_in_every_process_and_needs_no_server(tmp_path: Path, printed: Printed) -> None:
    there = subprocess.run(
        [sys.executable, "-m", "ledger", "db", "sql"], cwd=tmp_path, text=True, capture_output=True, check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": "7", "PGHOST": "/none",
             "HOME": str(tmp_path)},
    )  # fmt: skip
    assert there.stdout == printed("db", "sql") == printed("db", "sql")


def test_outside_a_transaction_it_changes_nothing(prepared: str, psql: Psql, printed: Printed) -> None:
    done = psql(prepared, printed("db", "sql"), "-v", "ON_ERROR_STOP=1", one_transaction=False)
    assert refused(done, "this text runs in one transaction")
    assert schemas(prepared) == {"public"}


def test_it_is_refused_at_another_revision_than_its_own(prepared: str, psql: Psql, printed: Printed) -> None:
    first = schema.revisions()[0]
    psql(prepared, printed("db", "sql", first)).check_returncode()
    assert refused(psql(prepared, printed("db", "sql")), f"schema ledger is at {first}, and this text begins at base")
    assert refused(psql(prepared, printed("db", "sql", "--part", "functions")), f"schema ledger is at {first}")

    psql(prepared, printed("db", "sql", f"{first}:head")).check_returncode()

    assert refused(psql(prepared, printed("db", "sql", f"{first}:head")), f"schema ledger is at {schema.head()}")


def test_a_failure_in_the_middle_leaves_nothing_behind(prepared: str, psql: Psql, printed: Printed) -> None:
    text = printed("db", "sql").replace("create view ledger.balance", "select 1 / 0;\ncreate view ledger.balance", 1)
    assert "division by zero" in psql(prepared, text).stderr
    assert schemas(prepared) == {"public"}


def test_of_two_installations_at_once_one_waits_and_is_then_told(
    prepared: str, root: Connection, psql: Psql, printed: Printed
) -> None:
    waiting = "select count(*) from pg_stat_activity where datname = 'shop' and wait_event = 'advisory'"
    text = printed("db", "sql")
    with psycopg.connect(prepared, autocommit=True) as first:
        first.execute("select pg_advisory_lock(hashtextextended('ledger.schema_version', 3))")
        both = [in_background(lambda: psql(prepared, text)) for _ in range(2)]
        until(lambda: root.execute(waiting).fetchone() == (2,), within=30)

    done = sorted((future.result() for future in both), key=lambda each: each.returncode)

    assert (done[0].returncode, done[0].stderr) == (0, "")
    assert refused(done[1], f"schema ledger is at {schema.head()}, and this text begins at base")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--down", "head:base", "--part", "schema"), "the way back has no parts"),
        (("--part", "functions", "0001_roles"), "functions are replaced at the newest revision alone"),
        (("--part", "roles", "0001_roles:head"), "makes no roles"),
    ],
)
def test_a_part_that_there_is_not_is_refused(arguments: tuple[str, ...], told: str, printed: Printed) -> None:
    assert told in printed("db", "sql", *arguments, code=2)


# Repair

DAMAGE: dict[str, LiteralString] = {
    "a function's body": "create or replace function ledger.setting_ms(name text) returns integer "
    "language sql return 0",
    "a path": "alter function ledger.claim_refund(text, text, bigint) reset search_path",
    "a grant taken away": "revoke execute on function ledger.draw_token(text) from ledger_worker",
    "a grant to everybody": "grant execute on function ledger.recover_failover(boolean, text, text) to public",
    "a trigger that is off": "alter table ledger.refund disable trigger refund_is_guarded",
    "a trigger that is ordinary": "alter table ledger.journal enable trigger journal_is_guarded",
    "a trigger that is gone": "drop trigger fence_is_guarded on ledger.fence",
    "a comment": "comment on function ledger.verify(text) is 'nothing'",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_was_changed_by_hand_is_mended_by_the_functions_part(
    damage: LiteralString, admin: Connection, migrator_dsn: str, psql: Psql, printed: Printed
) -> None:
    before = catalogue(migrator_dsn)
    admin.execute(damage)
    assert catalogue(migrator_dsn) != before

    psql(migrator_dsn, printed("db", "sql", "--part", "functions")).check_returncode()

    assert without_order(catalogue(migrator_dsn)) == without_order(before)


def without_order(found: Catalogue) -> Catalogue:
    """An access list is a set; what was revoked and granted again stands last."""
    return {
        name: [tuple(sorted(re.split(r"[{},]", value)) if is_acl(value) else value for value in row) for row in rows]
        for name, rows in found.items()
    }


def is_acl(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\{.*=.*/.*\}", value) is not None


# Remove


def test_what_is_taken_away_leaves_nothing_in_the_database_and_then_in_the_cluster(
    prepared: str, bare: dev.Servers, root: Connection, psql: Psql, printed: Printed
) -> None:
    psql(prepared, "create table mine (id integer)").check_returncode()
    psql(prepared, printed("db", "sql", "--part", "schema")).check_returncode()

    psql(prepared, printed("db", "sql", "--down", "head:base")).check_returncode()

    assert schemas(prepared) == {"public"}
    for role in ROLES:
        psql(bare.dsn("role_team", "postgres"), f"drop role ledger_{role}").check_returncode()
    assert root.execute(IN_THE_CLUSTER).fetchall() == []
    with psycopg.connect(prepared) as connection:
        assert connection.execute("select count(*) from mine").fetchone() == (0,)


# Beside live work


def test_an_upgrade_that_can_not_lock_a_table_gives_up_before_a_claim_has_waited_for_two_seconds(
    connect: Connect, migrator_dsn: str, connection: Connection, admin: Connection
) -> None:
    ledger = Ledger(connection)
    added(ledger, "r_1", "r_2")
    token = activated(ledger)
    limits = re.findall(r"^set local .*;$", (schema.SQL / "schema" / f"{schema.head()}.sql").read_text(), re.MULTILINE)
    in_a_claim, upgrade = connect(autocommit=False), connect(migrator_dsn)
    Ledger(in_a_claim).claim_refund("m_1", "r_1", token)

    def add_a_column() -> None:
        with upgrade.transaction():
            upgrade.execute("; ".join(limit.rstrip(";") for limit in limits))  # type: ignore[call-overload]
            upgrade.execute("alter table ledger.refund add column note text")

    altering = in_background(add_a_column)
    until(lambda: is_blocked(admin, upgrade))
    start = time.monotonic()
    ledger.claim_refund("m_1", "r_2", token)

    assert time.monotonic() - start < 2
    assert isinstance(altering.exception(), psycopg.errors.LockNotAvailable)
    in_a_claim.commit()
    assert ledger.verify() == []


def is_blocked(admin: Connection, waiter: Connection) -> bool:
    row = admin.execute("select pg_blocking_pids(%s) <> '{}'", [waiter.info.backend_pid]).fetchone()
    return row == (True,)
