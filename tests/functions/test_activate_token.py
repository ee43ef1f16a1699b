from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from ledger.client import Ledger
from tests.functions.test_draw_token import MALFORMED
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    UNDRAWN,
    Connection,
    activated,
    added,
    as_ledger_fn,
    drawn,
    in_background,
    is_waiting,
    limited,
    on_a_new_timeline,
    raised,
    refused,
    unchanged,
    until,
)

MALFORMED_HOLDERS = {
    "null": None,
    "empty": "",
    "a colon": "alice:1",
    "a line break": "alice\n1",
    "301 characters": "a" * 301,
}


def fence(admin: Connection, resource: str = RESOURCE) -> tuple[int, int, str]:
    row = admin.execute("select active, barrier, holder from ledger.fence where resource = %s", [resource]).fetchone()
    assert row is not None
    active, barrier, holder = row
    return active, barrier, holder


def test_the_first_activation_makes_the_fence(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)

    assert fence(admin) == (token, token, ALICE)


def test_activating_voids_every_number_drawn_up_to_then(ledger: Ledger, admin: Connection) -> None:
    older, mine, higher = (drawn(ledger) for _ in range(3))
    ledger.activate_token(RESOURCE, mine, ALICE)

    assert fence(admin) == (mine, higher, ALICE)
    for void in (older, higher):
        with refused("LG101", admin) as refusal:
            ledger.activate_token(RESOURCE, void, BOB)
        assert refusal.tells(reason="voided", active=mine, active_holder=ALICE, barrier=higher, holder=BOB)
    assert fence(admin) == (mine, higher, ALICE)


def test_a_number_whose_draw_is_not_committed_yet_is_voided_too(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    """Those before the one that becomes active, and the last that anybody drew."""
    with connection.transaction():
        before = drawn(ledger)
        active = drawn(rivals)
        last = drawn(ledger)
        rivals.activate_token(RESOURCE, active, BOB)
    assert fence(admin) == (active, last, BOB)

    for open_draw in (before, last):
        with refused("LG101", admin) as refusal:
            ledger.activate_token(RESOURCE, open_draw, ALICE)
        assert refusal.tells(reason="voided", token=open_draw, active=active)


def test_a_holder_has_up_to_300_characters(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger, "a" * 300)
    assert fence(admin) == (token, token, "a" * 300)


def test_a_number_drawn_after_the_activation_may_follow(ledger: Ledger, admin: Connection) -> None:
    activated(ledger)
    later = activated(ledger, BOB)

    assert fence(admin) == (later, later, BOB)


def test_a_fence_says_since_when_its_token_is_active(ledger: Ledger, admin: Connection) -> None:
    since = []
    for _ in range(2):
        activated(ledger)
        since += admin.execute("select activated_at, clock_timestamp() from ledger.fence").fetchone() or ()
    assert since == sorted(since)
    assert len(set(since)) == 4


def test_an_activation_remembers_whom_it_followed(ledger: Ledger, admin: Connection) -> None:
    first, second = activated(ledger), activated(ledger, BOB)

    assert admin.execute(
        "select event, kind, resource, token, holder, previous_token, previous_holder, database_user from ledger.event"
        " order by event_id"
    ).fetchall() == [
        ("activated", "settle", RESOURCE, first, ALICE, None, None, "ledger_worker"),
        ("activated", "settle", RESOURCE, second, BOB, first, ALICE, "ledger_worker"),
    ]


def test_activating_again_by_the_same_holder_changes_nothing(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)

    with unchanged(admin):
        ledger.activate_token(RESOURCE, token, ALICE)


def test_an_activation_that_rolled_back_raised_nothing(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    first = activated(ledger)
    later = drawn(ledger)
    with unchanged(admin), connection.transaction(force_rollback=True):
        ledger.activate_token(RESOURCE, later, BOB)

    assert fence(admin) == (first, first, ALICE)
    ledger.activate_token(RESOURCE, later, BOB)


def test_one_transaction_may_draw_activate_and_write(connection: Connection, ledger: Ledger) -> None:
    added(ledger, "r_1")
    with connection.transaction():
        token = activated(ledger)
        assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


def test_the_first_activation_of_a_kind_writes_it_down_with_the_defaults(ledger: Ledger, admin: Connection) -> None:
    activated(ledger, resource="invoice:2026")

    kind = ledger.get_kind("invoice")
    assert (kind.known, kind.lock, kind.idle_limit, kind.max_attempts) == (True, "redis", timedelta(seconds=10), 5)
    assert admin.execute("select kind, idle_limit_ms, lock_limit_ms, max_attempts from ledger.fence").fetchall() == [
        ("invoice", 10_000, 5_000, 5)
    ]


def test_a_fence_carries_the_limits_of_its_kind(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    limited(operators, idle=0.25, lock=0.125)
    activated(ledger)

    assert admin.execute("select idle_limit_ms, lock_limit_ms, transaction_limit_ms from ledger.fence").fetchall() == [
        (250, 125, None)
    ]


def test_limits_that_were_set_beside_an_open_first_activation_come_with_the_next(
    connection: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    with connection.transaction():
        activated(ledger)
        # It sees no fence yet.
        operators.set_kind(
            "settle", idle_limit=timedelta(seconds=3), lock_limit=timedelta(seconds=4),
            transaction_limit=timedelta(seconds=5), max_attempts=9, key_window=timedelta(hours=7),
            actor="carol", reason="a test",
        )  # fmt: skip
    activated(ledger)

    assert admin.execute(
        "select idle_limit_ms, lock_limit_ms, transaction_limit_ms, max_attempts, key_window from ledger.fence"
    ).fetchall() == [(3000, 4000, 5000, 9, timedelta(hours=7))]


def test_a_transaction_that_activates_is_bounded_by_the_idle_limit(
    connection: Connection, ledger: Ledger, operators: Ledger
) -> None:
    limited(operators, idle=7)
    with connection.transaction():
        activated(ledger)
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("7s",)
    assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("0",)


def test_two_activations_at_once_take_turns(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection
) -> None:
    mine, theirs = drawn(ledger), drawn(rivals)
    with connection.transaction():
        ledger.activate_token(RESOURCE, mine, ALICE)
        other = in_background(lambda: rivals.activate_token(RESOURCE, theirs, BOB))
        until(is_waiting(admin, rival))

    with raised("LG101") as refusal:
        other.result(5)
    assert refusal.tells(reason="voided", token=theirs, active=mine)
    assert fence(admin) == (mine, theirs, ALICE)


@pytest.mark.parametrize("resource", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_resource_is_refused(connection: Connection, admin: Connection, resource: str | None) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.activate_token(%s, 1, %s)", [resource, ALICE])

    assert refusal.tells(function="activate_token", resource=resource, token=1, holder=ALICE)


@pytest.mark.parametrize("holder", MALFORMED_HOLDERS.values(), ids=MALFORMED_HOLDERS.keys())
def test_a_malformed_holder_is_refused(
    connection: Connection, ledger: Ledger, admin: Connection, holder: str | None
) -> None:
    token = drawn(ledger)
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.activate_token(%s, %s, %s)", [RESOURCE, token, holder])

    assert refusal.tells(reason="a holder is printable, without a colon, at most 300 characters")
    assert refusal.message == f"activate_token of settle:m_1 refused: {refusal.detail['reason']}; nothing was changed"


def test_a_transaction_that_wrote_under_the_resource_can_not_activate(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    later = drawn(ledger)

    with refused("LG304", admin) as refusal, connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", token)
        ledger.activate_token(RESOURCE, later, ALICE)

    assert "activate first" in refusal.detail["reason"]


def test_a_transaction_that_wrote_under_another_resource_can_activate(connection: Connection, ledger: Ledger) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", token)
        activated(ledger, resource="settle:m_2")


@pytest.mark.parametrize(
    "lock",
    {
        "a number that differs in its upper half": "pg_advisory_xact_lock_shared(key # (1::bigint << 40))",
        "a number that differs in its lower half": "pg_advisory_xact_lock_shared(key # 2)",
        "two numbers": "pg_advisory_xact_lock_shared((key >> 32)::integer, key::bit(32)::integer)",
        "the same one, exclusive": "pg_advisory_xact_lock(key)",
    }.items(),
    ids=lambda lock: lock[0],
)
def test_a_transaction_that_has_another_advisory_lock_can_activate(
    lock: tuple[str, str], connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    token = drawn(ledger)
    with connection.transaction():
        connection.execute(f"select {lock[1]} from hashtextextended('{RESOURCE}', 0) as key".encode())
        ledger.activate_token(RESOURCE, token, ALICE)
    assert fence(admin)[0] == token


def test_older_writes_in_flight_are_named_when_the_wait_is_over(
    connection: Connection, ledger: Ledger, rivals: Ledger, operators: Ledger, admin: Connection
) -> None:
    limited(operators, idle=0.3, lock=0.1)
    added(ledger, "r_1")
    token = activated(ledger)
    later = drawn(rivals)
    connection.execute("set application_name = 'settle-1'")
    with connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, "r_1", token)
        busy = in_background(lambda: connection.execute("select pg_sleep(3)"))
        try:
            with refused("55P03", admin) as refusal:
                rivals.activate_token(RESOURCE, later, BOB)
        finally:
            admin.execute("select pg_cancel_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.errors.QueryCanceled):
            busy.result(5)

    (held_by,) = refusal.detail["held_by"]
    pid = connection.info.backend_pid
    assert (held_by["pid"], held_by["user"], held_by["application"]) == (pid, "ledger_worker", "settle-1")
    assert refusal.message == (
        f"activate_token of settle:m_1 refused: the gate is held by pid {pid} (ledger_worker, settle-1); "
        "nothing was changed"
    )
    assert "pg_stat_activity" in refusal.hint
    assert refusal.tells(function="activate_token", resource=RESOURCE, token=later, holder=BOB, sessions_ended=[])


def test_nothing_is_activated_on_a_new_timeline(ledger: Ledger, admin: Connection) -> None:
    token = drawn(ledger)
    on_a_new_timeline(admin)

    with refused("LG106", admin):
        ledger.activate_token(RESOURCE, token, ALICE)


@pytest.mark.parametrize("token", [None, 0, -1, UNDRAWN])
@pytest.mark.parametrize("fenced", [False, True], ids=["without a fence", "with a fence"])
def test_a_number_that_was_never_drawn_is_refused(
    connection: Connection, ledger: Ledger, admin: Connection, token: int | None, fenced: bool
) -> None:
    active = activated(ledger) if fenced else None
    with refused("LG102", admin) as refusal:
        connection.execute("select ledger.activate_token(%s, %s, %s)", [RESOURCE, token, BOB])

    assert refusal.tells(token=token, resource=RESOURCE, holder=BOB)
    if token == UNDRAWN:
        assert refusal.tells(active=active)
    assert refusal.message == (
        f"activate_token of settle:m_1 refused: token {'null' if token is None else token} was never drawn for it; "
        "nothing was changed"
    )
    assert "ledger.draw_token(resource)" in refusal.hint


def test_a_number_drawn_for_another_resource_was_not_drawn_for_this_one(ledger: Ledger, admin: Connection) -> None:
    token = drawn(ledger, "settle:m_2")

    with refused("LG102", admin):
        ledger.activate_token(RESOURCE, token, ALICE)


def test_another_number_of_the_resource_makes_no_undrawn_one_valid(ledger: Ledger, admin: Connection) -> None:
    elsewhere = drawn(ledger, "settle:m_2")
    mine = drawn(ledger)

    for undrawn in (elsewhere, mine + 1):
        with refused("LG102", admin):
            ledger.activate_token(RESOURCE, undrawn, ALICE)
    ledger.activate_token(RESOURCE, mine, ALICE)


def test_an_activation_concerns_its_own_resource_alone(ledger: Ledger, admin: Connection) -> None:
    activated(ledger, BOB, "settle:m_2")
    other = drawn(ledger, "settle:m_3")
    mine, last = drawn(ledger), drawn(ledger)
    ledger.activate_token(RESOURCE, mine, ALICE)

    assert fence(admin) == (mine, last, ALICE)
    assert admin.execute("select resource, token from ledger.draw").fetchall() == [("settle:m_3", other)]
    assert admin.execute(
        "select previous_token, previous_holder from ledger.event where resource = %s", [RESOURCE]
    ).fetchall() == [(None, None)]
    ledger.activate_token("settle:m_3", other, BOB)


def test_a_holders_own_older_token_can_not_come_back_either(ledger: Ledger, admin: Connection) -> None:
    old = activated(ledger)
    activated(ledger)

    with refused("LG101", admin) as refusal:
        ledger.activate_token(RESOURCE, old, ALICE)
    assert refusal.tells(reason="superseded", token=old)


def test_a_superseded_token_can_not_come_back(ledger: Ledger, admin: Connection) -> None:
    old = activated(ledger)
    active = activated(ledger, BOB)

    with refused("LG101", admin) as refusal:
        ledger.activate_token(RESOURCE, old, ALICE)

    assert refusal.tells(reason="superseded", token=old, active=active, holder=ALICE, active_holder=BOB, barrier=active)
    assert refusal.message.startswith(
        f"activate_token of settle:m_1 refused: token {old} is superseded; {active} is active, held by {BOB} since 2"
    )
    assert refusal.message.endswith("; nothing was changed")
    assert refusal.hint == "Stop this batch: another holder has taken over. Draw a new token to try again."


def test_the_active_token_is_not_another_holders(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)

    with refused("LG101", admin) as refusal:
        ledger.activate_token(RESOURCE, token, BOB)

    assert refusal.tells(reason="superseded", token=token, active=token, holder=BOB, active_holder=ALICE)
    assert f"token {token} is another holder's; {token} is active, held by {ALICE}" in refusal.message


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_snapshot_older_than_the_draw_asks_for_a_retry(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, level: psycopg.IsolationLevel
) -> None:
    connection.isolation_level = level
    with raised("40001") as refusal, connection.transaction():
        connection.execute("select from ledger.refund")  # the snapshot is taken here
        token = drawn(rivals)
        ledger.activate_token(RESOURCE, token, ALICE)

    assert refusal.tells(function="activate_token", token=token)
    assert refusal.hint == "Roll back and try again in a new transaction."
    ledger.activate_token(RESOURCE, token, ALICE)

    assert fence(admin) == (token, token, ALICE)


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_activation_works_at_every_isolation_level(
    connection: Connection, ledger: Ledger, admin: Connection, level: psycopg.IsolationLevel
) -> None:
    connection.isolation_level = level
    with connection.transaction():
        activated(ledger)
    with connection.transaction():
        token = activated(ledger, BOB)

    assert fence(admin) == (token, token, BOB)


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("fenced", [False, True], ids=["without a fence", "with a fence"])
def test_an_activation_that_lost_the_race_is_retried_and_then_refused(
    connection: Connection,
    ledger: Ledger,
    rivals: Ledger,
    admin: Connection,
    level: psycopg.IsolationLevel,
    fenced: bool,
) -> None:
    if fenced:
        activated(ledger)
    mine = drawn(ledger)
    connection.isolation_level = level
    connection.autocommit = False
    with raised("40001"), connection.transaction():
        connection.execute("select from ledger.refund")  # the snapshot is taken here
        active = activated(rivals, BOB)
        ledger.activate_token(RESOURCE, mine, ALICE)

    with refused("LG101", admin) as refusal:
        ledger.activate_token(RESOURCE, mine, ALICE)
    assert refusal.tells(reason="voided", active=active)


def test_the_holder_is_looked_at_before_the_timeline(connection: Connection, admin: Connection) -> None:
    on_a_new_timeline(admin)

    with raised("LG304"):
        connection.execute("select ledger.activate_token(%s, 1, 'a:b')", [RESOURCE])


def test_the_timeline_is_looked_at_before_the_token(connection: Connection, admin: Connection) -> None:
    on_a_new_timeline(admin)

    with raised("LG106"):
        connection.execute("select ledger.activate_token(%s, null, %s)", [RESOURCE, ALICE])


def test_the_draws_that_are_swept_away_are_those_it_voids(ledger: Ledger, admin: Connection) -> None:
    """One that is committed meanwhile has a higher number and stays; so does one of another resource."""
    drawn(ledger)
    other, token = drawn(ledger, "settle:m_2"), drawn(ledger)
    later = token + 1000
    as_ledger_fn(admin, "insert into ledger.draw (resource, token) values (%s, %s)", [RESOURCE, later])
    ledger.activate_token(RESOURCE, token, ALICE)
    left = admin.execute("select resource, token from ledger.draw order by token").fetchall()
    assert left == [("settle:m_2", other), (RESOURCE, later)]


def test_limits_that_are_being_set_are_waited_for(
    ledger: Ledger, connection: Connection, operators: Ledger, admin: Connection
) -> None:
    activated(ledger)
    token = drawn(ledger)
    assert isinstance(operators.connection, psycopg.Connection)
    with operators.connection.transaction():
        operators.set_kind(
            "settle", lease_ttl=timedelta(seconds=20), idle_limit=timedelta(seconds=3), lock_limit=timedelta(seconds=4),
            transaction_limit=timedelta(seconds=5), max_attempts=9, key_window=timedelta(hours=7),
            actor="carol", reason="a test",
        )  # fmt: skip
        activation = in_background(lambda: ledger.activate_token(RESOURCE, token, BOB))
        until(is_waiting(admin, connection))
    activation.result(5)
    row = admin.execute(
        "select active, idle_limit_ms, lock_limit_ms, transaction_limit_ms, max_attempts, key_window from ledger.fence"
    ).fetchone()
    assert row == (token, 3000, 4000, 5000, 9, timedelta(hours=7))
