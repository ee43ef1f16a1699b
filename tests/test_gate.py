"""The gate: once a token is active, no write under another one commits, at no isolation level, on no row."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.errors import StaleToken
from tests.conftest import Connect
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    drawn,
    in_background,
    is_waiting,
    limited,
    raised,
    refund,
    refused,
    until,
)

READ_COMMITTED = psycopg.IsolationLevel.READ_COMMITTED
LEVELS = [READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
STRICT = LEVELS[1:]

# Every function that goes through the gate, on a refund that its holder has claimed, and on one it hasn't.
FENCED: dict[str, Callable[[Ledger, int], Any]] = {
    "claim_refund": lambda ledger, token: ledger.claim_refund(MERCHANT, "r_new", token),
    "claim_refunds": lambda ledger, token: ledger.claim_refunds(MERCHANT, token, 10),
    "confirm_refund": lambda ledger, token: ledger.confirm_refund(MERCHANT, "r_mine", token, "re_1"),
    "confirm_refunds": lambda ledger, token: ledger.confirm_refunds(MERCHANT, token, ["r_mine"], ["re_1"]),
    "fail_refund": lambda ledger, token: ledger.fail_refund(MERCHANT, "r_mine", token, "card closed"),
    "release_refund": lambda ledger, token: ledger.release_refund(MERCHANT, "r_mine", token, "not sent"),
    "mark_unknown": lambda ledger, token: ledger.mark_unknown(MERCHANT, "r_mine", token, "timeout"),
    "accept_refund": lambda ledger, token: ledger.accept_refund(MERCHANT, "r_mine", token, "re_1"),
}

every_fenced_call = pytest.mark.parametrize("call", FENCED.values(), ids=FENCED.keys())
at_every_level = pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())


@pytest.fixture
def token(ledger: Ledger) -> int:
    """Alice's active token, under which she has claimed r_mine; nobody has touched r_new."""
    added(ledger, "r_mine", "r_new")
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_mine", token)
    return token


def take_snapshot(connection: Connection) -> None:
    connection.execute("select from ledger.refund")


@every_fenced_call
@at_every_level
def test_the_active_token_passes(
    connection: Connection,
    ledger: Ledger,
    token: int,
    call: Callable[[Ledger, int], Any],
    level: psycopg.IsolationLevel,
) -> None:
    connection.isolation_level = level
    with connection.transaction():
        assert call(ledger, token)


@every_fenced_call
@at_every_level
def test_a_stale_token_is_refused_in_a_new_transaction(
    connection: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
    level: psycopg.IsolationLevel,
) -> None:
    active = activated(rivals, BOB)
    connection.isolation_level = level

    with refused("LG101", admin) as refusal, connection.transaction():
        call(ledger, token)

    assert refusal.tells(
        reason="superseded", token=token, active=active, holder=ALICE, active_holder=BOB, merchant_id=MERCHANT
    )


@every_fenced_call
@at_every_level
def test_a_call_that_lost_the_race_never_succeeds_and_its_retry_is_stale(
    connection: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
    level: psycopg.IsolationLevel,
) -> None:
    connection.isolation_level = level
    connection.autocommit = False
    take_snapshot(connection)
    active = activated(rivals, BOB)

    with refused("LG101" if level is READ_COMMITTED else "40001", admin):
        call(ledger, token)
    connection.rollback()

    with refused("LG101", admin) as refusal:
        call(ledger, token)
    assert refusal.tells(reason="superseded", token=token, active=active)


@every_fenced_call
@at_every_level
def test_a_call_that_waits_while_another_token_is_activated_is_refused(
    connection: Connection,
    rival: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
    level: psycopg.IsolationLevel,
) -> None:
    connection.isolation_level = level
    connection.autocommit = False
    later = drawn(rivals)
    with rival.transaction():
        rivals.activate_token(RESOURCE, later, BOB)
        waiting = in_background(lambda: call(ledger, token))
        until(is_waiting(admin, connection))

    # Its snapshot is as old as its statement, so the stricter levels can't tell who is active now.
    with refused("LG101" if level is READ_COMMITTED else "40001", admin):
        waiting.result(5)


@every_fenced_call
def test_a_call_that_waited_for_an_activation_in_vain_goes_on(
    connection: Connection,
    rival: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
) -> None:
    later = drawn(rivals)
    with rival.transaction(force_rollback=True):
        rivals.activate_token(RESOURCE, later, BOB)
        waiting = in_background(lambda: call(ledger, token))
        until(is_waiting(admin, connection))

    assert waiting.result(5)


@every_fenced_call
@at_every_level
def test_activation_waits_for_a_write_in_flight(
    connection: Connection,
    rival: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
    level: psycopg.IsolationLevel,
) -> None:
    connection.isolation_level = level
    later = drawn(rivals)
    with connection.transaction():
        call(ledger, token)
        activation = in_background(lambda: rivals.activate_token(RESOURCE, later, BOB))
        until(is_waiting(admin, rival))
        assert admin.execute("select active from ledger.fence").fetchone() == (token,)

    activation.result(5)
    assert admin.execute("select active from ledger.fence").fetchone() == (later,)


def test_activation_waits_for_a_write_that_was_refused_as_little_as_for_none(
    connection: Connection, ledger: Ledger, rivals: Ledger, token: int
) -> None:
    connection.autocommit = False
    with raised("LG201"):
        ledger.claim_refund(MERCHANT, "r_404", token)

    activated(rivals, BOB)  # while that transaction is still open, and aborted


def test_no_write_begins_while_an_activation_waits(
    connection: Connection,
    rival: Connection,
    ledger: Ledger,
    rivals: Ledger,
    connect: Connect,
    admin: Connection,
    token: int,
) -> None:
    third = connect()
    later = drawn(rivals)
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_new", token)
        activation = in_background(lambda: rivals.activate_token(RESOURCE, later, BOB))
        until(is_waiting(admin, rival))
        behind = in_background(lambda: Ledger(third).claim_refund(MERCHANT, "r_mine", token))
        until(is_waiting(admin, third))

    activation.result(5)
    with raised("LG101"):
        behind.result(5)


def test_holders_without_pause_do_not_starve_an_activation(
    connect: Connect, rivals: Ledger, admin: Connection, operators: Ledger, token: int
) -> None:
    limited(operators, idle=2, lock=2)
    stop = threading.Event()
    passed: list[int] = []

    def write_on(own: Connection) -> None:
        while not stop.is_set():
            with own.transaction():
                Ledger(own).claim_refund(MERCHANT, "r_mine", token)
                own.execute("select pg_sleep(0.005)")
            passed.append(1)

    writers = [in_background(partial(write_on, connect())) for _ in range(4)]
    try:
        until(lambda: len(passed) > 8)
        later = activated(rivals, BOB)
        for writer in writers:
            with raised("LG101") as refusal:
                writer.result(5)
            assert refusal.tells(active=later)
    finally:
        stop.set()


def test_nothing_is_written_under_an_old_token_to_rows_that_nobody_touched(
    ledger: Ledger, rivals: Ledger, admin: Connection, token: int
) -> None:
    activated(rivals, BOB)
    added(ledger, "r_newer")

    for refund_id in ("r_new", "r_newer"):
        with refused("LG101", admin):
            ledger.claim_refund(MERCHANT, refund_id, token)
        assert refund(admin, refund_id, "fence", "state") == (0, "pending")


@at_every_level
def test_no_entry_of_an_old_token_comes_after_the_activation(
    connection: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    token: int,
    level: psycopg.IsolationLevel,
) -> None:
    """For inserts there is no row that could be compared: what the journal gets is fenced by the gate alone."""
    connection.isolation_level = level
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_new", token)
        later = in_background(lambda: activated(rivals, BOB))
        until(lambda: admin.execute("select 1 from pg_locks where locktype = 'advisory' and not granted").fetchone())
        ledger.mark_unknown(MERCHANT, "r_new", token, "timeout")
    later.result(5)

    rows = admin.execute(
        "select count(*) from ledger.journal j join ledger.event e on e.token = %s and e.event = 'activated'"
        " where j.token = %s and j.at > e.at",
        [later.result(), token],
    ).fetchone()
    assert rows == (0,)
    assert refund(admin, "r_new", "state", "fence") == ("unknown", token)


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name.lower())
def test_a_resource_without_a_fence_gives_a_strict_transaction_no_way_in(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, level: psycopg.IsolationLevel
) -> None:
    added(ledger, "r_new")
    mine = drawn(ledger)
    connection.isolation_level = level
    connection.autocommit = False
    take_snapshot(connection)
    activated(rivals, BOB)

    with refused("LG105", admin):  # true of its snapshot
        ledger.claim_refund(MERCHANT, "r_new", mine)
    connection.rollback()
    with refused("LG101", admin) as refusal:
        ledger.claim_refund(MERCHANT, "r_new", mine)
    assert refusal.tells(reason="voided")


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name.lower())
def test_a_snapshot_older_than_the_token_asks_for_a_retry(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int, level: psycopg.IsolationLevel
) -> None:
    connection.isolation_level = level
    connection.autocommit = False
    take_snapshot(connection)
    undecided = drawn(rivals)

    with refused("40001", admin) as refusal:
        ledger.claim_refund(MERCHANT, "r_new", undecided)
    connection.rollback()
    assert refusal.tells(token=undecided)
    with refused("LG105", admin):
        ledger.claim_refund(MERCHANT, "r_new", undecided)


@every_fenced_call
@at_every_level
def test_a_savepoint_that_rolls_back_takes_the_gate_away_with_what_was_written(
    connection: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
    level: psycopg.IsolationLevel,
) -> None:
    connection.isolation_level = level
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            call(ledger, token)
        later = activated(rivals, BOB)  # waits for nothing: nothing was written
        if level is READ_COMMITTED:
            with raised("LG101"), connection.transaction():
                call(ledger, token)
        else:
            with raised("40001"), connection.transaction():
                call(ledger, token)

    assert admin.execute("select active from ledger.fence").fetchone() == (later,)
    assert refund(admin, "r_mine", "state") == "sending"
    assert refund(admin, "r_new", "state") == "pending"


def test_a_savepoint_that_rolled_back_lets_the_transaction_activate(
    connection: Connection, ledger: Ledger, token: int
) -> None:
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            ledger.claim_refund(MERCHANT, "r_new", token)
        later = activated(ledger)
        assert ledger.claim_refund(MERCHANT, "r_new", later).outcome == "claimed"


def test_a_savepoint_that_is_released_keeps_the_gate(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int
) -> None:
    with connection.transaction():
        with connection.transaction():
            ledger.claim_refund(MERCHANT, "r_new", token)
        activation = in_background(lambda: activated(rivals, BOB))
        until(is_waiting(admin, rival))
    activation.result(5)


def test_a_call_before_the_savepoint_keeps_the_gate_when_that_rolls_back(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int
) -> None:
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_new", token)
        with connection.transaction(force_rollback=True):
            ledger.claim_refund(MERCHANT, "r_mine", token)
        activation = in_background(lambda: activated(rivals, BOB))
        until(is_waiting(admin, rival))
    activation.result(5)


@every_fenced_call
@at_every_level
def test_activating_after_writing_is_refused(
    connection: Connection,
    ledger: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
    level: psycopg.IsolationLevel,
) -> None:
    connection.isolation_level = level
    later = drawn(ledger)

    with refused("LG304", admin) as refusal, connection.transaction():
        call(ledger, token)
        ledger.activate_token(RESOURCE, later, ALICE)
    assert refusal.tells(function="activate_token", resource=RESOURCE, token=later)


def test_an_activation_and_writes_under_it_may_not_be_followed_by_another(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    with refused("LG304", admin), connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", activated(ledger))
        activated(ledger)


def test_two_resources_in_crossed_order_with_activators_waiting_do_not_deadlock(
    connection: Connection, rival: Connection, ledger: Ledger, connect: Connect, admin: Connection
) -> None:
    merchants = ("m_1", "m_2")
    for merchant_id in merchants:
        added(ledger, "r_1", "r_2", merchant_id=merchant_id)
    tokens = {merchant_id: activated(ledger, resource=f"settle:{merchant_id}") for merchant_id in merchants}
    inside, cross = threading.Barrier(3, timeout=5), threading.Event()

    def claim_both(own: Connection, first: str, second: str) -> str:
        with own.transaction():
            Ledger(own).claim_refund(first, "r_1", tokens[first])
            inside.wait()
            assert cross.wait(5)
            return Ledger(own).claim_refund(second, "r_2", tokens[second]).outcome

    crossing = [
        in_background(lambda: claim_both(connection, "m_1", "m_2")),
        in_background(lambda: claim_both(rival, "m_2", "m_1")),
    ]
    inside.wait()
    activators = [connect(), connect()]
    activations = [
        in_background(partial(activated, Ledger(own), BOB, f"settle:{merchant_id}"))
        for own, merchant_id in zip(activators, merchants, strict=True)
    ]
    for own in activators:
        until(is_waiting(admin, own))
    cross.set()

    # Each holder is behind an activator that is behind the other holder. The server lets one of them past the queue;
    # the other goes on when that one has committed, and may find itself fenced out by then.
    outcomes = []
    for holder in crossing:
        try:
            outcomes.append(holder.result(5))
        except StaleToken as refusal:
            outcomes.append(refusal.code)
    assert "claimed" in outcomes
    assert set(outcomes) <= {"claimed", "LG101"}
    for activation in activations:
        activation.result(5)


def test_another_resource_has_another_gate(connection: Connection, ledger: Ledger, rivals: Ledger, token: int) -> None:
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_new", token)

        assert activated(rivals, BOB, "settle:m_2") > token


def test_writes_of_one_token_go_side_by_side(
    connection: Connection, ledger: Ledger, rivals: Ledger, token: int
) -> None:
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_new", token)

        assert rivals.confirm_refund(MERCHANT, "r_mine", token, "re_1").outcome == "confirmed"


def test_a_call_waits_at_the_gate_no_longer_than_the_kinds_lock_limit(
    rival: Connection, ledger: Ledger, rivals: Ledger, operators: Ledger, admin: Connection, token: int
) -> None:
    limited(operators, idle=5, lock=0.1)
    rival.execute("set application_name = 'settle-2'")
    later = drawn(rivals)
    with rival.transaction(force_rollback=True):
        rivals.activate_token(RESOURCE, later, BOB)
        with refused("55P03", admin) as refusal:
            ledger.claim_refund(MERCHANT, "r_new", token)

    (held_by,) = refusal.detail["held_by"]
    assert (held_by["pid"], held_by["user"], held_by["application"]) == (
        rival.info.backend_pid,
        "ledger_worker",
        "settle-2",
    )
    assert refusal.tells(function="claim_refund", resource=RESOURCE, token=token)
    assert "the gate is held by pid" in refusal.message
    assert "docs/errors.md, 55P03" in refusal.hint


def test_before_the_first_activation_the_limit_is_the_kinds_too(
    rival: Connection, ledger: Ledger, rivals: Ledger, operators: Ledger, admin: Connection
) -> None:
    limited(operators, idle=20, lock=0.1)
    operators.set_kind("other", lock_limit=timedelta(seconds=20), actor="tests", reason="not this one")
    token = drawn(rivals, "settle:m_7")
    with rival.transaction(force_rollback=True):
        rivals.activate_token("settle:m_7", token, BOB)
        ledger.connection.execute("set statement_timeout = '4s'")
        with refused("55P03", admin):
            ledger.claim_refund("m_7", "r_1", token)


@pytest.mark.parametrize("wait", ["call", "activation"])
def test_a_shorter_lock_timeout_of_the_callers_wins(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int, wait: str
) -> None:
    later, holder, waiter = drawn(rivals), *((rival, connection) if wait == "call" else (connection, rival))
    waiter.execute("set lock_timeout = '50ms'")
    with holder.transaction(force_rollback=True):
        if wait == "call":
            rivals.activate_token(RESOURCE, later, BOB)
        else:
            ledger.claim_refund(MERCHANT, "r_new", token)
        with refused("55P03", admin):
            if wait == "call":
                ledger.claim_refund(MERCHANT, "r_new", token)
            else:
                rivals.activate_token(RESOURCE, later, BOB)
        waited = admin.execute(
            "select state_change - query_start < '2 s' from pg_stat_activity where pid = %s",
            [waiter.info.backend_pid],
        ).fetchone()

    assert waited == (True,)
    assert waiter.execute("show lock_timeout").fetchone() == ("50ms",)


@pytest.mark.parametrize("wait", ["call", "activation"])
def test_a_wait_leaves_the_callers_lock_timeout_as_it_was(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int, wait: str
) -> None:
    """It is longer than both limits, and so none of those that were waited for."""
    later, holder, waiter = drawn(rivals), *((rival, connection) if wait == "call" else (connection, rival))
    waiter.execute("set lock_timeout = '21s'")
    with holder.transaction(force_rollback=True):
        if wait == "call":
            rivals.activate_token(RESOURCE, later, BOB)
        else:
            ledger.claim_refund(MERCHANT, "r_new", token)
        waiter.execute("begin")
        waiting = in_background(
            lambda: (
                ledger.claim_refund(MERCHANT, "r_new", token)
                if wait == "call"
                else rivals.activate_token(RESOURCE, later, BOB)
            )
        )
        until(is_waiting(admin, waiter))
    waiting.result(5)

    assert waiter.execute("show lock_timeout").fetchone() == ("21s",)


def test_a_fenced_call_bounds_its_transaction_and_never_raises_a_lower_bound(
    connection: Connection, ledger: Ledger, operators: Ledger, token: int
) -> None:
    limited(operators, idle=7)

    def bound() -> Any:
        return connection.execute("show idle_in_transaction_session_timeout").fetchone()

    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_new", token)
        assert bound() == ("7s",)
    assert bound() == ("0",)
    connection.execute("set idle_in_transaction_session_timeout = '5s'")
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_mine", token)
        assert bound() == ("5s",)
