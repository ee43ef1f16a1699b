"""What is around a protected table: triggers, views, rules, foreign keys, generated columns, types, casts."""

from __future__ import annotations

from typing import LiteralString

import pytest

from ledger.client import Ledger
from tests.protected.tables import KIND, ORG_1, ORG_2, contents, execute_all, presenting, tokens, write_refused
from tests.story import Connection, raised

MOVES_THE_ROW = """
    create function move_row() returns trigger language plpgsql as $$
    begin new.org_id := 'org_2'; return new; end $$
"""


@pytest.mark.parametrize("name", ["aaa_first", "zzz_last"])
@pytest.mark.usefixtures("charge")
def test_a_before_trigger_that_moves_the_row_is_judged_by_where_it_ends(
    name: str, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute(MOVES_THE_ROW)
    owner.execute(f"create trigger {name} before insert or update on charge for each row execute function move_row()")
    for write in ("insert into charge values (9, 'org_1')", "update charge set amount = 1 where id = 1"):
        with write_refused("LG103", admin) as refusal, presenting(owner, tokens(ledger, ORG_1)):
            owner.execute(write)
        assert refusal.tells(resource=ORG_2)
    with presenting(owner, tokens(ledger, ORG_2)):
        owner.execute("insert into charge values (9, 'org_1')")


@pytest.mark.usefixtures("charge")
def test_an_after_trigger_that_writes_again_is_judged_again(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    execute_all(
        owner,
        """
        create function write_again() returns trigger language plpgsql as $$
        begin update charge set org_id = 'org_2' where id = new.id; return null; end $$
        """,
        "create trigger zzzz after insert on charge for each row execute function write_again()",
    )
    with write_refused("LG103", admin) as refusal, presenting(owner, tokens(ledger, ORG_1)):
        owner.execute("insert into charge values (9, 'org_1')")
    assert refusal.tells(resource=ORG_2)


@pytest.mark.usefixtures("charge")
def test_a_trigger_of_another_table_is_no_way_in(owner: Connection, admin: Connection) -> None:
    execute_all(
        owner,
        "create table elsewhere (id integer)",
        """
        create function write_there() returns trigger language plpgsql security definer as $$
        begin update charge set amount = 7; return null; end $$
        """,
        "create trigger t after insert on elsewhere execute function write_there()",
    )
    with write_refused("LG103", admin):
        owner.execute("insert into elsewhere values (1)")


@pytest.mark.parametrize(
    "definition",
    [
        "create view seen as select * from charge",
        "create view seen as select * from charge where org_id = 'org_1' with check option",
        """
        create view seen as select * from charge;
        create rule r as on update to seen do instead update charge set amount = new.amount where id = new.id
        """,
        """
        create table seen (id integer, org_id text, amount integer); insert into seen select * from charge;
        create rule r as on update to seen do also update charge set amount = new.amount where id = new.id
        """,
    ],
)
@pytest.mark.usefixtures("charge")
def test_views_and_rules_are_no_way_in(
    definition: LiteralString, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute(definition)
    write: LiteralString = "update seen set amount = 7 where id = 1"
    with write_refused("LG103", admin):
        owner.execute(write)
    with presenting(owner, tokens(ledger, ORG_1)):
        owner.execute(write)
    assert ("(1,org_1,7)",) in contents(admin)


CASCADES: dict[str, tuple[LiteralString, LiteralString]] = {
    "on delete cascade": ("on delete cascade", "delete from org where org_id = 'org_1'"),
    "on delete set null": ("on delete set null", "delete from org where org_id = 'org_1'"),
    "on update cascade": ("on update cascade", "update org set org_id = 'org_9' where org_id = 'org_1'"),
}


@pytest.mark.parametrize(("action", "write"), CASCADES.values(), ids=CASCADES.keys())
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_foreign_key_cascades_are_judged(
    partitioned: bool, action: str, write: LiteralString, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    execute_all(
        owner,
        "create table org (org_id text primary key)",
        "insert into org values ('org_1'), ('org_2')",
    )
    owner.execute(
        f"create table charge (id integer, org_id text references org {action}, amount integer default 0) "
        + ("partition by range (id)" if partitioned else "")
    )
    if partitioned:
        owner.execute("create table part partition of charge for values from (1) to (100)")
    owner.execute("insert into charge values (1, 'org_1'), (2, 'org_2'), (3, 'org_1')")
    ledger.protect_table("charge", kind=KIND, column_name="org_id")

    with write_refused("LG103", admin) as refusal:
        owner.execute(write)
    assert refusal.tells(resource=ORG_1, table="public.charge")
    if "delete cascade" in action:
        with presenting(owner, tokens(ledger, ORG_1)):
            owner.execute(write)
        assert contents(admin) == [("(2,org_2,0)",)]


def test_the_resource_may_come_from_a_stored_generated_column(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute(
        "create table charge (id integer, area text, org_id text generated always as ('org_' || area) stored)"
    )
    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    with write_refused("LG103", admin) as refusal:
        owner.execute("insert into charge values (1, '1')")
    assert refusal.tells(resource=ORG_1)
    with presenting(owner, tokens(ledger, ORG_1)):
        owner.execute("insert into charge values (1, '1')")


def test_a_stored_generated_column_guards_later_partitions_too(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute(
        "create table charge (id integer, area text, org_id text generated always as ('org_' || area) stored) "
        "partition by range (id)"
    )
    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    owner.execute("create table late partition of charge for values from (1) to (100)")
    with write_refused("LG103", admin) as refusal:
        owner.execute("insert into late values (1, '1')")
    assert refusal.tells(resource=ORG_1, function="check_row")
    with presenting(owner, tokens(ledger, ORG_1)):
        owner.execute("insert into late values (1, '1')")


# What is done to the column after protection.


@pytest.mark.parametrize(
    "change",
    [
        "alter table charge rename column org_id to organisation",
        "alter table charge drop column org_id",
        "alter table charge alter column org_id type varchar[] using array[org_id]",
        "create domain org as text; alter table charge alter column org_id type org",
        "alter table charge alter column org_id type numeric using 1",
    ],
)
def test_a_table_whose_column_was_changed_refuses_writes_and_is_found(
    change: LiteralString, charge: str, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute(change)
    with write_refused("LG304", admin) as refusal:
        owner.execute("update charge set amount = 1")
    assert refusal.tells(
        reason="org_id is not a stored column of type text, varchar, integer, bigint or uuid", kind=KIND
    )
    assert [finding.check for finding in ledger.verify()] == ["table_is_protected"]
    ledger.unprotect_table("charge")
    owner.execute("update charge set amount = 1")


@pytest.mark.usefixtures("charge")
def test_changes_of_other_columns_and_names_do_no_harm(owner: Connection, ledger: Ledger) -> None:
    execute_all(
        owner,
        "alter table charge add column note text default 'x', drop column amount",
        "alter table charge rename to bill",
        "alter table bill alter column org_id type varchar(40)",
    )
    with raised("LG103") as refusal:
        owner.execute("insert into bill values (9, 'org_1')")
    assert refusal.tells(table="public.bill")
    with presenting(owner, tokens(ledger, ORG_1)):
        owner.execute("insert into bill values (9, 'org_1')")
    owner.execute("alter table bill rename to charge")


# What a user brings along must never run with the ledger's rights.


@pytest.fixture
def sneaky(owner: Connection) -> Connection:
    """A type with a cast to text that notes who ran it."""
    execute_all(
        owner,
        "create type sneaky as (id text)",
        """
        create function as_text(sneaky) returns text language plpgsql as $$
        begin perform set_config('attack.ran_as', current_user, false); return $1.id; end $$
        """,
        "create cast (sneaky as text) with function as_text(sneaky) as implicit",
    )
    return owner


def ran_as(connection: Connection) -> str:
    (user,) = connection.execute("select current_setting('attack.ran_as', true)").fetchone() or ("",)
    return user or "nobody"


def test_a_column_of_a_users_type_is_refused_when_protecting(sneaky: Connection, ledger: Ledger) -> None:
    sneaky.execute("create table charge (id integer, org_id sneaky)")
    with raised("LG304"):
        ledger.protect_table("charge", kind=KIND, column_name="org_id")


@pytest.mark.usefixtures("charge")
def test_a_column_that_becomes_a_users_type_later_is_refused_by_the_trigger(
    sneaky: Connection, ledger: Ledger
) -> None:
    sneaky.execute("alter table charge alter column org_id type sneaky using row(org_id)::sneaky")
    with raised("LG304"):
        sneaky.execute("update charge set amount = 1")
    assert ran_as(sneaky) == "nobody"
    ledger.unprotect_table("charge")


DECOY_ROWS: list[LiteralString] = [
    "create temporary view new_rows as select note_who() as org_id",
    "create temporary table old_rows (org_id text); create temporary view new_rows as select note_who() as org_id",
]


@pytest.mark.parametrize("decoy", DECOY_ROWS)
@pytest.mark.parametrize("event", ["insert", "update", "delete"])
def test_our_trigger_on_a_table_of_ones_own_reads_nothing_but_its_rows(
    decoy: LiteralString, event: str, owner: Connection
) -> None:
    execute_all(
        owner,
        """
        create function public.note_who() returns text language plpgsql as $$
        begin perform set_config('attack.ran_as', current_user, false); return 'x'; end $$
        """,
        "create table mine (org_id text)",
        "insert into mine values ('x')",
        decoy,
    )
    owner.execute(
        f"create trigger t after {event} on mine for each statement "
        "execute function ledger.check_write('column', 'charges', 'org_id')"
    )
    with raised("LG304") as refusal:
        owner.execute(
            {"insert": "insert into mine values ('y')", "update": "update mine set org_id = 'y'"}.get(
                event, "delete from mine"
            )
        )
    assert refusal.tells(reason="the trigger t isn't as protect_table makes it")
    assert ran_as(owner) == "nobody"
