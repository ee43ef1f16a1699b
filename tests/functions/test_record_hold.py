from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from ledger.client import Ledger
from tests.functions.test_draw_token import MALFORMED
from tests.story import ALICE, RESOURCE, Connection, activated, drawn, refused, unchanged

HELD: dict[str, Any] = {"held": timedelta(seconds=12.3456), "renewals": 3, "late": 1}


def test_how_long_a_lease_was_held_is_kept_with_its_holder(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)

    ledger.record_hold(RESOURCE, token, **HELD)

    assert admin.execute(
        "select kind, resource, token, holder, detail from ledger.event where event = 'held'"
    ).fetchall() == [("settle", RESOURCE, token, ALICE, {"seconds": 12.346, "renewals": 3, "late": 1})]


def test_it_is_kept_once_for_each_token(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    ledger.record_hold(RESOURCE, token, **HELD)
    with unchanged(admin):
        ledger.record_hold(RESOURCE, token, **HELD)


def test_a_token_that_was_never_activated_was_never_held(ledger: Ledger, admin: Connection) -> None:
    token = drawn(ledger)
    with refused("LG304", admin) as refusal:
        ledger.record_hold(RESOURCE, token, **HELD)
    assert refusal.detail["reason"] == "that token was never activated for that resource"


@pytest.mark.parametrize("wrong", [{"held": timedelta(seconds=-1)}, {"renewals": -1}, {"late": -1}, {"late": None}])
def test_less_than_nothing_is_refused(wrong: dict[str, Any], ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    with refused("LG304", admin):
        ledger.record_hold(RESOURCE, token, **(HELD | wrong))


@pytest.mark.parametrize("resource", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_resource_is_refused(resource: str | None, ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin):
        ledger.record_hold(cast("str", resource), 1, **HELD)
