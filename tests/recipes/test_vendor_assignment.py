from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.recipes.conftest import Asked, Recipe
from tests.story import raised

pytestmark = pytest.mark.heavy

PAGE = "recipes/vendor-assignment.md"

Waiting = Callable[[str], None]
Connection = psycopg.Connection[Any]


@pytest.fixture
def assignments(recipe: Recipe, connection: Connection, operators: Ledger, short: Waiting) -> Recipe:
    connection.execute(recipe.sql("schema.sql"))
    connection.execute("insert into complaint values ('c_1', 'plumbing'), ('c_2', 'plumbing')")
    assert isinstance(operators.connection, psycopg.Connection)
    operators.connection.execute(recipe.sql("operator.sql"))
    short("assignment")
    return recipe


@pytest.fixture
def patient(assignments: Recipe, operators: Ledger) -> Recipe:
    """Nobody's lease ends during the test."""
    operators.set_kind("assignment", lease_ttl=timedelta(seconds=30), actor="tests", reason="a patient lease")
    return assignments


def vendors(connection: Connection, complaint_id: str = "c_1") -> list[str]:
    rows = connection.execute(
        "select vendor_id from assignment where complaint_id = %s order by assignment_id", [complaint_id]
    ).fetchall()
    return [vendor for (vendor,) in rows]


def frozen_with_a_vendor_found(assignments: Recipe, lease_ended: Waiting) -> Asked:
    asked = assignments.service_frozen_after("find_vendor", "assign.py", "/c_1/v_frozen")
    lease_ended("assignment:c_1")
    return asked


def test_a_complaint_gets_one_vendor(assignments: Recipe, connection: Connection) -> None:
    service = assignments.service("assign.py")

    assert service.post("/c_1/v_1") == (201, "v_1")
    assert service.post("/c_1/v_2") == (409, "c_1 has a vendor already")
    assert vendors(connection) == ["v_1"]


def test_the_loser_gets_a_409_that_names_the_holder(patient: Recipe, connection: Connection) -> None:
    first = patient.service_frozen_after("find_vendor", "assign.py", "/c_1/v_1")
    status, answer = patient.service("assign.py").post("/c_1/v_2")

    assert status == 409
    assert f"/{first.program.process.pid}/" in answer
    assert first.answer() == (201, "v_1")
    assert vendors(connection) == ["v_1"]


def test_two_complaints_dont_wait_for_each_other(patient: Recipe, connection: Connection) -> None:
    first = patient.service_frozen_after("find_vendor", "assign.py", "/c_1/v_1")

    assert patient.service("assign.py").post("/c_2/v_1") == (201, "v_1")
    assert first.answer() == (201, "v_1")
    assert vendors(connection, "c_1") == vendors(connection, "c_2") == ["v_1"]


def test_a_dispatcher_frozen_past_its_lease_gets_a_409_too(
    assignments: Recipe, connection: Connection, lease_ended: Waiting
) -> None:
    frozen = frozen_with_a_vendor_found(assignments, lease_ended)
    assert assignments.service("assign.py").post("/c_1/v_2") == (201, "v_2")

    assert frozen.answer() == (
        409,
        "c_1 was taken over while this request was stalled; nothing was assigned",
    )
    assert vendors(connection) == ["v_2"]


def test_with_the_fence_off_two_vendors_are_sent(
    assignments: Recipe, connection: Connection, lease_ended: Waiting, unfenced: Waiting
) -> None:
    unfenced("assignment")
    frozen = frozen_with_a_vendor_found(assignments, lease_ended)
    assert assignments.service("assign.py").post("/c_1/v_2") == (201, "v_2")

    assert frozen.answer() == (201, "v_frozen")
    assert vendors(connection) == ["v_2", "v_frozen"]


@pytest.mark.usefixtures("assignments")
def test_an_import_without_a_token_is_refused(connection: Connection) -> None:
    with raised("LG103"):
        connection.execute("insert into assignment (complaint_id, vendor_id) values ('c_1', 'v_1')")

    assert vendors(connection) == []
