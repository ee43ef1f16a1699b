from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from tests.story import RESOURCE, Connection, activated, raised, refused, unchanged

WHO: dict[str, Any] = {"actor": "carol", "reason": "incident over"}


@pytest.mark.parametrize("target", ["settle", RESOURCE])
def test_work_goes_on(ledger: Ledger, operators: Ledger, admin: Connection, target: str) -> None:
    operators.pause(target, "dana", "incident")
    assert operators.resume(target, **WHO) is True

    activated(ledger)
    assert admin.execute("select from ledger.pause").fetchall() == []
    assert admin.execute(
        "select event, resource, actor, reason from ledger.event where event in ('paused', 'resumed') order by event_id"
    ).fetchall() == [
        ("paused", RESOURCE if target == RESOURCE else None, "dana", "incident"),
        ("resumed", RESOURCE if target == RESOURCE else None, "carol", "incident over"),
    ]


def test_what_is_not_paused_is_left_as_it_is(operators: Ledger, admin: Connection) -> None:
    operators.pause("settle", "dana", "incident")
    with unchanged(admin):
        assert operators.resume(RESOURCE, **WHO) is False


def test_a_resource_stays_paused_while_its_kind_is(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    operators.pause("settle", "dana", "incident")
    operators.pause(RESOURCE, "dana", "incident")
    operators.resume(RESOURCE, **WHO)
    with refused("LG107", admin) as refusal:
        ledger.draw_token(RESOURCE)
    assert refusal.tells(paused="settle")


@pytest.mark.parametrize("who", [{}, {"actor": "carol"}, {"reason": "why"}, {"actor": "carol", "reason": ""}])
def test_it_needs_somebody_and_a_reason(operators: Ledger, admin: Connection, who: dict[str, str]) -> None:
    operators.pause("settle", "dana", "incident")
    with refused("LG304", admin) as refusal:
        operators.resume("settle", **who)
    assert refusal.tells(function="resume", target="settle")


@pytest.mark.parametrize("target", [None, "", "settle:", "a{b"])
def test_the_target_is_a_kind_or_a_resource(operators: Ledger, admin: Connection, target: Any) -> None:
    with refused("LG304", admin):
        operators.resume(target, **WHO)


def test_a_worker_may_not_resume(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    operators.pause("settle", "dana", "incident")
    with unchanged(admin), raised("42501"):
        ledger.resume("settle", **WHO)
