"""Two connections, in every order, come to what one after the other comes to. All races: `make schedules`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proof.schedules import waits
from tests.proof.schedules.waits import RACES, Ring


@pytest.fixture
def ring(admin_dsn: str) -> Iterator[Ring]:
    ring = Ring(admin_dsn)
    yield ring
    ring.close()


def test_every_order_of_an_activation_and_a_claim_comes_to_what_one_after_the_other_comes_to(ring: Ring) -> None:
    came = ring.through(RACES[0])
    assert came.wrong == []
    assert (came.orders, came.waited) == (40, 18)


def test_an_order_is_told_again_by_its_code(ring: Ring) -> None:
    order = waits.parse("an activation, a claim:cc:commit+commit:1212")
    assert order is not None
    lines, right = ring.tell(*order)
    assert right
    assert lines[1:] == ["2 (read committed): ('activate_token [None]',)", "1, then 2 ended; one waited"]
    assert "outcome='claimed'" in lines[0]
    assert waits.parse("one+one/1:a,a") is None


def test_a_gate_that_is_passed_without_being_taken_is_missed(admin_dsn: str) -> None:
    assert waits.find(admin_dsn, waits.CONTROLS[0]).wrong != []


def test_every_lock_that_is_taken_away_has_a_race() -> None:
    assert {control.race for control in waits.CONTROLS} <= {race.name for race in RACES}
