from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.sandbox import Fault, SandboxControl, SandboxProcess
from tests.recipes.conftest import Program, Recipe

pytestmark = pytest.mark.heavy

PAGE = "recipes/billing.md"
BILL = ("cust_7", "2026-11-01")

Waiting = Callable[[str], None]
Connection = psycopg.Connection[Any]


@pytest.fixture
def billing(recipe: Recipe, connection: Connection, short: Waiting, gateway: SandboxProcess) -> Recipe:
    connection.execute(recipe.sql("schema.sql"))
    short("billing")
    recipe.environment["PROCESSOR_URL"] = gateway.url
    return recipe


def run(billing: Recipe) -> str:
    return billing.python("billing.py", *BILL).output()


def intents(connection: Connection) -> list[str]:
    return [state for (state,) in connection.execute("select state from intent order by written_at").fetchall()]


def frozen_while_adding_up(billing: Recipe, lease_ended: Waiting) -> Program:
    worker = billing.frozen_after("add_up_usage", "billing.py", *BILL)
    lease_ended("billing:cust_7")
    return worker


def test_a_customer_is_charged_once_however_often_it_is_asked(
    billing: Recipe, connection: Connection, control: SandboxControl
) -> None:
    assert run(billing) == "charged\n"
    assert run(billing) == "already charged\n"
    assert intents(connection) == ["charged"]
    assert len(control.movements()) == 1


def test_a_worker_frozen_before_its_intent_is_refused_when_it_wakes(
    billing: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting
) -> None:
    frozen = frozen_while_adding_up(billing, lease_ended)
    assert run(billing) == "charged\n"
    frozen.wake()

    assert frozen.output() == "not charged: StaleToken\n"
    assert intents(connection) == ["charged"]
    assert len(control.movements()) == 1


def test_with_the_fence_off_that_worker_charges_a_second_time(
    billing: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting, unfenced: Waiting
) -> None:
    unfenced("billing")
    frozen = frozen_while_adding_up(billing, lease_ended)
    assert run(billing) == "charged\n"
    frozen.wake()

    assert frozen.output() == "charged\n"
    assert intents(connection) == ["charged", "charged"]
    assert len(control.movements()) == 2


def test_an_intent_left_behind_is_finished_and_its_writer_finds_that_out(
    billing: Recipe, connection: Connection, control: SandboxControl
) -> None:
    frozen = billing.frozen_after("reserve", "billing.py", *BILL)
    assert run(billing) == "charged\n"
    frozen.wake()

    assert frozen.output() == "charged, as another worker has written down\n"
    assert intents(connection) == ["charged"]
    assert len(control.movements()) == 1


def test_a_true_answer_is_written_down_though_its_token_is_stale(
    billing: Recipe, connection: Connection, control: SandboxControl
) -> None:
    frozen = billing.frozen_after("ask_processor", "billing.py", *BILL)
    with connection.transaction():
        Ledger(connection).lock_job("billing:cust_7", "another/1/0123456789abcdef")
    frozen.wake()

    assert frozen.output() == "charged\n"
    assert intents(connection) == ["charged"]
    assert len(control.movements()) == 1


def test_after_a_lost_reply_the_processor_is_asked_before_it_is_sent_anything(
    billing: Recipe, connection: Connection, control: SandboxControl
) -> None:
    frozen = billing.frozen_after("reserve", "billing.py", *BILL)
    (key,) = connection.execute("select intent_id::text from intent").fetchone() or ("",)
    control.plan(key, Fault.DROP_REPLY)
    frozen.wake()

    assert frozen.output() == "outcome unknown: the intent stays open, run again\n"
    assert run(billing) == "charged\n"
    assert intents(connection) == ["charged"]
    assert len(control.movements()) == 1


def test_what_the_processor_declines_is_rolled_back_and_may_be_tried_anew(
    billing: Recipe, connection: Connection, control: SandboxControl
) -> None:
    frozen = billing.frozen_after("reserve", "billing.py", *BILL)
    (key,) = connection.execute("select intent_id::text from intent").fetchone() or ("",)
    control.plan(key, Fault.DECLINE)
    frozen.wake()

    assert frozen.output() == "declined\n"
    assert run(billing) == "charged\n"
    assert intents(connection) == ["declined", "charged"]
    assert len(control.movements()) == 1
