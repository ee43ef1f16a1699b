"""Whoever writes, and however the session is set up, the same check is made."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.protected.tables import ALL, KIND, ORG_1, ORG_2, contents, forging, presenting, tokens, write_refused
from tests.story import ALICE, BOB, Connection, activated, drawn, in_background, is_waiting, on_a_new_timeline, until

pytestmark = pytest.mark.usefixtures("charge")
LEVELS = list(psycopg.IsolationLevel)[1:]
WRITE: LiteralString = "update charge set amount = amount + 1 where id = 1"


@pytest.mark.parametrize("role", ["origin", "replica", "local"])
def test_a_superuser_is_refused_whatever_its_replication_role(role: str, admin: Connection) -> None:
    admin.execute(f"set session_replication_role = {role}")
    for write in (WRITE, "delete from charge", "truncate charge", "insert into charge values (9, 'org_1')"):
        with write_refused("LG103", admin):
            admin.execute(write)


def test_a_superuser_writes_under_a_token_like_anybody(admin: Connection, ledger: Ledger) -> None:
    with presenting(admin, tokens(ledger, ORG_1)):
        admin.execute(WRITE)


@pytest.mark.parametrize(
    "damage",
    [
        "alter table charge disable trigger zz_ledger_update",
        "alter table charge disable trigger all",
        "alter table charge enable trigger zz_ledger_update",
        "alter table charge enable trigger zz_ledger_row",
        "drop trigger zz_ledger_truncate on charge",
        "alter trigger zz_ledger_insert on charge rename to aa",
        """
        create or replace trigger zz_ledger_update after update on charge
        referencing old table as old_rows new table as new_rows
        for each statement when (false) execute function ledger.check_write('column', 'charges', 'org_id')
        """,
        """
        create or replace trigger zz_ledger_update after update of amount on charge
        for each statement execute function ledger.check_write('column', 'charges', 'org_id')
        """,
        """
        create or replace trigger zz_ledger_delete after delete on charge referencing old table as old_rows
        for each statement execute function ledger.check_write('column', 'others', 'org_id')
        """,
    ],
)
def test_what_the_owner_does_to_the_triggers_is_found_and_mended(
    damage: LiteralString, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    if "disable trigger all" in damage:
        admin.execute(damage)
    else:
        owner.execute(damage)
    assert {(f.check, f.resource) for f in ledger.verify()} == {("table_is_protected", "public.charge")}

    ledger.protect_table("charge", kind=KIND, column_name="org_id")
    owner.execute("drop trigger if exists aa on charge")
    assert ledger.verify() == []
    with write_refused("LG103", admin):
        owner.execute(WRITE)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
def test_at_every_isolation_level_the_active_token_passes_and_a_stale_one_does_not(
    level: psycopg.IsolationLevel, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    stale = activated(ledger, ALICE, ORG_1)
    active = activated(ledger, BOB, ORG_1)
    owner.isolation_level = level
    with write_refused("LG101", admin), forging(owner, {ORG_1: stale}):
        owner.execute(WRITE)
    with write_refused("LG103", admin):
        owner.execute(WRITE)
    with presenting(owner, {ORG_1: active}):
        owner.execute(WRITE)


@pytest.mark.parametrize("level", LEVELS[1:], ids=lambda level: level.name.lower())
def test_a_snapshot_from_before_the_activation_never_lets_a_stale_write_pass(
    level: psycopg.IsolationLevel, owner: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    stale = activated(ledger, ALICE, ORG_1)
    owner.isolation_level = level
    with write_refused("40001", admin), forging(owner, {ORG_1: stale}):
        owner.execute("select from charge")
        activated(rivals, BOB, ORG_1)
        owner.execute(WRITE)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
def test_an_activation_waits_for_the_writes_under_way_and_fences_the_next(
    level: psycopg.IsolationLevel, owner: Connection, ledger: Ledger, rival: Connection, admin: Connection
) -> None:
    old = activated(ledger, ALICE, ORG_1)
    owner.isolation_level = level
    rivals = Ledger(rival)
    with presenting(owner, {ORG_1: old}):
        owner.execute(WRITE)
        activation = in_background(lambda: activated(rivals, BOB, ORG_1))
        until(is_waiting(admin, rival))
        owner.execute("insert into charge values (9, 'org_1')")
    new = activation.result()
    with write_refused("LG101", admin) as refusal, forging(owner, {ORG_1: old}):
        owner.execute(WRITE)
    assert refusal.tells(active=new)


def test_an_activation_waits_for_a_write_whose_token_was_not_presented_but_forged(
    owner: Connection, ledger: Ledger, rival: Connection, admin: Connection
) -> None:
    rivals = Ledger(rival)
    with forging(owner, tokens(ledger, ORG_1)):
        owner.execute(WRITE)
        activation = in_background(lambda: activated(rivals, BOB, ORG_1))
        until(is_waiting(admin, rival))
    activation.result()


def test_a_savepoint_that_rolls_back_takes_what_was_presented_in_it(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    both = tokens(ledger, ORG_1, ORG_2)
    with write_refused("LG103", admin) as refusal, presenting(owner, {ORG_1: both[ORG_1]}):
        with owner.transaction(force_rollback=True):
            owner.execute("select ledger.present_token(%s, %s)", [ORG_2, both[ORG_2]])
            owner.execute("update charge set amount = 1")
        owner.execute("update charge set amount = 1 where id = 1")
        owner.execute("update charge set amount = 1 where id = 2")
    assert refusal.tells(resource=ORG_2)


def test_a_refusal_in_a_savepoint_leaves_the_rest_of_the_transaction(
    owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    with presenting(owner, tokens(ledger, ORG_1)):
        with write_refused("LG103", admin), owner.transaction():
            owner.execute("update charge set amount = 1 where id = 2")
        owner.execute(WRITE)
    assert ("(1,org_1,1)",) in contents(admin)


def test_what_was_presented_ends_with_its_transaction(owner: Connection, ledger: Ledger, admin: Connection) -> None:
    with presenting(owner, tokens(ledger, ORG_1)):
        owner.execute(WRITE)
    with write_refused("LG103", admin):
        owner.execute(WRITE)
    owner.execute("select ledger.present_token(%s, %s)", [ORG_1, activated(ledger, ALICE, ORG_1)])
    with write_refused("LG103", admin):
        owner.execute(WRITE)


def test_a_prepared_statement_is_judged_at_each_execution(
    owner: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    owner.execute("prepare pay as update charge set amount = amount + 1 where id = 1")
    old = tokens(ledger, ORG_1)
    for _ in range(7):
        with presenting(owner, old):
            owner.execute("execute pay")
    with write_refused("LG103", admin):
        owner.execute("execute pay")
    activated(rivals, BOB, ORG_1)
    with write_refused("LG101", admin), forging(owner, old):
        owner.execute("execute pay")


FORGED: dict[str, object] = {
    "nothing": "",
    "no JSON": "{",
    "an array": "[1]",
    "a number": "7",
    "null": "null",
    "a null": {ORG_1: None},
    "text": {ORG_1: "7"},
    "a fraction": {ORG_1: 1.5},
    "too much": {ORG_1: 10**30},
    "true": {ORG_1: True},
    "an object": {ORG_1: {"token": 7}},
    "another resource": {ORG_2: 1, ALL: 1, "charges:": 1, "": 1},
    "a zero byte": '{"charges:org_1\\u0000": 7}',
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_a_forged_setting_that_names_no_token_is_as_good_as_none(
    forged: object, owner: Connection, ledger: Ledger, admin: Connection
) -> None:
    tokens(ledger, ORG_1, ORG_2)
    with write_refused("LG103", admin), forging(owner, forged):
        owner.execute(WRITE)


def test_a_forged_number_is_judged_like_any_other(owner: Connection, ledger: Ledger, admin: Connection) -> None:
    stale = activated(ledger, ALICE, ORG_1)
    activated(ledger, BOB, ORG_1)
    other = activated(ledger, ALICE, ORG_2)
    for number, code in ((0, "LG102"), (-1, "LG102"), (10**17, "LG102"), (other, "LG102"), (stale, "LG101")):
        with write_refused(code, admin), forging(owner, {ORG_1: number}):
            owner.execute(WRITE)
    with write_refused("LG105", admin), forging(owner, {ORG_1: drawn(ledger, ORG_1)}):
        owner.execute(WRITE)


def test_a_write_bounds_its_transaction_whatever_was_set_before_it(owner: Connection, ledger: Ledger) -> None:
    """The settings of present_token may be undone, or presenting be forged: each write sees to them again."""
    active = tokens(ledger, ORG_1)
    for name, undone, seen_to in (
        ("idle_in_transaction_session_timeout", "0", "10s"),
        ("idle_in_transaction_session_timeout", "1h", "10s"),
        ("synchronous_commit", "off", "on"),
    ):
        for presented in (presenting(owner, active), forging(owner, active)):
            with presented:
                owner.execute(f"set local {name} = '{undone}'")
                owner.execute(WRITE)
                assert owner.execute(f"show {name}").fetchone() == (seen_to,)


def test_presenting_mends_a_forged_setting(owner: Connection, ledger: Ledger) -> None:
    for forged in ("[1]", "7", "{", '"x"'):
        with forging(owner, forged), presenting(owner, tokens(ledger, ORG_1)):
            owner.execute(WRITE)


def test_on_a_new_timeline_every_write_is_refused(owner: Connection, ledger: Ledger, admin: Connection) -> None:
    active = tokens(ledger, ORG_1)
    on_a_new_timeline(admin)
    for presented in (active, {}):
        with write_refused("LG106", admin), forging(owner, presented):
            owner.execute(WRITE)


def test_a_writer_without_a_token_does_not_wait_for_the_job_that_needs_its_rows(
    owner: Connection, rival: Connection, admin: Connection
) -> None:
    with rival.transaction():
        Ledger(rival).lock_job(ORG_1, BOB)
        with write_refused("LG103", admin):
            owner.execute(WRITE)
        rival.execute(WRITE)


def test_a_job_presents_its_token_by_taking_its_lock(owner: Connection, ledger: Ledger) -> None:
    with owner.transaction():
        ledger.lock_job(ORG_1, ALICE)
        owner.execute(WRITE)


def test_a_worker_who_does_not_own_the_table_is_judged_alike(
    owner: Connection, connect: Connect, operator_dsn: str, ledger: Ledger, admin: Connection
) -> None:
    owner.execute("grant all on charge to ledger_operator")
    operator = connect(operator_dsn)
    with write_refused("LG103", admin) as refusal:
        operator.execute(WRITE)
    assert refusal.tells(role="ledger_operator")
    with presenting(operator, tokens(ledger, ORG_1)):
        operator.execute(WRITE)


def test_a_role_that_has_no_rights_in_the_ledger_is_refused_by_the_fence_and_not_by_an_error(
    admin: Connection
) -> None:
    admin.execute("begin; create role passer_by; grant all on charge to passer_by; set local role passer_by")
    with write_refused("LG103", admin), admin.transaction():
        admin.execute(WRITE)
    admin.execute("rollback")


# Twenty-five resources in one statement.


@pytest.fixture
def many(owner: Connection, ledger: Ledger) -> dict[str, int]:
    """Rows of 25 organisations, inserted in two opposite orders, and a token for each."""
    names = [f"charges:o{number:02}" for number in range(25)]
    active = tokens(ledger, *names)
    with presenting(owner, active):
        owner.execute("insert into charge select 100 + n, 'o' || to_char(n, 'FM00') from generate_series(0, 24) as n")
    return active


def test_two_writers_from_both_ends_never_wait_for_each_other_in_a_circle(
    owner: Connection, many: dict[str, int], rival: Connection, connect: Connect, admin: Connection
) -> None:
    activator = Ledger(connect())
    rounds = range(1, 21)

    def write(connection: Connection, order: LiteralString, first_id: int) -> None:
        for number in rounds:
            with forging(connection, many):
                connection.execute(
                    "insert into charge select %s + n, 'o' || to_char(n, 'FM00') "
                    f"from generate_series(0, 24) as n order by n {order}",
                    [first_id + 100 * number],
                )

    writers = [in_background(lambda: write(owner, "asc", 10_000)), in_background(lambda: write(rival, "desc", 20_000))]
    while not all(writer.done() for writer in writers):
        for resource, token in many.items():
            activator.activate_token(resource, token, ALICE)  # a no-op that closes the gate
    for writer in writers:
        writer.result()
    assert admin.execute("select count(*) from charge where id >= 10000").fetchone() == (2 * 20 * 25,)


def test_tokens_are_presented_in_one_order_whatever_the_order_given(
    owner: Connection, many: dict[str, int], rival: Connection
) -> None:
    with owner.transaction(), rival.transaction():
        Ledger(owner).present_tokens(dict(reversed(many.items())))
        Ledger(rival).present_tokens(many)
        owner.execute("update charge set amount = 2 where id between 100 and 124")
