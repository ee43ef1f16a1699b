from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import (
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    in_background,
    is_waiting,
    limited,
    on_a_new_timeline,
    raised,
    refused,
    unchanged,
    until,
)

WHO: dict[str, Any] = {"actor": "dana", "reason": "INC-7"}
BY = "actor => 'dana', reason => 'INC-7'"
SECOND = timedelta(seconds=1)

OUT_OF_BOUNDS = {
    "lock => 'zookeeper'": "lock is redis or advisory",
    "lock => ''": "lock is redis or advisory",
    "lease_ttl => '0'": "limits are positive",
    "idle_limit => '-1 second'": "limits are positive",
    "idle_limit => '400 microseconds'": "limits are positive",
    "lock_limit => '0'": "limits are positive",
    "transaction_limit => '-1 second'": "limits are positive",
    "key_window => '0'": "limits are positive",
    "max_attempts => 0": "limits are positive",
    "max_attempts => -1": "limits are positive",
    "lease_ttl => '25 days'": "lease, idle, lock and transaction limit are at most 24 days",
    "lock_limit => '1 month'": "lease, idle, lock and transaction limit are at most 24 days",
    "transaction_limit => '1 year'": "lease, idle, lock and transaction limit are at most 24 days",
    "idle_limit => '31 seconds'": "the idle limit (00:00:31) must not be longer than the lease (00:00:30)",
    "lease_ttl => '9 seconds'": "the idle limit (00:00:10) must not be longer than the lease (00:00:09)",
}


def set_by_hand(connection: Connection, arguments: str) -> None:
    connection.execute(f"select ledger.set_kind({arguments})".encode())


def test_what_is_not_given_stays_as_it_is(operators: Ledger) -> None:
    before = operators.get_kind("settle")

    after = operators.set_kind("settle", idle_limit=SECOND, max_attempts=3, **WHO)

    assert after == replace(before, idle_limit=SECOND, max_attempts=3)
    assert operators.get_kind("settle") == after


def test_every_limit_can_be_set(operators: Ledger) -> None:
    wanted: dict[str, Any] = {
        "lock": "advisory",
        "lease_ttl": 9 * SECOND,
        "idle_limit": 3 * SECOND,
        "lock_limit": 2 * SECOND,
        "transaction_limit": 60 * SECOND,
        "max_attempts": 7,
        "key_window": timedelta(minutes=30),
    }
    after = asdict(operators.set_kind("settle", **wanted, **WHO))

    assert {name: after[name] for name in wanted} == wanted


def test_a_kind_that_is_not_there_is_made(operators: Ledger) -> None:
    made = operators.set_kind("invoice", lock="advisory", **WHO)

    assert made == replace(operators.get_kind("other"), kind="invoice", lock="advisory", known=True)


def test_a_transaction_limit_of_zero_takes_it_away(operators: Ledger) -> None:
    operators.set_kind("settle", transaction_limit=SECOND, **WHO)

    assert operators.set_kind("settle", transaction_limit=timedelta(0), **WHO).transaction_limit is None


def test_the_limits_reach_the_fences_of_the_kind_and_no_others(operators: Ledger, admin: Connection) -> None:
    for resource in (RESOURCE, "settle:m_2", "invoice:2026"):
        activated(operators, resource=resource)

    operators.set_kind("settle", idle_limit=SECOND, lock_limit=2 * SECOND, transaction_limit=3 * SECOND, **WHO)

    assert admin.execute(
        "select resource, idle_limit_ms, lock_limit_ms, transaction_limit_ms from ledger.fence order by resource"
    ).fetchall() == [
        ("invoice:2026", 10_000, 5_000, None),
        (RESOURCE, 1_000, 2_000, 3_000),
        ("settle:m_2", 1_000, 2_000, 3_000),
    ]


def test_the_next_call_of_an_open_session_goes_by_the_new_limits(
    connection: Connection, ledger: Ledger, operators: Ledger
) -> None:
    added(ledger, "r_1", "r_2")
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_1", token)
    operators.set_kind("settle", idle_limit=7 * SECOND, **WHO)

    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_2", token)
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("7s",)


def test_attempts_and_key_window_rule_the_next_claim(ledger: Ledger, operators: Ledger) -> None:
    added(ledger, "r_1")
    operators.set_kind("settle", max_attempts=1, **WHO)
    ledger.claim_refund(MERCHANT, "r_1", activated(ledger))

    claim = ledger.claim_refund(MERCHANT, "r_1", activated(ledger))
    assert (claim.outcome, claim.reason) == ("review", "attempts_used_up")


def test_a_change_is_remembered_with_who_and_why(operators: Ledger, admin: Connection) -> None:
    operators.set_kind("settle", max_attempts=3, **WHO)

    rows = admin.execute("select event, kind, actor, reason, database_user, detail from ledger.event").fetchall()
    ((event, kind, actor, reason, user, detail),) = rows
    assert (event, kind, actor, reason, user) == ("kind_set", "settle", "dana", "INC-7", "ledger_operator")
    assert (detail["before"]["max_attempts"], detail["after"]["max_attempts"]) == (5, 3)


def test_actor_and_reason_may_come_from_the_session(connect: Connect, operator_dsn: str, admin: Connection) -> None:
    operator = connect(operator_dsn)
    operator.execute("set ledger.actor = 'dana'")
    operator.execute("set ledger.reason = 'INC-7'")
    Ledger(operator).set_kind("settle", max_attempts=3)

    assert admin.execute("select actor, reason from ledger.event").fetchall() == [("dana", "INC-7")]


def test_setting_what_is_set_already_changes_nothing(operators: Ledger, admin: Connection) -> None:
    kind = operators.set_kind("settle", transaction_limit=SECOND, **WHO)

    with unchanged(admin):
        assert operators.set_kind("settle", transaction_limit=SECOND, max_attempts=5, **WHO) == kind


def test_two_changes_at_once_both_count(
    connect: Connect, operator_dsn: str, operators: Ledger, admin: Connection
) -> None:
    operator, another = connect(operator_dsn), connect(operator_dsn)
    with operator.transaction():
        Ledger(operator).set_kind("settle", max_attempts=3, **WHO)
        other = in_background(lambda: Ledger(another).set_kind("settle", lock_limit=SECOND, **WHO))
        until(is_waiting(admin, another))
    other.result(5)

    kind = operators.get_kind("settle")
    assert (kind.max_attempts, kind.lock_limit) == (3, SECOND)


def test_setting_limits_goes_on_when_the_server_is_on_a_new_timeline(operators: Ledger, admin: Connection) -> None:
    on_a_new_timeline(admin)

    limited(operators)


@pytest.mark.parametrize("who", ["actor => 'dana'", "reason => 'x'", "actor => ' ', reason => 'x'", "reason => ''"])
def test_a_change_needs_somebody_and_a_reason(connect: Connect, operator_dsn: str, admin: Connection, who: str) -> None:
    with refused("LG304", admin) as refusal:
        set_by_hand(connect(operator_dsn), f"'settle', max_attempts => 3, {who}")

    assert refusal.tells(
        function="set_kind",
        kind="settle",
        reason="actor and reason are needed, as arguments or as ledger.actor and ledger.reason",
    )


@pytest.mark.parametrize("kind", ["null", "''", "'a:b'", "'a{b}'", r"E'a\nb'", f"'{'k' * 101}'"])
def test_a_malformed_kind_is_refused(connect: Connect, operator_dsn: str, admin: Connection, kind: str) -> None:
    with refused("LG304", admin) as refusal:
        set_by_hand(connect(operator_dsn), f"{kind}, {BY}")

    assert refusal.tells(reason="a kind is printable, without colon or braces, at most 100 characters")


@pytest.mark.parametrize(("arguments", "reason"), OUT_OF_BOUNDS.items(), ids=OUT_OF_BOUNDS.keys())
def test_a_limit_out_of_bounds_is_refused(
    connect: Connect, operator_dsn: str, admin: Connection, arguments: str, reason: str
) -> None:
    with refused("LG304", admin) as refusal:
        set_by_hand(connect(operator_dsn), f"'settle', {arguments}, {BY}")

    assert refusal.tells(kind="settle", reason=reason)
    assert refusal.message == f"set_kind of settle refused: {reason}; nothing was changed"
    assert "docs/errors.md, LG304" in refusal.hint


def test_a_refused_change_makes_no_kind(connect: Connect, operator_dsn: str, admin: Connection) -> None:
    with refused("LG304", admin):
        set_by_hand(connect(operator_dsn), f"'invoice', max_attempts => 0, {BY}")


def test_the_bounds_themselves_are_allowed(operators: Ledger) -> None:
    operators.set_kind("settle", lease_ttl=timedelta(days=24), idle_limit=timedelta(days=24), **WHO)
    operators.set_kind("k" * 100, idle_limit=timedelta(milliseconds=1), max_attempts=1, **WHO)


def test_a_worker_may_not_set_limits(ledger: Ledger) -> None:
    with raised("42501"):
        limited(ledger)
