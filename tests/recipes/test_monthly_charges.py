from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.faults import FaultProxy
from tests.recipes.conftest import Asked, Recipe

pytestmark = pytest.mark.heavy

PAGE = "recipes/monthly-charges.md"
PATH = "/org_7/2026-11-01"
UNITS = ("u_1", "u_2", "u_3")

Waiting = Callable[[str], None]
Connection = psycopg.Connection[Any]


@pytest.fixture
def charges(recipe: Recipe, connection: Connection, operators: Ledger, short: Waiting) -> Recipe:
    connection.execute(recipe.sql("schema.sql"))
    for unit in UNITS:
        connection.execute("insert into unit values (%s, 'org_7', 75000)", [unit])
    assert isinstance(operators.connection, psycopg.Connection)
    operators.connection.execute(recipe.sql("operator.sql"))
    short("monthly-charges")
    return recipe


@pytest.fixture
def without_constraint(charges: Recipe, connection: Connection) -> None:
    connection.execute("alter table charge drop constraint charge_once")


def charged(connection: Connection) -> list[str]:
    return [unit for (unit,) in connection.execute("select unit_id from charge order by unit_id").fetchall()]


def frozen_with_the_units_read(charges: Recipe, lease_ended: Waiting) -> Asked:
    asked = charges.service_frozen_after("read_units", "charges.py", PATH)
    lease_ended("monthly-charges:org_7")
    return asked


def test_a_month_is_charged_once_however_often_it_is_asked(charges: Recipe, connection: Connection) -> None:
    service = charges.service("charges.py")

    assert service.post(PATH) == (200, "charged 3")
    assert service.post(PATH) == (200, "already charged")
    assert charged(connection) == list(UNITS)


def test_a_replica_that_finds_the_lock_held_says_so_at_once(
    charges: Recipe, connection: Connection, operators: Ledger
) -> None:
    operators.set_kind("monthly-charges", lease_ttl=timedelta(seconds=30), actor="tests", reason="a patient lease")
    first = charges.service_frozen_after("read_units", "charges.py", PATH)

    assert charges.service("charges.py").post(PATH) == (202, "already running")
    assert first.answer() == (200, "charged 3")
    assert charged(connection) == list(UNITS)


def test_a_replica_frozen_past_its_lease_is_refused(
    charges: Recipe, connection: Connection, lease_ended: Waiting
) -> None:
    frozen = frozen_with_the_units_read(charges, lease_ended)
    assert charges.service("charges.py").post(PATH) == (200, "charged 3")

    assert frozen.answer() == (409, "refused: StaleToken")
    assert charged(connection) == list(UNITS)


def test_with_the_fence_off_it_charges_a_unit_that_another_organisation_has_charged(
    charges: Recipe, connection: Connection, lease_ended: Waiting, unfenced: Waiting
) -> None:
    unfenced("monthly-charges")
    frozen = frozen_with_the_units_read(charges, lease_ended)
    connection.execute("update unit set org_id = 'org_8' where unit_id = 'u_3'")
    service = charges.service("charges.py")
    assert service.post(PATH) == (200, "charged 2")
    assert service.post("/org_8/2026-11-01") == (200, "charged 1")

    assert frozen.answer() == (200, "charged 1")
    assert charged(connection) == ["u_1", "u_2", "u_3", "u_3"]


@pytest.mark.usefixtures("without_constraint")
def test_with_neither_fence_nor_constraint_everything_is_charged_twice(
    charges: Recipe, connection: Connection, lease_ended: Waiting, unfenced: Waiting
) -> None:
    unfenced("monthly-charges")
    frozen = frozen_with_the_units_read(charges, lease_ended)
    assert charges.service("charges.py").post(PATH) == (200, "charged 3")

    assert frozen.answer() == (200, "charged 3")
    assert charged(connection) == sorted(2 * UNITS)


@pytest.mark.usefixtures("without_constraint")
def test_the_fence_alone_stops_the_frozen_replica(
    charges: Recipe, connection: Connection, lease_ended: Waiting
) -> None:
    frozen = frozen_with_the_units_read(charges, lease_ended)
    assert charges.service("charges.py").post(PATH) == (200, "charged 3")

    assert frozen.answer() == (409, "refused: StaleToken")
    assert charged(connection) == list(UNITS)


def commit_reply_lost(charges: Recipe, database: str, network: FaultProxy, operators: Ledger) -> tuple[int, str]:
    """What is answered by a replica whose commit went through and whose network lost the reply to it."""
    operators.set_kind(
        "monthly-charges",
        lease_ttl=timedelta(seconds=30),
        idle_limit=timedelta(seconds=10),
        actor="tests",
        reason="frozen inside its transaction",
    )
    behind = f"postgresql://ledger_worker@{network.host}:{network.port}/{database}?sslmode=disable&gssencmode=disable"
    asked = charges.service_frozen_after("insert", "charges.py", PATH, LEDGER_DSN=behind)
    network.lose_replies()
    return asked.answer()


def test_a_request_repeated_after_a_lost_commit_finds_its_charges(
    charges: Recipe, connection: Connection, database: str, network: FaultProxy, operators: Ledger
) -> None:
    assert commit_reply_lost(charges, database, network, operators) == (
        503,
        "not known whether it was done: send it again",
    )

    assert charges.service("charges.py").post(PATH) == (200, "already charged")
    assert charged(connection) == list(UNITS)


@pytest.mark.usefixtures("without_constraint")
def test_without_the_constraint_the_repeat_charges_again(
    charges: Recipe, connection: Connection, database: str, network: FaultProxy, operators: Ledger
) -> None:
    assert commit_reply_lost(charges, database, network, operators)[0] == 503

    assert charges.service("charges.py").post(PATH) == (200, "charged 3")
    assert charged(connection) == sorted(2 * UNITS)
