"""Partitioned tables: by the parent's name, by the partition's own, before and after protection."""

from __future__ import annotations

from typing import LiteralString

import pytest

from ledger.client import Ledger
from tests.protected.tables import ALL, ORG_1, ORG_2, execute_all, presenting, tokens, write_refused
from tests.story import Connection

WRITES: list[LiteralString] = [
    "insert into {} values (9, 'org_1', 15)",
    "update {} set day = day where id = 1",
    "delete from {} where id = 1",
    "merge into {} as c using (values (1)) as s (id) on c.id = s.id when matched then update set id = 8",
]


@pytest.fixture
def parted(owner: Connection, ledger: Ledger) -> str:
    """Partitions early and late; early has a partition of its own, late was made after protection."""
    execute_all(
        owner,
        "create table parted (id integer, org_id text, day integer) partition by range (day)",
        "create table early partition of parted for values from (1) to (20) partition by range (day)",
        "create table first partition of early for values from (1) to (20)",
        "insert into parted values (1, 'org_1', 15), (2, 'org_2', 15)",
    )
    ledger.protect_table("parted", kind="charges", column_name="org_id")
    return "parted"


@pytest.fixture
def late(parted: str, owner: Connection, ledger: Ledger) -> str:
    owner.execute("create table late partition of parted for values from (20) to (40)")
    with presenting(owner, tokens(ledger, ORG_1, ORG_2)):
        owner.execute("insert into late values (1, 'org_1', 25), (2, 'org_2', 25)")
    return "late"


def refused_then_passed(write: str, owner: Connection, ledger: Ledger, admin: Connection) -> None:
    with write_refused("LG103", admin, "parted") as refusal:
        owner.execute(write)
    assert refusal.tells(resource=ORG_1)
    with write_refused("LG103", admin, "parted"), presenting(owner, tokens(ledger, ORG_2)):
        owner.execute(write)
    with presenting(owner, tokens(ledger, ORG_1)):
        owner.execute(write)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ["parted", "early", "first"])
@pytest.mark.usefixtures("parted")
def test_rows_are_guarded_by_whichever_name_they_are_written(
    name: str, write: str, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    refused_then_passed(write.format(name), owner, ledger, admin)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.usefixtures("late")
def test_rows_of_a_later_partition_are_guarded_by_its_own_name(
    write: str, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    refused_then_passed(write.replace("15", "25").format("late"), owner, ledger, admin)


@pytest.mark.parametrize("name", ["parted", "early", "first"])
@pytest.mark.usefixtures("parted")
def test_truncating_a_partition_by_name_needs_the_token_of_all(
    name: str, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    with write_refused("LG103", admin, "parted") as refusal:
        owner.execute(f"truncate {name}")
    assert refusal.tells(resource=ALL)
    with presenting(owner, tokens(ledger, ALL)):
        owner.execute(f"truncate {name}")


@pytest.mark.usefixtures("late")
def test_truncating_a_later_partition_by_name_is_not_seen_until_protection_is_mended(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    found = ledger.verify()
    assert {(finding.check, finding.detail["table"]) for finding in found} == {("table_is_protected", "public.late")}
    with owner.transaction(force_rollback=True):
        owner.execute("truncate late")

    ledger.protect_table("parted", kind="charges", column_name="org_id")
    assert ledger.verify() == []
    with write_refused("LG103", admin, "parted"):
        owner.execute("truncate late")


@pytest.mark.usefixtures("late")
def test_a_row_that_moves_between_partitions_is_judged_once_by_both_its_values(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    move: LiteralString = "update parted set day = 26, org_id = 'org_2' where id = 1 and day = 15"
    for one in (ORG_1, ORG_2):
        with write_refused("LG103", admin, "parted"), presenting(owner, tokens(ledger, one)):
            owner.execute(move)
    with presenting(owner, tokens(ledger, ORG_1, ORG_2)):
        owner.execute(move)


@pytest.mark.usefixtures("parted")
def test_a_table_that_is_attached_is_guarded_by_its_own_name_too(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    execute_all(
        owner,
        "create table other (id integer, org_id text, day integer)",
        "insert into other values (1, 'org_1', 45)",
        "alter table parted attach partition other for values from (40) to (60)",
    )
    with write_refused("LG103", admin, "parted"):
        owner.execute("delete from other")
    with presenting(owner, tokens(ledger, ORG_1)):
        owner.execute("delete from other")


@pytest.mark.usefixtures("parted")
def test_a_table_protected_otherwise_cannot_slip_in_by_being_attached(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute("create table other (id integer, org_id text, day integer)")
    ledger.protect_table("other", resource="other:all")
    with write_refused("42710", admin, "parted"):
        owner.execute("alter table parted attach partition other for values from (40) to (60)")


@pytest.mark.usefixtures("parted")
def test_a_detached_partition_stays_guarded_until_it_is_unprotected_by_name(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    owner.execute("alter table early detach partition first")
    with write_refused("LG103", admin, "first"):
        owner.execute("delete from first where id = 1")
    ledger.unprotect_table("first")
    owner.execute("delete from first where id = 1")


def test_a_protected_table_that_becomes_a_partition_of_another_is_found(
    charge: str, owner: Connection, ledger: Ledger
) -> None:
    execute_all(
        owner,
        "create table bigger (id integer not null, org_id text, amount integer) partition by range (id)",
        "alter table bigger attach partition charge for values from (1) to (100)",
    )
    (finding,) = ledger.verify()
    assert (finding.check, finding.finding) == (
        "table_is_protected", "its rows can be written through public.bigger"
    )  # fmt: skip
    owner.execute("alter table bigger detach partition charge")


@pytest.mark.parametrize("name", ["early", "first"])
@pytest.mark.usefixtures("parted")
def test_a_partition_alone_is_not_protected(name: str, ledger: Ledger, admin: Connection) -> None:
    with write_refused("LG304", admin, "parted") as refusal:
        ledger.protect_table(name, kind="charges", column_name="org_id")
    assert refusal.tells(reason=f"public.{name} is a partition; protect public.parted")


@pytest.mark.usefixtures("late")
def test_a_fixed_resource_guards_partitions_by_each_name(owner: Connection, ledger: Ledger, admin: Connection) -> None:
    ledger.unprotect_table("parted")
    ledger.protect_table("parted", resource="report:daily")
    owner.execute("create table later partition of parted for values from (60) to (80)")
    for name, day in {"parted": 15, "early": 15, "first": 15, "late": 25, "later": 65}.items():
        with write_refused("LG103", admin, "parted") as refusal:
            owner.execute(f"insert into {name} values (9, 'org_1', {day})")
        assert refusal.tells(resource="report:daily")


@pytest.mark.usefixtures("late")
def test_nothing_is_left_on_any_partition_when_protection_is_taken_off(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    ledger.unprotect_table("parted")
    assert admin.execute("select tgname from pg_trigger where tgname like 'zz%'").fetchall() == []
    owner.execute("delete from parted")
