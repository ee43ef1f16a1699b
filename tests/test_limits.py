"""A transaction that passes the gate is bounded by the kind's limits from then on, and no tighter bound is loosened.

Before version 17 Postgres had no transaction_timeout: there the transaction limit does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import BOB, MERCHANT, RESOURCE, Connection, activated, added, as_ledger_fn, drawn

IDLE, TRANSACTION = 3000, 7000  # milliseconds
SETTINGS = ("idle_in_transaction_session_timeout", "transaction_timeout")

CALLS: dict[str, Callable[[Ledger, int], Any]] = {
    "claim_refund": lambda ledger, token: ledger.claim_refund(MERCHANT, "r_1", token),
    "mark_unknown": lambda ledger, token: ledger.mark_unknown(MERCHANT, "r_2", token, "timeout"),
    "activate_token": lambda ledger, token: ledger.activate_token(RESOURCE, token + 1, BOB),
}


@pytest.fixture
def token(ledger: Ledger, operators: Ledger) -> int:
    """Active, with a later one drawn."""
    operators.set_kind(
        "settle",
        idle_limit=timedelta(milliseconds=IDLE),
        transaction_limit=timedelta(milliseconds=TRANSACTION),
        actor="carol",
        reason="a test",
    )
    added(ledger, "r_1", "r_2")
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_2", token)
    drawn(ledger)
    return token


def bounds(connection: Connection) -> tuple[int, int]:
    """Both settings, in milliseconds."""
    idle, transaction = (
        connection.execute(
            "select coalesce(extract(epoch from current_setting(%s, true)::interval) * 1000, 0)::integer", [name]
        ).fetchall()[0][0]
        for name in SETTINGS
    )
    return idle, transaction


def given(connection: Connection, milliseconds: int) -> tuple[int, int]:
    """The session has these bounds, as far as its server knows them."""
    for name in SETTINGS:
        if connection.execute("select current_setting(%s, true)", [name]).fetchall() != [(None,)]:
            connection.execute("select set_config(%s, %s, false)", [name, str(milliseconds)])
    return bounds(connection)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("milliseconds", [0, 60, IDLE, IDLE + 1, TRANSACTION, TRANSACTION + 1])
def test_the_tighter_bound_holds_until_the_transaction_ends(
    call: Callable[[Ledger, int], Any], milliseconds: int, ledger: Ledger, connection: Connection, token: int
) -> None:
    before = given(connection, milliseconds)
    knows_both = connection.info.server_version >= 170000
    with connection.transaction():
        call(ledger, token)
        idle, transaction = bounds(connection)
    assert idle == min(before[0] or IDLE, IDLE)
    assert transaction == (min(before[1] or TRANSACTION, TRANSACTION) if knows_both else 0)
    assert bounds(connection) == before


def test_the_tightest_bound_there_is_holds_too(connection: Connection, token: int) -> None:
    """One message, in which nobody is idle."""
    cursor = connection.execute(
        "begin; set local idle_in_transaction_session_timeout = 1; "
        f"select ledger.claim_refund('{MERCHANT}', 'r_1', {token}); "
        "select current_setting('idle_in_transaction_session_timeout'); commit".encode()
    )
    for _ in range(3):
        cursor.nextset()
    assert cursor.fetchall() == [("1ms",)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("milliseconds", [0, 60_000])
def test_without_a_transaction_limit_a_transaction_may_last(
    call: Callable[[Ledger, int], Any],
    milliseconds: int,
    ledger: Ledger,
    operators: Ledger,
    connection: Connection,
    token: int,
) -> None:
    operators.set_kind("settle", transaction_limit=timedelta(0), actor="carol", reason="a test")
    before = given(connection, milliseconds)
    with connection.transaction():
        call(ledger, token)
        assert bounds(connection) == (IDLE, before[1])


def test_no_transaction_limit_takes_none_of_the_sessions_back(
    ledger: Ledger, operators: Ledger, connect: Connect, token: int
) -> None:
    """Its role has one, and the session has lifted it."""
    operators.set_kind("settle", transaction_limit=timedelta(0), actor="carol", reason="a test")
    later = connect()
    if later.info.server_version >= 170000:
        later = connect(options="-c transaction_timeout=60000")
        later.execute("set transaction_timeout = 0")
    with later.transaction():
        Ledger(later).activate_token(RESOURCE, token + 1, BOB)
        Ledger(later).claim_refund(MERCHANT, "r_1", token + 1)
        assert bounds(later) == (IDLE, 0)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_repetition_that_changes_nothing_leaves_the_transaction_as_it_is(
    by: int, connection: Connection, ledger: Ledger, token: int, admin: Connection
) -> None:
    """Recognised under a token that isn't the active one, older or newer: it passes, and needs no bound."""
    token = activated(ledger, BOB)
    ledger.claim_refund(MERCHANT, "r_1", token)
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    as_ledger_fn(admin, "update ledger.fence set active = active + %s, barrier = barrier + 1", [by])
    before = given(connection, 0)
    connection.execute("set synchronous_commit = off")
    with connection.transaction():
        assert ledger.confirm_refund(MERCHANT, "r_1", token, "re_1").outcome == "already_confirmed"
        assert bounds(connection) == before
        assert connection.execute("show synchronous_commit").fetchall() == [("off",)]
