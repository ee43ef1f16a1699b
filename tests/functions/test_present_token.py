from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.functions.test_draw_token import MALFORMED
from tests.story import (
    ALICE,
    BOB,
    UNDRAWN,
    Connection,
    activated,
    drawn,
    in_background,
    is_waiting,
    limited,
    on_a_new_timeline,
    raised,
    refused,
    until,
)

JOB = "charges:org_1"
WHO: dict[str, Any] = {"actor": "carol", "reason": "a test"}


def limit(connection: Connection) -> tuple[str, ...] | None:
    return connection.execute("show idle_in_transaction_session_timeout").fetchone()


def test_the_active_token_is_bound_to_the_transaction(connection: Connection, ledger: Ledger) -> None:
    token = activated(ledger, ALICE, JOB)
    with connection.transaction():
        ledger.present_token(JOB, token)
        assert connection.execute("select current_setting('ledger.tokens')").fetchone() == (f'{{"{JOB}": {token}}}',)
        assert limit(connection) == ("10s",)
    assert connection.execute("select current_setting('ledger.tokens')").fetchone() == ("",)
    assert limit(connection) == ("0",)


def test_it_may_be_presented_again_and_beside_others(connection: Connection, ledger: Ledger) -> None:
    one, two = activated(ledger, ALICE, JOB), activated(ledger, ALICE, "charges:org_2")
    with connection.transaction():
        ledger.present_token(JOB, one)
        ledger.present_token("charges:org_2", two)
        ledger.present_token(JOB, one)
        (bound,) = connection.execute("select current_setting('ledger.tokens')::jsonb").fetchone() or ({},)
    assert bound == {JOB: one, "charges:org_2": two}


@pytest.mark.parametrize("resource", MALFORMED)
def test_a_malformed_resource_is_refused(resource: str, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.present_token(resource, 1)
    assert refusal.tells(function="present_token", reason="a resource is kind:name, printable, without braces, "
                         "at most 300 characters")  # fmt: skip


@pytest.mark.parametrize("token", [None, 0, -1, UNDRAWN, 2**63 - 1])
def test_a_number_that_nobody_drew_is_refused(token: int, ledger: Ledger, admin: Connection) -> None:
    activated(ledger, ALICE, JOB)
    with refused("LG102", admin) as refusal:
        ledger.present_token(JOB, token)
    assert refusal.tells(function="present_token", resource=JOB, token=token)
    assert "was never drawn for it; nothing was changed" in refusal.message
    assert "ledger.draw_token(resource)" in refusal.hint


def test_a_stale_token_is_refused_and_told_who_took_over(ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    void, old = drawn(ledger, JOB), activated(ledger, ALICE, JOB)
    new = activated(rivals, BOB, JOB)
    with refused("LG101", admin) as refusal:
        ledger.present_token(JOB, old)
    assert refusal.tells(reason="superseded", token=old, active=new, holder=ALICE, active_holder=BOB, resource=JOB)
    assert refusal.message.startswith(f"present_token of {JOB} refused: token {old} is superseded; {new} is active")
    with refused("LG101", admin) as refusal:
        ledger.present_token(JOB, void)
    assert refusal.tells(reason="voided", token=void)


def test_a_drawn_token_is_refused_until_it_is_activated(ledger: Ledger, admin: Connection) -> None:
    token = drawn(ledger, JOB)
    with refused("LG105", admin) as refusal:
        ledger.present_token(JOB, token)
    assert refusal.tells(token=token, active=None)
    ledger.activate_token(JOB, token, ALICE)
    ledger.present_token(JOB, token)


def test_on_a_new_timeline_it_is_refused(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger, ALICE, JOB)
    on_a_new_timeline(admin)
    with refused("LG106", admin):
        ledger.present_token(JOB, token)


def test_it_waits_for_an_activation_and_then_knows(
    connection: Connection, ledger: Ledger, rival: Connection, admin: Connection
) -> None:
    old = activated(ledger, ALICE, JOB)
    with rival.transaction():
        activated(Ledger(rival), BOB, JOB)
        late = in_background(lambda: ledger.present_token(JOB, old))
        until(is_waiting(admin, connection))
    with refused("LG101", admin):
        late.result()


def test_an_activation_that_takes_too_long_is_busy(
    ledger: Ledger, rival: Connection, operators: Ledger, admin: Connection
) -> None:
    old = activated(ledger, ALICE, JOB)
    limited(operators, "charges", lock=0.1)
    with rival.transaction():
        activated(Ledger(rival), BOB, JOB)
        with refused("55P03", admin) as refusal:
            ledger.present_token(JOB, old)
    assert refusal.detail["held_by"][0]["pid"] == rival.info.backend_pid
    assert refusal.message.startswith(f"present_token of {JOB} refused: the gate is held by pid")


def test_activating_after_presenting_is_refused(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    token, newer = activated(ledger, ALICE, JOB), drawn(ledger, JOB)
    with refused("LG304", admin), connection.transaction():
        ledger.present_token(JOB, token)
        ledger.activate_token(JOB, newer, ALICE)


def test_a_lower_idle_limit_stays(connection: Connection, ledger: Ledger) -> None:
    token = activated(ledger, ALICE, JOB)
    with connection.transaction():
        connection.execute("set local idle_in_transaction_session_timeout = '3s'")
        ledger.present_token(JOB, token)
        assert limit(connection) == ("3s",)


@pytest.mark.parametrize(
    ("level", "code"), [("read committed", None), ("repeatable read", "LG102"), ("serializable", "LG102")]
)
def test_a_snapshot_that_can_not_see_whether_the_mode_changes_is_checked(
    level: str, code: str | None, connection: Connection, ledger: Ledger, operators: Ledger
) -> None:
    """Beside a change of the kind that is under way, it isn't waited for."""
    operators.set_kind("jobs", lock="advisory", **WHO)
    operators.set_mode("jobs", "off", **WHO)
    connection.execute(f"set default_transaction_isolation = '{level}'".encode())
    connection.execute("set lock_timeout = '1s'")
    assert isinstance(operators.connection, psycopg.Connection)
    with operators.connection.transaction():
        operators.set_kind("jobs", max_attempts=3, **WHO)
        if code is None:
            ledger.present_token("jobs:a", UNDRAWN)
        else:
            with raised(code):
                ledger.present_token("jobs:a", UNDRAWN)
    ledger.present_token("jobs:a", UNDRAWN)


def test_transactions_that_go_unchecked_go_side_by_side(
    connection: Connection, ledger: Ledger, rivals: Ledger, rival: Connection, operators: Ledger
) -> None:
    operators.set_kind("jobs", lock="advisory", **WHO)
    operators.set_mode("jobs", "off", **WHO)
    with connection.transaction(), rival.transaction():
        ledger.present_token("jobs:a", UNDRAWN)
        rivals.present_token("jobs:a", UNDRAWN)


def test_a_transaction_that_only_reads_locks_no_kind(connection: Connection, ledger: Ledger, operators: Ledger) -> None:
    operators.set_kind("jobs", lock="advisory", **WHO)
    operators.set_mode("jobs", "off", **WHO)
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        ledger.present_token("jobs:a", UNDRAWN)
