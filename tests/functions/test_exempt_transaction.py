from __future__ import annotations

from typing import LiteralString

import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.protected.tables import ORG_1, contents, presenting, tokens, write_refused
from tests.story import Connection, as_ledger_fn, in_background, raised, refused, until

ALL_ROWS: LiteralString = "update charge set amount = amount + 1"


@pytest.fixture(autouse=True)
def charge(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    admin.execute("grant create on schema public to ledger_worker")
    connection.execute("create table charge (id integer, org_id text, amount integer default 0)")
    connection.execute("insert into charge values (1, 'org_1'), (2, 'org_2'), (3, null)")
    connection.execute("grant all on charge to ledger_operator")
    ledger.protect_table("charge", kind="charges", column_name="org_id")


@pytest.fixture
def operator(connect: Connect, operator_dsn: str) -> Connection:
    return connect(operator_dsn)


def exempt(connection: Connection, table: str = "charge") -> None:
    Ledger(connection).exempt_transaction(table, actor="carol", reason="migration 12")


def test_an_exempt_transaction_writes_without_a_token_and_is_on_record(
    operator: Connection, admin: Connection
) -> None:
    with operator.transaction():
        exempt(operator)
        (transaction,) = operator.execute("select pg_current_xact_id()::text").fetchone() or ("",)
        operator.execute(ALL_ROWS)
        operator.execute("delete from charge where org_id is null")
        operator.execute("truncate charge")
    assert contents(admin) == []
    assert admin.execute(
        "select transaction::text, relation::text, database_user, actor, reason from ledger.exemption"
    ).fetchall() == [(transaction, "charge", "ledger_operator", "carol", "migration 12")]
    assert admin.execute(
        "select kind, actor, reason, detail from ledger.event where event = 'exempted'"
    ).fetchall() == [("charges", "carol", "migration 12", {"table": "public.charge", "transaction": transaction})]


def test_it_ends_with_the_transaction_or_its_savepoint(operator: Connection, admin: Connection) -> None:
    with operator.transaction():
        exempt(operator)
    with write_refused("LG103", admin):
        operator.execute(ALL_ROWS)
    with write_refused("LG103", admin), operator.transaction():
        with operator.transaction(force_rollback=True):
            exempt(operator)
        operator.execute(ALL_ROWS)


def test_only_that_table_is_exempt(
    operator: Connection, connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    connection.execute("create table other (org_id text); grant all on other to ledger_operator")
    ledger.protect_table("other", kind="charges", column_name="org_id")
    with write_refused("LG103", admin, "other"), operator.transaction():
        exempt(operator)
        operator.execute("insert into other values ('org_1')")


def test_fenced_writers_are_kept_out_meanwhile_and_not_in_the_way(
    operator: Connection, connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    active = tokens(ledger, ORG_1)
    with operator.transaction():
        exempt(operator)
        with write_refused("55P03", admin) as refusal, presenting(connection, active):
            connection.execute("set local statement_timeout = '2s'")  # had it waited for the switch, it would end so
            connection.execute("update charge set amount = 9 where id = 1")
        operator.execute(ALL_ROWS)
    assert refusal.detail["held_by"][0]["pid"] == operator.info.backend_pid
    assert refusal.message.startswith("check_write of public.charge refused: the switch is held by pid")
    with presenting(connection, active):
        connection.execute("update charge set amount = 9 where id = 1")


def test_where_one_resource_guards_the_table_fenced_writers_wait(
    operator: Connection, connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    with connection.transaction():
        ledger.unprotect_table("charge")
        ledger.protect_table("charge", resource="report:daily")
    active = tokens(ledger, "report:daily")

    def write() -> None:
        with presenting(connection, active):
            connection.execute("update charge set amount = 9 where id = 1")

    with operator.transaction():
        exempt(operator)
        writer = in_background(write)
        until(lambda: admin.execute("select pid from pg_locks where not granted").fetchone())
        operator.execute(ALL_ROWS)
    writer.result()
    assert ("(1,org_1,9)",) in contents(admin)


def test_it_waits_for_fenced_writers_under_way(
    operator: Connection, connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    with presenting(connection, tokens(ledger, ORG_1)):
        connection.execute("update charge set amount = 9 where id = 1")
        with refused("55P03", admin) as refusal, operator.transaction():
            operator.execute("set local lock_timeout = '50ms'")
            exempt(operator)
        assert refusal.detail["held_by"][0]["pid"] == connection.info.backend_pid
        later = in_background(lambda: exempt(operator))
        until(lambda: admin.execute("select pid from pg_locks where not granted").fetchone())
    later.result()


def test_an_exemption_cannot_be_forged(operator: Connection, connection: Connection, admin: Connection) -> None:
    forge: LiteralString = (
        "insert into ledger.exemption (transaction, relation, actor, reason) "
        "values (pg_current_xact_id(), 'charge', 'me', 'let me')"
    )
    for session, code in ((operator, "42501"), (connection, "42501"), (admin, "LG103")):
        with refused(code, admin):
            session.execute(forge)
    with refused("42501", admin):
        exempt(connection)


def test_a_record_that_came_with_a_restored_dump_exempts_nobody(connection: Connection, admin: Connection) -> None:
    with write_refused("LG103", admin), connection.transaction():
        (transaction,) = connection.execute("select pg_current_xact_id()::text").fetchone() or ("",)
        as_ledger_fn(
            admin,
            "insert into ledger.exemption (transaction, relation, at, actor, reason) "
            "values (%s::xid8, 'charge', now() - interval '1 day', 'carol', 'migration 12')",
            [transaction],
        )
        connection.execute(ALL_ROWS)


@pytest.mark.parametrize(("actor", "reason"), [(None, "x"), ("x", None), (" ", "x"), ("x", " ")])
def test_it_needs_a_name_and_a_reason(
    actor: str | None, reason: str | None, operators: Ledger, admin: Connection
) -> None:
    with refused("LG304", admin) as refusal:
        operators.exempt_transaction("charge", actor, reason)
    assert refusal.tells(reason="actor and reason are needed, as arguments or as ledger.actor and ledger.reason")


def test_in_psql_name_and_reason_may_come_from_settings(operator: Connection, admin: Connection) -> None:
    with operator.transaction():
        operator.execute("set local ledger.actor = 'carol'; set local ledger.reason = 'by hand'")
        operator.execute("select ledger.exempt_transaction('charge')")
    assert admin.execute("select actor, reason from ledger.exemption").fetchall() == [("carol", "by hand")]


def test_a_table_that_is_not_protected_is_refused(operators: Ledger, connection: Connection, admin: Connection) -> None:
    connection.execute("create table plain (id integer)")
    with refused("LG304", admin) as refusal:
        operators.exempt_transaction("plain", "carol", "migration 12")
    assert refusal.message == (
        "exempt_transaction of public.plain refused: the table is not protected; nothing was changed"
    )


# Partitions


@pytest.fixture
def parted(connection: Connection, ledger: Ledger) -> str:
    connection.execute("create table parted (id integer, org_id text) partition by range (id)")
    for name, first in {"low": 0, "high": 10}.items():
        connection.execute(f"create table {name} partition of parted for values from ({first}) to ({first + 10})")
    connection.execute("insert into parted values (1, 'org_1'), (11, 'org_1')")
    connection.execute("grant all on parted, low, high to ledger_operator")
    ledger.protect_table("parted", kind="charges", column_name="org_id")
    return "parted"


def test_a_partitioned_table_is_exempt_with_its_partitions(
    parted: str, operator: Connection, admin: Connection
) -> None:
    with operator.transaction():
        exempt(operator, "parted")
        for name in ("parted", "low", "high"):
            operator.execute(f"update {name} set org_id = 'org_9'")
    assert admin.execute("select count(*) from ledger.exemption").fetchone() == (3,)


def test_one_partition_is_exempt_by_its_own_name_alone(
    parted: str, operator: Connection, connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    active = tokens(ledger, ORG_1)
    with operator.transaction():
        exempt(operator, "low")
        for name in ("parted", "high"):
            with raised("LG103"), operator.transaction():
                operator.execute(f"update {name} set org_id = 'org_9'")
        # Through the parent a fenced writer could reach the partition; by another partition's name it can't.
        with raised("55P03"), presenting(connection, active):
            connection.execute("update parted set id = id where id = 1")
        with presenting(connection, active):
            connection.execute("update high set id = id")
        operator.execute("update low set org_id = 'org_9'")
