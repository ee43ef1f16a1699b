from __future__ import annotations

from datetime import timedelta
from typing import Any, LiteralString

import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import ALICE, Connection, as_ledger_fn, raised, refused

KIND = "charges"
WRITE: LiteralString = "insert into charge values (1, 'org_1')"


@pytest.fixture(autouse=True)
def charge(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    admin.execute("grant create on schema public to ledger_worker")
    connection.execute("create table charge (id integer, org_id text)")
    ledger.protect_table("charge", kind=KIND, column_name="org_id")


def switched(operators: Ledger, to: str, **options: Any) -> str:
    return operators.set_mode(KIND, to, actor="carol", reason="roll-out", **options).mode


def test_a_change_is_journaled_with_actor_and_reason(operators: Ledger, admin: Connection) -> None:
    assert switched(operators, "shadow") == "shadow"
    assert operators.get_kind(KIND).mode == "shadow"
    assert admin.execute(
        "select kind, actor, reason, database_user, detail from ledger.event where event = 'mode_set'"
    ).fetchall() == [
        (KIND, "carol", "roll-out", "ledger_operator", {"before": "enforce", "after": "shadow", "forced": False})
    ]


def test_the_mode_it_has_is_a_no_op(operators: Ledger, admin: Connection) -> None:
    for mode in ("enforce", "shadow", "off"):
        switched(operators, mode)
        before = admin.execute("select count(*) from ledger.event").fetchone()
        switched(operators, mode)
        assert admin.execute("select count(*) from ledger.event").fetchone() == before


def test_a_kind_that_was_never_used_is_made(operators: Ledger) -> None:
    operators.set_mode("fresh", "shadow", actor="carol", reason="before the first run")
    kind = operators.get_kind("fresh")
    assert (kind.known, kind.mode, kind.lock) == (True, "shadow", "advisory")


def test_in_psql_name_and_reason_may_come_from_settings(
    connect: Connect, operator_dsn: str, admin: Connection
) -> None:
    with connect(operator_dsn).transaction() as block:
        block.connection.execute("set local ledger.actor = 'carol'; set local ledger.reason = 'by hand'")
        block.connection.execute("select ledger.set_mode('charges', 'off')")
    assert admin.execute("select actor, reason from ledger.event where event = 'mode_set'").fetchall() == [
        ("carol", "by hand")
    ]


@pytest.mark.parametrize("mode", ["off", "shadow", "enforce"])
def test_the_refunds_own_kind_always_enforces(mode: str, operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        operators.set_mode("settle", mode, actor="carol", reason="no")
    assert refusal.tells(
        function="set_mode", kind="settle", mode=mode,
        reason="refund functions always enforce; modes are for protected tables",
    )  # fmt: skip


@pytest.mark.parametrize("mode", [None, "", "on", "SHADOW"])
def test_an_unknown_mode_is_refused(mode: str, operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        switched(operators, mode)
    assert refusal.tells(reason="mode is off, shadow or enforce")


@pytest.mark.parametrize("kind", [None, "", "a:b", "a{b", "x" * 101])
def test_a_malformed_kind_is_refused(kind: str, operators: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        operators.set_mode(kind, "off", actor="carol", reason="roll-out")


@pytest.mark.parametrize(("actor", "reason"), [(None, "x"), ("x", None), ("", "x"), ("x", "  ")])
def test_it_needs_a_name_and_a_reason(
    actor: str | None, reason: str | None, operators: Ledger, admin: Connection
) -> None:
    with refused("LG304", admin):
        operators.set_mode(KIND, "off", actor=actor, reason=reason)


@pytest.mark.parametrize("quiet_for", [None, timedelta(seconds=-1)])
def test_a_quiet_time_that_is_none_is_refused(
    quiet_for: timedelta, operators: Ledger, admin: Connection
) -> None:
    with refused("LG304", admin):
        switched(operators, "off", quiet_for=quiet_for)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_under_an_old_snapshot_it_is_refused(
    level: str, connect: Connect, operator_dsn: str, admin: Connection
) -> None:
    operator = connect(operator_dsn)
    operator.execute(f"set default_transaction_isolation = '{level}'")
    with refused("LG304", admin) as refusal:
        switched(Ledger(operator), "shadow")
    assert refusal.tells(reason="a mode is changed under READ COMMITTED")


def test_a_worker_may_not_change_it(ledger: Ledger, admin: Connection) -> None:
    with refused("42501", admin):
        switched(ledger, "off")


# To enforce


@pytest.mark.parametrize("through", ["", "off"])
def test_enforce_is_refused_while_would_be_refusals_are_recent(
    through: str, connect: Connect, dsn: str, operators: Ledger, admin: Connection
) -> None:
    switched(operators, "shadow")
    billing = connect(dsn, application_name="nightly-billing")
    for _ in range(3):
        billing.execute(WRITE)
    if through:
        switched(operators, through)
    with refused("LG304", admin) as refusal:
        switched(operators, "enforce")
    assert refusal.message == (
        "set_mode of charges refused: writes of the last 1 day would have been refused, by ledger_worker; "
        "look at them with ledger refusals, or force it with forced => true; nothing was changed"
    )
    (found,) = refusal.detail["would_be_refusals"]
    assert found.pop("latest")
    assert found == {
        "code": "LG103", "table": "public.charge", "user": "ledger_worker", "application": "nightly-billing",
        "refusals": 3, "statement": WRITE, "resource": "charges:org_1",
    }  # fmt: skip


def test_it_can_be_forced_and_that_is_on_record(connection: Connection, operators: Ledger, admin: Connection) -> None:
    switched(operators, "shadow")
    connection.execute(WRITE)
    assert switched(operators, "enforce", forced=True) == "enforce"
    assert admin.execute(
        "select detail ->> 'forced' from ledger.event where event = 'mode_set' order by event_id"
    ).fetchall() == [("false",), ("true",)]
    with raised("LG103"):
        connection.execute(WRITE)


def test_what_is_older_than_the_quiet_time_does_not_count(
    connection: Connection, operators: Ledger, admin: Connection
) -> None:
    switched(operators, "shadow")
    as_ledger_fn(
        admin,
        "insert into ledger.refusal (code, kind, mode, at) "
        "values ('LG103', 'charges', 'shadow', clock_timestamp() - interval '25 hours')",
    )
    with refused("LG304", admin):
        switched(operators, "enforce", quiet_for=timedelta(hours=26))
    assert switched(operators, "enforce") == "enforce"


def test_other_kinds_and_real_refusals_do_not_count(operators: Ledger, admin: Connection) -> None:
    switched(operators, "shadow")
    as_ledger_fn(
        admin,
        "insert into ledger.refusal (code, kind, mode) "
        "values ('LG103', 'others', 'shadow'), ('LG101', 'charges', 'enforce')",
    )
    assert switched(operators, "enforce") == "enforce"


# Waiting


@pytest.mark.parametrize("before", ["off", "shadow"])
def test_a_transaction_that_goes_unchecked_is_named_when_it_takes_too_long(
    before: str, connect: Connect, operator_dsn: str, connection: Connection, operators: Ledger, admin: Connection
) -> None:
    switched(operators, before)
    operator = connect(operator_dsn)
    with connection.transaction():
        connection.execute(WRITE)
        with operator.transaction():
            operator.execute("set local lock_timeout = '100ms'")
            with refused("55P03", admin) as refusal, operator.transaction():
                switched(Ledger(operator), "enforce")
            assert operator.execute("show lock_timeout").fetchone() == ("100ms",)
    assert refusal.detail["held_by"][0]["pid"] == connection.info.backend_pid
    assert refusal.message.startswith("set_mode of charges refused: the switch is held by pid")
    assert operators.get_kind(KIND).mode == before


@pytest.mark.heavy
def test_it_waits_two_seconds_at_most(connection: Connection, operators: Ledger) -> None:
    switched(operators, "off")
    with connection.transaction():
        connection.execute(WRITE)
        connection.execute("set local statement_timeout = '60s'")
        with raised("55P03"):
            switched(operators, "enforce")


def test_a_job_under_way_does_not_delay_a_change(connection: Connection, ledger: Ledger, operators: Ledger) -> None:
    with connection.transaction():
        ledger.lock_job("charges:org_1", ALICE)
        connection.execute(WRITE)
        assert switched(operators, "shadow") == "shadow"


def test_a_kind_that_is_being_made_elsewhere_is_waited_for(
    rival: Connection, connect: Connect, operator_dsn: str, admin: Connection
) -> None:
    operator = connect(operator_dsn)
    operator.execute("set lock_timeout = '100ms'")
    with rival.transaction():
        Ledger(rival).lock_job("fresh:one", ALICE)
        with refused("55P03", admin) as refusal:
            Ledger(operator).set_mode("fresh", "shadow", actor="carol", reason="roll-out")
        assert refusal.detail["held_by"][0]["pid"] == rival.info.backend_pid
    assert Ledger(operator).set_mode("fresh", "shadow", actor="carol", reason="roll-out").mode == "shadow"


