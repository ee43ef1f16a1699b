"""Every way to write rows, with a token, with none, and with one that is stale."""

from __future__ import annotations

from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest

from ledger.client import Ledger
from tests.protected.tables import (
    ALL,
    ORG_1,
    ORG_2,
    REPORT,
    contents,
    forging,
    presenting,
    tokens,
    write_refused,
)
from tests.story import ALICE, BOB, Connection, activated

pytestmark = pytest.mark.usefixtures("charge")


def copied(connection: Connection) -> None:
    with connection.cursor().copy("copy charge (id, org_id) from stdin") as copy:
        copy.write("9\torg_1\n")


def statement(text: LiteralString) -> Callable[[Connection], None]:
    def run(connection: Connection) -> None:
        connection.execute(text)

    return run


# Each touches rows of org_1 alone.
WRITES: dict[str, Callable[[Connection], None]] = {
    "insert": statement("insert into charge values (9, 'org_1')"),
    "insert select": statement("insert into charge select 9, org_id from charge where id = 1"),
    "update": statement("update charge set amount = 5 where id = 1"),
    "update from": statement("update charge as c set amount = 5 from charge as o where c.id = 1 and o.id = 3"),
    "delete": statement("delete from charge where id = 3"),
    "delete using": statement("delete from charge as c using charge as o where c.id = 3 and o.id = 1"),
    "upsert of a new row": statement(
        "insert into charge values (9, 'org_1') on conflict (id) do update set amount = 5"
    ),
    "upsert of an old row": statement(
        "insert into charge values (1, 'org_1') on conflict (id) do update set amount = 5"
    ),
    "insert or do nothing": statement("insert into charge values (9, 'org_1') on conflict do nothing"),
    "merge that inserts": statement(
        "merge into charge as c using (values (9)) as s (id) on c.id = s.id "
        "when not matched then insert values (s.id, 'org_1')"
    ),
    "merge that updates": statement(
        "merge into charge as c using (values (1)) as s (id) on c.id = s.id "
        "when matched then update set amount = 5"
    ),
    "merge that deletes": statement(
        "merge into charge as c using (values (3)) as s (id) on c.id = s.id when matched then delete"
    ),
    "copy": copied,
    "write inside a query": statement(
        "with written as (insert into charge values (9, 'org_1') returning id) select count(*) from written"
    ),
    "write inside a block": statement("do $$ begin update charge set amount = 5 where id = 1; end $$"),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())


@every_write
def test_a_write_under_the_active_token_passes(
    write: Callable[[Connection], None], owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    before = contents(admin)
    with presenting(owner, tokens(ledger, ORG_1)):
        write(owner)
    assert contents(admin) != before


@every_write
def test_a_write_without_a_token_is_refused(
    write: Callable[[Connection], None], owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    tokens(ledger, ORG_1)
    with write_refused("LG103", admin) as refusal:
        write(owner)
    assert refusal.tells(function="check_write", resource=ORG_1, table="public.charge", role="ledger_worker")


@every_write
def test_a_write_under_a_stale_token_is_refused_though_nobody_touched_the_row(
    write: Callable[[Connection], None], owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    stale, active = activated(ledger, ALICE, ORG_1), activated(ledger, BOB, ORG_1)
    with write_refused("LG101", admin) as refusal, forging(owner, {ORG_1: stale}):
        write(owner)
    assert refusal.tells(
        resource=ORG_1, token=stale, active=active, holder=ALICE, active_holder=BOB, reason="superseded"
    )


@every_write
def test_a_write_under_another_resources_token_is_refused(
    write: Callable[[Connection], None], owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    with write_refused("LG103", admin), presenting(owner, tokens(ledger, ORG_2, ALL, REPORT)):
        write(owner)


def test_a_refused_write_says_what_is_missing_and_what_to_call(owner: Connection) -> None:
    with write_refused("LG103", owner) as refusal:
        owner.execute("update charge set amount = 5 where id = 1")
    assert refusal.message == (
        "update on public.charge by ledger_worker refused: no token was presented for charges:org_1; "
        "nothing was changed"
    )
    assert refusal.hint == (
        "Call ledger.present_token(resource, token), or ledger.lock_job, first in the same transaction."
    )


def test_a_statement_that_touches_no_row_needs_no_token(owner: Connection) -> None:
    owner.execute("update charge set amount = 5 where false")
    owner.execute("delete from charge where id = 99")
    owner.execute("insert into charge values (1, 'org_1') on conflict do nothing")
    owner.execute("insert into charge select * from charge where false")


def test_a_row_moves_between_two_resources_only_under_both_tokens(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    both = tokens(ledger, ORG_1, ORG_2)
    move: LiteralString = "update charge set org_id = 'org_2' where id = 1"
    for missing in (ORG_1, ORG_2):
        one = {resource: token for resource, token in both.items() if resource != missing}
        with write_refused("LG103", admin) as refusal, presenting(owner, one):
            owner.execute(move)
        assert refusal.tells(resource=missing)

    with presenting(owner, both):
        owner.execute(move)
    assert ("(1,org_2,0)",) in contents(admin)


def test_one_statement_that_touches_two_resources_needs_both(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    with write_refused("LG103", admin) as refusal, presenting(owner, tokens(ledger, ORG_1)):
        owner.execute("update charge set amount = amount + 1")
    assert refusal.tells(resource=ORG_2)
    with presenting(owner, tokens(ledger, ORG_1, ORG_2)):
        owner.execute("update charge set amount = amount + 1")


def test_a_row_that_belongs_to_nobody_is_written_by_nobody(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    for value in ("null", "''", "'{'", "'*{}'"):
        with write_refused("LG103", admin), presenting(owner, tokens(ledger, ORG_1, ALL)):
            owner.execute(f"insert into charge values (9, {value})")
    with write_refused("LG103", admin), presenting(owner, tokens(ledger, ORG_1)):
        owner.execute("update charge set org_id = null where id = 1")


def test_truncate_needs_the_token_of_all(owner: Connection, ledger: Ledger, admin: Connection) -> None:
    with write_refused("LG103", admin) as refusal, presenting(owner, tokens(ledger, ORG_1, ORG_2)):
        owner.execute("truncate charge")
    assert refusal.tells(resource=ALL, operation="truncate")

    with presenting(owner, tokens(ledger, ALL)):
        owner.execute("truncate charge")
    assert contents(admin) == []


def test_truncate_that_cascades_to_the_table_needs_it_too(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute("create table org (org_id text primary key)")
    owner.execute("insert into org values ('org_1'), ('org_2')")
    owner.execute("alter table charge add foreign key (org_id) references org")
    with write_refused("LG103", admin) as refusal:
        owner.execute("truncate org cascade")
    assert refusal.tells(resource=ALL, table="public.charge")


# One resource for every row.

REPORT_WRITES: list[LiteralString] = [
    "insert into report values (9, 'nine')",
    "insert into report values (1, 'one') on conflict do nothing",
    "update report set line = 'uno' where id = 1",
    "update report set line = 'none' where false",
    "delete from report where id = 2",
    "merge into report as r using (values (1)) as s (id) on r.id = s.id when matched then delete",
    "truncate report",
]


@pytest.mark.usefixtures("report")
@pytest.mark.parametrize("write", REPORT_WRITES)
def test_one_resource_guards_every_statement(
    write: LiteralString, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    stale, active = activated(ledger, ALICE, REPORT), activated(ledger, BOB, REPORT)
    with write_refused("LG103", admin, "report") as refusal:
        owner.execute(write)
    assert refusal.tells(resource=REPORT, table="public.report")
    with write_refused("LG101", admin, "report"), forging(owner, {REPORT: stale}):
        owner.execute(write)
    with write_refused("LG103", admin, "report"), presenting(owner, tokens(ledger, ORG_1)):
        owner.execute(write)
    with presenting(owner, {REPORT: active}):
        owner.execute(write)


@pytest.mark.parametrize("kind_of_column", ["text", "varchar", "varchar(20)", "integer", "bigint", "uuid"])
def test_a_resource_comes_from_a_column_of_each_type(
    kind_of_column: str, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    value = "0a1b2c3d-0000-4000-8000-00000000000f" if kind_of_column == "uuid" else "17"
    owner.execute(f'create table typed (id integer, "Org Id" {kind_of_column})')
    ledger.protect_table("typed", kind="typed", column_name="Org Id")
    with write_refused("LG103", admin, "typed") as refusal:
        owner.execute("insert into typed values (1, %s)", [value])
    assert refusal.tells(resource=f"typed:{value}")
    with presenting(owner, tokens(ledger, f"typed:{value}")):
        owner.execute("insert into typed values (1, %s)", [value])


def test_values_that_a_collation_calls_equal_are_two_resources(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    any_case = "create collation public.anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    try:
        admin.execute(any_case)
    except psycopg.errors.FeatureNotSupported:
        return  # A Postgres built without ICU has no such collations.
    owner.execute("create table lax (id integer, org_id text collate public.anycase)")
    ledger.protect_table("lax", kind="charges", column_name="org_id")
    with write_refused("LG103", admin, "lax") as refusal, presenting(owner, tokens(ledger, "charges:a")):
        owner.execute("insert into lax values (1, 'a'), (2, 'A')")
    assert refusal.tells(resource="charges:A")
