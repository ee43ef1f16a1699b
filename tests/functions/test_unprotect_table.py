from __future__ import annotations

import pytest

from ledger.client import Ledger
from tests.story import Connection, raised, refused


@pytest.fixture(autouse=True)
def charge(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    """A table of the worker's own, protected and stamped."""
    admin.execute("grant create on schema public to ledger_worker")
    connection.execute("create table charge (id integer, org_id text)")
    ledger.protect_table("charge", kind="charges", column_name="org_id", stamp=True)


def test_triggers_and_entry_go_and_the_evidence_stays(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    with raised("LG103"):
        connection.execute("insert into charge values (1, 'org_1')")
    ledger.unprotect_table("charge")
    connection.execute("insert into charge values (1, 'org_1', 34)")
    assert admin.execute("select * from charge").fetchall() == [(1, "org_1", 34)]
    assert admin.execute("select count(*) from pg_trigger where tgname like 'zz_ledger%'").fetchone() == (0,)
    assert admin.execute("select count(*) from ledger.protected_table").fetchone() == (0,)
    assert admin.execute("select event, kind, detail from ledger.event order by event_id").fetchall()[-1] == (
        "unprotected", "charges", {"table": "public.charge"}
    )  # fmt: skip


def test_other_peoples_triggers_stay(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    connection.execute("create function mine() returns trigger language plpgsql as $$ begin return new; end $$")
    connection.execute(
        "create trigger zz_ledger_mine before insert on charge for each row execute function mine()"
    )
    ledger.unprotect_table("charge")
    assert admin.execute(
        "select tgname from pg_trigger where tgrelid = 'charge'::regclass"
    ).fetchall() == [("zz_ledger_mine",)]


def test_a_table_that_is_not_protected_is_left_as_it_is(ledger: Ledger, admin: Connection) -> None:
    ledger.unprotect_table("charge")
    before = admin.execute("select count(*) from ledger.event").fetchone()
    ledger.unprotect_table("charge")
    assert admin.execute("select count(*) from ledger.event").fetchone() == before


def test_only_the_owner_takes_protection_off(operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        operators.unprotect_table("charge")
    assert refusal.message == (
        "unprotect_table of public.charge refused: public.charge is not a table that ledger_operator owns; "
        "nothing was changed"
    )


def test_a_reader_under_way_is_waited_for_and_the_lock_timeout_is_put_back(
    connection: Connection, ledger: Ledger, rival: Connection, admin: Connection
) -> None:
    with rival.transaction():
        rival.execute("select from charge")
        with connection.transaction():
            connection.execute("set local lock_timeout = '100ms'")
            with refused("55P03", admin), connection.transaction():
                ledger.unprotect_table("charge")
            assert connection.execute("show lock_timeout").fetchone() == ("100ms",)
    assert ledger.verify() == []
    with connection.transaction():
        connection.execute("set local lock_timeout = '1h'")
        ledger.unprotect_table("charge")
        assert connection.execute("show lock_timeout").fetchone() == ("1h",)


def test_the_entry_of_a_table_that_is_gone_is_found_and_can_be_removed(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    (oid,) = admin.execute("select 'charge'::regclass::oid").fetchone() or (0,)
    connection.execute("drop table charge")
    assert [finding.finding for finding in ledger.verify()] == [
        "the table is gone; unprotect_table removes its entry"
    ]
    ledger.unprotect_table(str(oid))
    assert ledger.verify() == []
