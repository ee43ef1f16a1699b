"""A short run of the machine, and that it notices; `python -m tests.proof.properties` is the long one."""

from __future__ import annotations

import pytest

from ledger import dev
from ledger.calls import TYPES
from tests.proof.properties import faults
from tests.proof.properties.__main__ import stories
from tests.proof.properties.values import PARAMETERS
from tests.proof.properties.world import prepare


@pytest.fixture
def prepared(running: dev.Servers) -> dev.Servers:
    prepare(running)
    return running


@pytest.mark.timeout(180)
def test_whatever_is_called_the_rules_hold(prepared: dev.Servers) -> None:
    broke = stories(prepared, 6)
    assert not broke, broke


@pytest.mark.timeout(180)
def test_a_broken_function_is_noticed_with_the_calls_that_show_it(prepared: dev.Servers) -> None:
    broke = stories(prepared, 100, faults.planted()["a confirm of what isn't claimed"])
    assert "is no legal transition" in broke
    assert "ledger.confirm_refunds(merchant_id => 'm_1'::text" in broke


def test_every_parameter_of_the_api_has_its_values() -> None:
    assert PARAMETERS.keys() == TYPES.keys()


def test_every_fault_can_be_planted() -> None:
    assert len(faults.planted()) >= 10
