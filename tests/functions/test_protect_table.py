from __future__ import annotations

from typing import Any, LiteralString

import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.protected.tables import contents, presenting, tokens
from tests.story import Connection, in_background, raised, refused, until

KIND = "charges"


@pytest.fixture(autouse=True)
def charge(connection: Connection, admin: Connection) -> None:
    """A table of the worker's own."""
    admin.execute("grant create on schema public to ledger_worker, ledger_operator")
    connection.execute("create table charge (id integer primary key, org_id text, at date)")
    connection.execute("insert into charge values (1, 'org_1')")


def entry(admin: Connection) -> list[object]:
    return admin.execute(
        "select relation::text, resource, kind, column_name, stamp, protected_by from ledger.protected_table"
    ).fetchall()


def triggers(admin: Connection) -> list[object]:
    return admin.execute(
        "select tgname, tgenabled::text from pg_trigger where tgrelid = 'charge'::regclass and not tgisinternal "
        "order by tgname"
    ).fetchall()


def test_a_table_is_protected_by_a_column(ledger: Ledger, admin: Connection) -> None:
    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    assert entry(admin) == [("charge", None, KIND, "org_id", False, "ledger_worker")]
    assert triggers(admin) == [
        ("zz_ledger_delete", "A"), ("zz_ledger_insert", "A"), ("zz_ledger_row", "R"), ("zz_ledger_truncate", "A"),
        ("zz_ledger_update", "A"),
    ]  # fmt: skip
    assert ledger.get_kind(KIND).known
    assert ledger.get_kind(KIND).lock == "advisory"
    assert ledger.verify() == []


def test_a_table_is_protected_by_one_resource(ledger: Ledger, admin: Connection) -> None:
    ledger.protect_table("charge", resource="report:daily")
    assert entry(admin) == [("charge", "report:daily", "report", None, False, "ledger_worker")]
    assert triggers(admin) == [("zz_ledger_row", "R"), ("zz_ledger_truncate", "A"), ("zz_ledger_write", "A")]
    assert admin.execute("select event, kind, resource, detail ->> 'table' from ledger.event").fetchall() == [
        ("protected", "report", "report:daily", "public.charge")
    ]


def test_nothing_of_the_table_is_rewritten_or_changed(ledger: Ledger, admin: Connection) -> None:
    look: LiteralString = (
        "select relfilenode, relnatts, (select array_agg(ctid::text || xmin::text) from charge) "
        "from pg_class where oid = 'charge'::regclass"
    )
    before = admin.execute(look).fetchone()
    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    assert admin.execute(look).fetchone() == before


def test_a_stamp_shows_which_token_wrote_a_row_last(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    ledger.protect_table("charge", kind=KIND, column_name="org_id", stamp=True)
    assert contents(admin) == [("(1,org_1,,)",)]
    active = tokens(ledger, "charges:org_1")
    with presenting(connection, active):
        connection.execute("insert into charge (id, org_id) values (2, 'org_1')")
        connection.execute("update charge set fence = 99 where id = 1")
    assert admin.execute("select distinct fence from charge").fetchall() == [(active["charges:org_1"],)]
    assert ledger.verify() == []


@pytest.mark.parametrize("junk", ["{", "[1]", '{"charges:org_1": "x"}', ""])
def test_a_stamp_makes_nothing_of_junk(junk: str, connection: Connection, ledger: Ledger, operators: Ledger) -> None:
    ledger.protect_table("charge", kind=KIND, column_name="org_id", stamp=True)
    operators.set_mode(KIND, "off", actor="tests", reason="only the stamp")
    with connection.transaction():
        connection.execute("select set_config('ledger.tokens', %s, true)", [junk])
        connection.execute("update charge set id = 7")
    assert connection.execute("select id, fence from charge").fetchall() == [(7, None)]


def test_a_stamp_never_writes_over_a_column_that_means_something_else(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    connection.execute("alter table charge add column fence text")
    with refused("LG304", admin) as refusal:
        ledger.protect_table("charge", kind=KIND, column_name="org_id", stamp=True)
    assert refusal.tells(reason="stamp needs a column fence of type bigint, and there is another one")


def test_a_second_run_locks_nothing_and_changes_nothing(
    ledger: Ledger, rival: Connection, admin: Connection
) -> None:
    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    with rival.transaction():
        rival.execute("lock table charge in access share mode")
        before = admin.execute("select count(*) from ledger.event").fetchone()
        ledger.protect_table("charge", kind=KIND, column_name="org_id")
        assert admin.execute("select count(*) from ledger.event").fetchone() == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"resource": "report:daily"},
        {"kind": "others", "column_name": "org_id"},
        {"kind": KIND, "column_name": "id"},
        {"kind": KIND, "column_name": "org_id", "stamp": True},
    ],
)
def test_a_table_that_is_protected_otherwise_is_left_so(
    arguments: dict[str, Any], connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    with refused("LG304", admin) as refusal:
        ledger.protect_table("charge", **arguments)
    assert refusal.tells(
        function="protect_table",
        reason="the table is protected otherwise; in one transaction, unprotect it and protect it again",
    )
    with connection.transaction():
        ledger.unprotect_table("charge")
        ledger.protect_table("charge", **arguments)
    assert ledger.verify() == []


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"resource": "report:daily", "kind": KIND, "column_name": "org_id"},
        {"resource": "report:daily", "kind": "report"},
        {"kind": KIND},
        {"column_name": "org_id"},
        {"resource": "report:daily", "stamp": None},
    ],
)
def test_the_resource_is_named_in_exactly_one_way(
    arguments: dict[str, Any], ledger: Ledger, admin: Connection
) -> None:
    with refused("LG304", admin) as refusal:
        ledger.protect_table("charge", **arguments)
    assert refusal.tells(reason="give either resource, or kind and column_name; stamp is true or false")


@pytest.mark.parametrize("column", ["at", "gone", "ctid", "tableoid", "ORG_ID", "", "org_id; drop table charge"])
def test_a_column_that_cannot_name_a_resource_is_refused(column: str, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.protect_table("charge", kind=KIND, column_name=column)
    assert "is not a stored column of type text, varchar, integer, bigint or uuid" in refusal.message


def test_a_virtual_column_cannot_name_a_resource(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    if connection.info.server_version < 180000:
        return  # Virtual columns came with PostgreSQL 18.
    connection.execute("alter table charge add column area text generated always as ('x' || org_id) virtual")
    with refused("LG304", admin) as refusal:
        ledger.protect_table("charge", kind=KIND, column_name="area")
    assert "area is not a stored column" in refusal.message


@pytest.mark.parametrize("arguments", [{"resource": "settle:m_1"}, {"kind": "settle", "column_name": "org_id"}])
def test_the_kind_of_the_refunds_is_not_for_other_tables(
    arguments: dict[str, Any], ledger: Ledger, admin: Connection
) -> None:
    with refused("LG304", admin) as refusal:
        ledger.protect_table("charge", **arguments)
    assert refusal.tells(reason="kind settle guards refunds; choose another for your tables")


@pytest.mark.parametrize("resource", ["daily", "report:", "re{port:daily", ":x"])
def test_a_malformed_resource_is_refused(resource: str, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        ledger.protect_table("charge", resource=resource)


UNFIT: dict[str, tuple[LiteralString, str]] = {
    "a view": ("create view unfit as select * from charge", "unfit is not a table that ledger_worker owns"),
    "a materialized view": (
        "create materialized view unfit as select * from charge", "unfit is not a table that ledger_worker owns"
    ),
    "a sequence": ("create sequence unfit", "unfit is not a table that ledger_worker owns"),
    "an index": ("create index unfit on charge (org_id)", "unfit is not a table that ledger_worker owns"),
    "a temporary table": ("create temporary table unfit (org_id text)", "unfit is temporary"),
    "a child": (
        "create table unfit () inherits (charge)", "unfit inherits or is inherited from; use partitions"
    ),
    "a parent": (
        "create table unfit (org_id text); create table child () inherits (unfit)",
        "unfit inherits or is inherited from; use partitions",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("definition", "reason"), UNFIT.values(), ids=UNFIT.keys())
def test_what_is_no_permanent_table_of_its_own_is_refused(
    definition: LiteralString, reason: str, connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    connection.execute(definition)
    with refused("LG304", admin) as refusal:
        ledger.protect_table("unfit", kind=KIND, column_name="org_id")
    assert refusal.detail["reason"].endswith(reason)


def test_a_foreign_table_is_refused(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    admin.execute("create foreign data wrapper elsewhere; create server s foreign data wrapper elsewhere")
    admin.execute("create foreign table unfit (org_id text) server s; alter table unfit owner to ledger_worker")
    with refused("LG304", admin):
        ledger.protect_table("unfit", kind=KIND, column_name="org_id")


@pytest.mark.parametrize("table", ["ledger.refund", "pg_catalog.pg_class"])
def test_the_ledgers_and_the_catalogs_own_tables_are_refused(table: str, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        Ledger(admin).protect_table(table, resource="report:daily")
    assert refusal.tells(reason="the ledger's own tables and the catalog's are guarded otherwise")


def test_only_the_owner_protects_a_table(operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        operators.protect_table("charge", kind=KIND, column_name="org_id")
    assert refusal.tells(reason="public.charge is not a table that ledger_operator owns")
    assert refusal.message == (
        "protect_table of public.charge refused: public.charge is not a table that ledger_operator owns; "
        "nothing was changed"
    )


def test_a_table_that_is_not_there_is_postgres_own_error(ledger: Ledger) -> None:
    with raised("42P01"):
        ledger.protect_table("nowhere", resource="report:daily")


@pytest.mark.parametrize("kind", ["", "a:b", "a{b", "x" * 101])
def test_a_malformed_kind_is_refused(kind: str, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.protect_table("charge", kind=kind, column_name="org_id")
    assert refusal.tells(reason="a kind is printable, without colon or braces, at most 100 characters")


# Locks


def test_it_waits_for_writers_under_way_and_lets_readers_be(
    ledger: Ledger, rival: Connection, admin: Connection
) -> None:
    with rival.transaction():
        rival.execute("insert into charge values (2, 'org_2')")
        protecting = in_background(lambda: ledger.protect_table("charge", kind=KIND, column_name="org_id"))
        until(lambda: admin.execute("select pid from pg_locks where not granted").fetchone())
        assert admin.execute("select count(*) from charge").fetchone() == (1,)
    protecting.result()
    assert ledger.verify() == []


@pytest.mark.parametrize("callers", ["0", "100ms", "1h"])
def test_the_callers_lock_timeout_is_never_raised_and_is_put_back(
    callers: str, connection: Connection, ledger: Ledger
) -> None:
    with connection.transaction():
        connection.execute(f"set local lock_timeout = '{callers}'")
        ledger.protect_table("charge", kind=KIND, column_name="org_id")
        assert connection.execute("show lock_timeout").fetchone() == (callers,)


def test_a_table_that_is_busy_is_left_as_it_is_and_the_lock_timeout_too(
    connection: Connection, ledger: Ledger, rival: Connection, admin: Connection
) -> None:
    with rival.transaction():
        rival.execute("insert into charge values (2, 'org_2')")
        with connection.transaction():
            connection.execute("set local lock_timeout = '100ms'; set local statement_timeout = '1500ms'")
            with refused("55P03", admin), connection.transaction():
                ledger.protect_table("charge", kind=KIND, column_name="org_id")
            assert connection.execute("show lock_timeout").fetchone() == ("100ms",)
    assert triggers(admin) == []


@pytest.mark.heavy
def test_two_seconds_bound_the_wait_for_all_partitions_together(
    connection: Connection, ledger: Ledger, connect: Connect, admin: Connection
) -> None:
    connection.execute("create table parted (org_id text, day integer) partition by range (day)")
    for number in range(4):
        bounds = f"from ({number}) to ({number + 1})"
        connection.execute(f"create table part_{number} partition of parted for values {bounds}")
    writer = connect()
    with writer.transaction():
        writer.execute("insert into part_3 values ('org_1', 3)")
        with raised("55P03"):
            ledger.protect_table("parted", kind=KIND, column_name="org_id")
        # What it had locked before is free again at once.
        admin.execute("set lock_timeout = '1s'; insert into part_0 values ('org_1', 0)")
    ledger.protect_table("parted", kind=KIND, column_name="org_id")
    assert ledger.verify() == []
