from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from ledger.client import Ledger
from ledger.records import Pruned
from tests.functions.attempts import JOBS, WORK
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    as_ledger_fn,
    refused,
    without_guards,
)

WHO: dict[str, Any] = {"actor": "carol", "reason": "year's end"}
OTHER = "report:daily"

Prune = Callable[..., Pruned]


@pytest.fixture
def before(admin: Connection) -> datetime:
    """Thirty-one days ago."""
    return admin.execute("select clock_timestamp() - interval '31 days'").fetchall()[0][0]  # type: ignore[no-any-return]


@pytest.fixture
def prune(operators: Ledger, admin: Connection, before: datetime) -> Prune:
    """Forget what can be, as if all that happened by now had happened forty days ago."""

    def call(max_rows: int = 1000, after_event_id: int = 0) -> Pruned:
        aged(admin)
        return operators.prune_events(before, max_rows, after_event_id, **WHO)

    return call


def aged(admin: Connection) -> None:
    with without_guards(admin, "event"):
        admin.execute("update ledger.event set at = at - interval '40 days' where at > now() - interval '1 day'")


def activations(admin: Connection, resource: str = RESOURCE) -> list[int]:
    rows = admin.execute(
        "select token from ledger.event where event = 'activated' and resource = %s order by token", [resource]
    )
    return [token for (token,) in rows]


def test_an_activation_under_which_nothing_was_moved_is_forgotten(
    prune: Prune, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    idle, active = activated(ledger, ALICE), activated(ledger, BOB)

    assert prune().events == 1

    assert activations(admin) == [active]
    assert operators.verify() == []
    with refused("LG101", admin) as refusal:
        ledger.claim_refund(MERCHANT, "r_1", idle)
    assert refusal.tells(reason="voided", active=active, active_holder=BOB)


@pytest.mark.parametrize("archived", [False, True])
def test_the_holder_behind_a_token_of_the_journal_stays(
    archived: bool, prune: Prune, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger, ALICE)
    ledger.claim_refund(MERCHANT, "r_1", token)
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    activated(ledger, BOB)
    active = activated(ledger, BOB)
    if archived:
        operators.set_kind("settle", key_window=timedelta(milliseconds=1), **WHO)
        now = admin.execute("select clock_timestamp() - interval '1 ms'").fetchall()[0][0]
        assert operators.archive_refunds(MERCHANT, now, 9, **WHO).refunds == 1

    assert prune().events == 1

    assert activations(admin) == [token, active]
    assert operators.verify() == []
    holders = admin.execute("select distinct holder from ledger.history where token is not null").fetchall()
    assert holders == [(ALICE,)]


def test_another_merchants_journal_keeps_nothing_of_this_one(prune: Prune, ledger: Ledger, admin: Connection) -> None:
    added(ledger, "r_1", merchant_id="m_2")
    kept = activated(ledger, ALICE, "settle:m_2")
    ledger.claim_refund("m_2", "r_1", kept)
    ledger.confirm_refund("m_2", "r_1", kept, "re_1")
    activated(ledger, BOB, "settle:m_2")
    activated(ledger, ALICE)
    active = activated(ledger, BOB)
    prune()
    assert activations(admin) == [active]
    assert kept in activations(admin, "settle:m_2")


def test_the_active_token_keeps_its_activation_however_old(prune: Prune, ledger: Ledger, admin: Connection) -> None:
    active = activated(ledger, ALICE, OTHER)
    assert prune().events == 0
    assert activations(admin, OTHER) == [active]


def test_what_happened_while_a_refund_that_is_open_was_open_stays(
    prune: Prune, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    activated(ledger, ALICE)
    aged(admin)
    with without_guards(admin, "refund"):
        added(ledger, "stuck")
        admin.execute("update ledger.refund set added_at = added_at - interval '40 days'")
    since = [activated(ledger, holder) for holder in (ALICE, BOB)]

    assert prune().events == 1
    assert activations(admin) == since

    operators.cancel_refund(MERCHANT, "stuck", **WHO)
    assert prune().events == 1
    assert activations(admin) == since[1:]


@pytest.mark.parametrize(("outcome", "kept"), [(None, 2), ("failed", 2), ("review", 2), ("done", 1)])
def test_the_token_of_work_that_is_not_done_keeps_its_activation(
    outcome: str | None, kept: int, prune: Prune, ledger: Ledger, admin: Connection
) -> None:
    token = activated(ledger, ALICE, JOBS)
    ledger.begin_attempt(JOBS, WORK, token)
    if outcome:
        ledger.end_attempt(JOBS, WORK, token, outcome, "so it was")
    activated(ledger, BOB, JOBS)
    prune()
    assert len(activations(admin, JOBS)) == kept


def test_how_long_leases_were_held_is_forgotten(prune: Prune, ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger, ALICE, OTHER)
    ledger.record_hold(OTHER, token, timedelta(seconds=7), 1, 0)
    assert prune().events == 1
    assert admin.execute("select count(*) from ledger.event where event = 'held'").fetchone() == (0,)


def test_what_persons_did_stays_for_good(prune: Prune, ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    operators.set_kind("report", max_attempts=7, **WHO)
    operators.set_mode("report", "shadow", **WHO)
    operators.pause(OTHER, **WHO)
    operators.resume(OTHER, **WHO)
    operators.break_lease(OTHER, ALICE, **WHO)
    operators.set_failover("hold", **WHO)
    by_persons = "select event_id, event from ledger.event where actor is not null order by event_id"
    acts = admin.execute(by_persons).fetchall()
    assert len(acts) >= 5

    prune()

    assert admin.execute(by_persons).fetchall() == acts


def test_the_last_thirty_days_stay(operators: Ledger, ledger: Ledger, admin: Connection, before: datetime) -> None:
    tokens = [activated(ledger) for _ in range(2)]
    assert operators.prune_events(before, 1000, **WHO) == Pruned(0, None)
    assert activations(admin) == tokens


def test_it_goes_in_small_steps_by_a_cursor_and_each_is_on_record(
    prune: Prune, ledger: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    for n in range(5):
        token = activated(ledger, ALICE if n % 2 else BOB)
        if n == 0:
            ledger.claim_refund(MERCHANT, "r_1", token)
            ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    aged(admin)
    steps, after = [], 0
    while (step := prune(max_rows=2, after_event_id=after)).last_event_id is not None:
        steps.append(step.events)
        after = step.last_event_id
    assert steps == [1, 2, 0]
    assert len(activations(admin)) == 2
    records = admin.execute("select actor, reason, detail -> 'events' from ledger.event where event = 'pruned'")
    assert records.fetchall() == [("carol", "year's end", 1), ("carol", "year's end", 2)]


def test_nobody_else_deletes_what_a_person_did(prune: Prune, operators: Ledger, admin: Connection) -> None:
    operators.set_kind("report", max_attempts=7, **WHO)
    aged(admin)
    with refused("LG103", admin) as refusal:
        as_ledger_fn(admin, "delete from ledger.event where event = 'kind_set'")
    assert refusal.tells(operation="delete", table="ledger.event", role="ledger_fn")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"before": None}, "before is at least 30 days ago"),
        ({"before": timedelta(days=29)}, "before is at least 30 days ago"),
        ({"max_rows": 1001}, "max_rows is from 1 to 1000"),
        ({"max_rows": 0}, "max_rows is from 1 to 1000"),
        ({"actor": ""}, "actor"),
        ({"reason": ""}, "reason"),
    ],
)
def test_what_is_young_or_by_nobody_is_refused(
    changes: dict[str, Any], told: str, operators: Ledger, ledger: Ledger, admin: Connection, before: datetime
) -> None:
    activated(ledger)
    arguments: dict[str, Any] = {"before": before, "max_rows": 9} | WHO | changes
    if isinstance(arguments["before"], timedelta):
        arguments["before"] = before + timedelta(days=31) - arguments["before"]
    with refused("LG304", admin) as refusal:
        operators.prune_events(**arguments)
    assert refusal.tells(function="prune_events")
    assert told in refusal.message
