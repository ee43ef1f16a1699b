"""How the schema gets into a database and out of it: online, as text for a DBA, twice at once, beside others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from ledger import dev, schema
from ledger.client import Ledger
from ledger.revision import statement
from tests.story import activated, added, until

CHECKOUT = Path(__file__).parents[1]

Catalogue = dict[str, list[tuple[Any, ...]]]

# All that a schema is, apart from the numbers that Postgres gave its objects.
CATALOGUE: dict[str, LiteralString] = {
    "schema": """
        select n.nspowner::regrole::text, n.nspacl::text, obj_description(n.oid, 'pg_namespace')
        from pg_namespace as n where n.nspname = 'ledger'
    """,
    "functions": """
        select p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proowner::regrole::text, p.proacl::text,
            obj_description(p.oid, 'pg_proc')
        from pg_proc as p where p.pronamespace = 'ledger'::regnamespace order by 1
    """,
    "relations": """
        select c.relname, c.relkind, c.relowner::regrole::text, c.relacl::text, c.reloptions::text,
            c.relpersistence, c.relrowsecurity, obj_description(c.oid, 'pg_class'),
            case when c.relkind = 'v' then pg_get_viewdef(c.oid) end
        from pg_class as c where c.relnamespace = 'ledger'::regnamespace order by 1
    """,
    "columns": """
        select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            a.attcollation::regcollation::text, a.attacl::text, pg_get_expr(d.adbin, d.adrelid),
            col_description(c.oid, a.attnum)
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = 'ledger'::regnamespace order by 1, 2
    """,
    "constraints": """
        select k.conrelid::regclass::text, k.conname, k.contype, pg_get_constraintdef(k.oid)
        from pg_constraint as k where k.connamespace = 'ledger'::regnamespace order by 1, 2
    """,
    "indexes": """
        select i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
        from pg_index as i join pg_class as c on c.oid = i.indexrelid
        where c.relnamespace = 'ledger'::regnamespace order by 1
    """,
    "triggers": """
        select t.tgrelid::regclass::text, t.tgname, t.tgenabled, pg_get_triggerdef(t.oid)
        from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
        where c.relnamespace = 'ledger'::regnamespace order by 1, 2
    """,
    "types": """
        select t.oid::regtype::text, t.typtype, t.typowner::regrole::text, t.typacl::text,
            obj_description(t.oid, 'pg_type')
        from pg_type as t where t.typnamespace = 'ledger'::regnamespace order by 1
    """,
    "sequences": """
        select s.seqrelid::regclass::text, s.seqtypid::regtype::text, s.seqstart, s.seqincrement, s.seqmax, s.seqcache,
            s.seqcycle
        from pg_sequence as s join pg_class as c on c.oid = s.seqrelid
        where c.relnamespace = 'ledger'::regnamespace order by 1
    """,
}
ROWS: dict[str, LiteralString] = {
    "transition": "select t::text from ledger.transition as t order by 1",
    "currency": "select c::text from ledger.currency as c order by 1",
    "kind": "select k::text from ledger.kind as k order by 1",
    # Not when it was started: an earlier test may have started it again.
    "server": "select s.system_identifier, s.timeline, s.failover from ledger.server as s",
    "schema_version": "select version_num from ledger.schema_version",
}


def catalogue(dsn: str) -> Catalogue:
    with psycopg.connect(dsn) as connection:
        return {name: connection.execute(query).fetchall() for name, query in {**CATALOGUE, **ROWS}.items()}


def schemas(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select nspname from pg_namespace where nspname !~ '^pg_'").fetchall()
    return {name for (name,) in rows} - {"information_schema"}


def revision(dsn: str) -> str | None:
    with psycopg.connect(dsn) as connection:
        return schema.current(connection)


@pytest.fixture
def psql(running: dev.Servers) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run SQL as a DBA would: in one transaction, which ends at the first error."""

    def run(dsn: str, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [running.pg_bin / "psql", dsn, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-1", "-f", "-"],
            input=text, text=True, capture_output=True, check=False, cwd="/", env={**os.environ, **environment},
        )  # fmt: skip

    return run


@pytest.fixture
def busy_dsn(empty_dsn: str) -> str:
    """A migrated database with a refund in it."""
    schema.upgrade(empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        ledger = Ledger(connection)
        added(ledger, "r_1")
        ledger.claim_refund("m_1", "r_1", activated(ledger))
    return empty_dsn


# Up


def test_an_empty_database_is_brought_to_the_newest_revision(empty_dsn: str) -> None:
    assert revision(empty_dsn) is None

    schema.upgrade(empty_dsn)

    assert revision(empty_dsn) == schema.head()
    assert schemas(empty_dsn) == {"public", "ledger"}


def test_upgrading_again_changes_nothing(empty_dsn: str) -> None:
    schema.upgrade(empty_dsn)
    before = catalogue(empty_dsn)

    schema.upgrade(empty_dsn)

    assert catalogue(empty_dsn) == before


def test_revisions_can_be_taken_one_by_one(empty_dsn: str, admin_dsn: str) -> None:
    schema.upgrade(empty_dsn, "0001_roles")
    assert revision(empty_dsn) == "0001_roles"

    schema.upgrade(empty_dsn)

    assert catalogue(empty_dsn) == catalogue(admin_dsn)


def test_a_missing_and_an_old_schema_are_told_apart_and_named(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        with pytest.raises(schema.SchemaBehind, match=r"schema ledger is missing.*ledger db upgrade") as missing:
            schema.check(connection)
        schema.upgrade(empty_dsn, "0001_roles")
        with pytest.raises(schema.SchemaBehind, match="schema ledger is at 0001_roles") as behind:
            schema.check(connection)
        schema.upgrade(empty_dsn)
        schema.check(connection)
    assert missing.value.detail == {"found": None, "needed": schema.head()}
    assert behind.value.detail == {"found": "0001_roles", "needed": schema.head()}


def test_two_upgrades_at_once_take_turns(empty_dsn: str, admin: psycopg.Connection[Any], admin_dsn: str) -> None:
    upgrade = [sys.executable, "-c", "import sys; from ledger import schema; schema.upgrade(sys.argv[1])", empty_dsn]
    waiting = (
        "select count(*) from pg_stat_activity where application_name = 'ledger-migrate' and wait_event_type = 'Lock'"
    )
    with psycopg.connect(empty_dsn, autocommit=True) as first:
        first.execute("select pg_advisory_lock(hashtextextended('ledger.schema_version', 3))")
        both = [subprocess.Popen(upgrade, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        until(lambda: admin.execute(waiting).fetchone() == (2,), within=30)
        assert "ledger" not in schemas(empty_dsn)

    assert [(process.communicate()[1], process.returncode) for process in both] == [("", 0), ("", 0)]
    assert catalogue(empty_dsn) == catalogue(admin_dsn)


def test_a_schema_that_somebody_else_made_is_refused_and_left_alone(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("create schema ledger create table entries (id integer)")

    with pytest.raises(DBAPIError, match="is not the fenced ledger's; nothing was changed") as refused:
        schema.upgrade(empty_dsn)

    assert "rename that schema" in str(refused.value)
    with psycopg.connect(empty_dsn) as connection:
        tables = connection.execute("select c.relname from pg_class as c where relnamespace = 'ledger'::regnamespace")
        assert tables.fetchall() == [("entries",)]


def test_each_function_is_stored_as_its_file_spells_it(admin: psycopg.Connection[Any]) -> None:
    stored = dict(
        admin.execute(
            "select p.proname, p.prosrc from pg_proc as p join pg_language as l on l.oid = p.prolang "
            "where p.pronamespace = 'ledger'::regnamespace and l.lanname = 'plpgsql'"
        ).fetchall()
    )
    texts = {path.stem: path.read_text() for path in schema.function_files()}
    assert [name for name, body in stored.items() if body not in texts[name]] == []
    assert any("%s" in body for body in stored.values())
    assert any(":=" in body and "::" in body for body in stored.values())


def test_colons_and_percent_signs_survive(tmp_path: Path, empty_dsn: str) -> None:
    spelling = "at :name, a:b, :'quoted', %s, 100%, %(name)s, [:alpha:]"
    file = tmp_path / "signs.sql"
    file.write_text(f"create function public.signs() returns text language sql as $$ select $x${spelling}$x$ $$;")

    engine = create_engine(empty_dsn.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(statement(file))

    with psycopg.connect(empty_dsn) as plain:
        assert plain.execute("select public.signs()").fetchone() == (spelling,)


# As text


def test_the_sql_that_a_dba_reads_creates_the_catalogue_that_upgrade_creates(
    empty_dsn: str, admin_dsn: str, psql: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = psql(empty_dsn, schema.offline_sql())

    assert (done.returncode, done.stderr) == (0, "")
    by_hand, by_upgrade = catalogue(empty_dsn), catalogue(admin_dsn)
    assert by_hand["functions"] == by_upgrade["functions"]
    assert by_hand["triggers"] == by_upgrade["triggers"]
    assert by_hand == by_upgrade


def test_a_ledger_installed_by_a_dba_is_known_to_upgrade(
    empty_dsn: str, psql: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    psql(empty_dsn, schema.offline_sql()).check_returncode()
    before = catalogue(empty_dsn)

    schema.upgrade(empty_dsn)

    assert catalogue(empty_dsn) == before


def test_a_dba_can_take_one_revision_at_a_time(
    empty_dsn: str, admin_dsn: str, psql: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    psql(empty_dsn, schema.offline_sql("0001_roles")).check_returncode()
    assert revision(empty_dsn) == "0001_roles"

    psql(empty_dsn, schema.offline_sql("0001_roles:head")).check_returncode()

    assert catalogue(empty_dsn) == catalogue(admin_dsn)


def test_the_text_is_refused_as_well_where_somebody_else_has_the_schema(
    empty_dsn: str, psql: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    psql(empty_dsn, "create schema ledger").check_returncode()

    done = psql(empty_dsn, schema.offline_sql())

    assert done.returncode == 3
    assert "is not the fenced ledger's; nothing was changed" in done.stderr


def test_the_text_takes_the_ledger_away(
    empty_dsn: str, psql: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    schema.upgrade(empty_dsn)

    done = psql(empty_dsn, schema.offline_sql("head:base", down=True))

    assert (done.returncode, done.stderr) == (0, "")
    assert schemas(empty_dsn) == {"public"}


def test_the_text_leaves_refunds_alone_unless_the_dba_says_that_they_may_go(
    busy_dsn: str, psql: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    before = catalogue(busy_dsn)
    text = schema.offline_sql("head:base", down=True)

    refused = psql(busy_dsn, text)
    assert "the ledger holds refunds; nothing was changed" in refused.stderr
    assert catalogue(busy_dsn) == before

    psql(busy_dsn, text, PGOPTIONS="-c ledger.discard=on").check_returncode()
    assert schemas(busy_dsn) == {"public"}


# Down


def test_a_downgrade_to_nothing_leaves_nothing_but_the_roles(empty_dsn: str, admin: psycopg.Connection[Any]) -> None:
    schema.upgrade(empty_dsn)

    schema.downgrade(empty_dsn, "base")

    assert schemas(empty_dsn) == {"public"}
    roles = admin.execute("select rolname from pg_roles where rolname ~ '^ledger_(owner|fn|worker)$'").fetchall()
    assert len(roles) == 3


def test_what_was_taken_away_can_be_installed_again(empty_dsn: str, admin_dsn: str) -> None:
    schema.upgrade(empty_dsn)
    schema.downgrade(empty_dsn, "base")

    schema.upgrade(empty_dsn)

    assert catalogue(empty_dsn) == catalogue(admin_dsn)


def test_a_downgrade_by_one_revision_can_be_taken_back(empty_dsn: str, admin_dsn: str) -> None:
    schema.upgrade(empty_dsn)
    schema.downgrade(empty_dsn, "0001_roles")
    assert revision(empty_dsn) == "0001_roles"

    schema.upgrade(empty_dsn)

    assert catalogue(empty_dsn) == catalogue(admin_dsn)


def test_a_ledger_that_holds_refunds_is_not_taken_away(busy_dsn: str) -> None:
    before = catalogue(busy_dsn)

    with pytest.raises(DBAPIError, match="the ledger holds refunds; nothing was changed") as refused:
        schema.downgrade(busy_dsn, "base")

    assert "Dump the schema first" in str(refused.value)
    assert catalogue(busy_dsn) == before
    with psycopg.connect(busy_dsn) as connection:
        assert connection.execute("select refund_id, state from ledger.refund").fetchall() == [("r_1", "sending")]
        assert connection.execute("select count(*) from ledger.journal").fetchone() == (2,)


def test_a_ledger_that_holds_refunds_is_taken_away_when_told_so(busy_dsn: str) -> None:
    schema.downgrade(busy_dsn, "base", discard=True)

    assert schemas(busy_dsn) == {"public"}


def test_a_downgrade_where_there_is_no_ledger_changes_nothing(empty_dsn: str) -> None:
    schema.downgrade(empty_dsn, "base")
    assert schemas(empty_dsn) == {"public"}

    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("create schema ledger")
    schema.downgrade(empty_dsn, "base")
    assert schemas(empty_dsn) == {"public", "ledger"}, "somebody else's stays"


# As Alembic's own command


def alembic(dsn: str, *arguments: str, folder: Path = CHECKOUT) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=folder, env={**os.environ, "LEDGER_DSN": dsn}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_alembics_own_command_works_in_a_checkout(empty_dsn: str, admin_dsn: str) -> None:
    assert alembic(empty_dsn, "current") == ""
    assert "ledger" not in schemas(empty_dsn), "asking changes nothing"

    alembic(empty_dsn, "upgrade", "head")

    assert alembic(empty_dsn, "current").split()[0] == schema.head()
    assert catalogue(empty_dsn) == catalogue(admin_dsn)


APPLICATIONS_ENV = """
import os
from alembic import context
from sqlalchemy import MetaData, create_engine, pool
url = context.config.get_main_option("sqlalchemy.url").replace("postgresql:", "postgresql+psycopg:")
with create_engine(url, poolclass=pool.NullPool).connect() as connection:
    context.configure(connection=connection, target_metadata=MetaData())
    with context.begin_transaction():
        context.run_migrations()
"""
APPLICATIONS_REVISION = """
from alembic import op
revision, down_revision = "shop_1", None
def upgrade(): op.execute("create table shop (id integer)")
def downgrade(): op.execute("drop table shop")
"""


@pytest.fixture
def application(tmp_path: Path, empty_dsn: str) -> Config:
    """An application that keeps its own tables by Alembic, in the same database."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(APPLICATIONS_ENV)
    (tmp_path / "versions" / "shop_1.py").write_text(APPLICATIONS_REVISION)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("sqlalchemy.url", empty_dsn)
    config.set_main_option("path_separator", "os")
    return config


@pytest.mark.parametrize("ledger_first", [True, False], ids=["ledger_first", "application_first"])
def test_the_ledger_and_an_applications_own_history_never_meet(
    empty_dsn: str, application: Config, ledger_first: bool
) -> None:
    def install() -> None:
        schema.upgrade(empty_dsn)

    def install_application() -> None:
        command.upgrade(application, "head")

    steps = [install, install_application] if ledger_first else [install_application, install]
    for step in steps:
        step()

    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("select version_num from public.alembic_version").fetchall() == [("shop_1",)]
        assert connection.execute("select version_num from ledger.schema_version").fetchall() == [(schema.head(),)]
    command.downgrade(application, "base")
    assert revision(empty_dsn) == schema.head()
    command.upgrade(application, "head")
    schema.downgrade(empty_dsn, "base")
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("select version_num from public.alembic_version").fetchall() == [("shop_1",)]


# Who may migrate


@pytest.fixture(scope="module")
def bare(pytestconfig: pytest.Config) -> Iterator[dev.Servers]:
    """Servers of a site that has never heard of the ledger: no roles, no database."""
    with dev.temporary(pytestconfig.getoption("pg")) as pair:
        yield pair


@pytest.fixture
def site(bare: dev.Servers) -> Iterator[Callable[..., str]]:
    """Make a role with these attributes, and a database that it owns."""
    made: list[str] = []
    with psycopg.connect(bare.dsn("postgres", "postgres"), autocommit=True) as superuser:

        def make(role: str, attributes: LiteralString) -> str:
            name = sql.Identifier(role)
            superuser.execute(sql.SQL("create role {} login ").format(name) + sql.SQL(attributes))
            superuser.execute(sql.SQL("create database {0} owner {0}").format(name))
            made.append(role)
            return bare.dsn(role, role)

        yield make
        for role in made:
            superuser.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(role)))
        rest = superuser.execute("select rolname from pg_roles where rolname ~ '^(ledger_|site)'").fetchall()
        for (role,) in rest:
            superuser.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        for (role,) in rest:
            superuser.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def works_for_a_worker(superuser_dsn: str) -> bool:
    with psycopg.connect(superuser_dsn, autocommit=True) as connection:
        connection.execute("set role ledger_worker")
        ledger = Ledger(connection)
        added(ledger, "r_1")
        return ledger.claim_refund("m_1", "r_1", activated(ledger)).outcome == "claimed"


def test_a_migrator_with_createrole_makes_the_roles_itself(bare: dev.Servers, site: Callable[..., str]) -> None:
    dsn = site("site_migrator", "createrole")

    schema.upgrade(dsn)

    with psycopg.connect(dsn) as connection:
        roles = connection.execute(
            "select rolname, rolcanlogin, rolsuper from pg_roles where rolname ~ '^ledger_' order by 1"
        ).fetchall()
    assert roles == [
        (f"ledger_{name}", False, False) for name in ("fn", "operator", "owner", "reader", "worker")
    ]
    assert works_for_a_worker(bare.dsn("postgres", "site_migrator"))


def test_a_migrator_with_createrole_takes_the_ledger_away_again(bare: dev.Servers, site: Callable[..., str]) -> None:
    dsn = site("site_migrator", "createrole")
    schema.upgrade(dsn)

    schema.downgrade(dsn, "base")
    assert schemas(dsn) == {"public"}

    schema.upgrade(dsn)
    assert works_for_a_worker(bare.dsn("postgres", "site_migrator"))


def test_a_member_of_roles_that_another_team_made_needs_no_createrole(
    bare: dev.Servers, site: Callable[..., str]
) -> None:
    dsn = site("site_member", "")
    with psycopg.connect(bare.dsn("postgres", "postgres"), autocommit=True) as superuser:
        for role in ("owner", "fn", "worker", "operator", "reader"):
            superuser.execute(sql.SQL("create role {}").format(sql.Identifier(f"ledger_{role}")))
        superuser.execute("grant ledger_owner, ledger_fn to site_member")

    schema.upgrade(dsn)

    assert works_for_a_worker(bare.dsn("postgres", "site_member"))


def test_a_second_database_of_the_cluster_uses_the_same_roles(bare: dev.Servers, site: Callable[..., str]) -> None:
    first, second = site("site_one", "createrole"), site("site_two", "")
    schema.upgrade(first)
    with psycopg.connect(bare.dsn("postgres", "postgres"), autocommit=True) as superuser:
        superuser.execute("grant ledger_owner, ledger_fn to site_two")

    schema.upgrade(second)

    assert works_for_a_worker(bare.dsn("postgres", "site_one"))
    assert works_for_a_worker(bare.dsn("postgres", "site_two"))


def test_a_superuser_may_migrate(bare: dev.Servers, site: Callable[..., str]) -> None:
    dsn = site("site_super", "superuser")

    schema.upgrade(dsn)

    assert works_for_a_worker(dsn)


def test_an_upgrade_without_the_rights_changes_nothing_and_can_be_tried_again(
    bare: dev.Servers, site: Callable[..., str]
) -> None:
    dsn = site("site_nobody", "")

    with pytest.raises(DBAPIError) as refused:
        schema.upgrade(dsn)
    assert isinstance(refused.value.orig, InsufficientPrivilege)
    assert schemas(dsn) == {"public"}

    with psycopg.connect(bare.dsn("postgres", "postgres"), autocommit=True) as superuser:
        superuser.execute("alter role site_nobody createrole")
    schema.upgrade(dsn)
    assert works_for_a_worker(bare.dsn("postgres", "site_nobody"))
