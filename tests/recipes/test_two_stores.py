from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pytest_postgresql import factories

from ledger import dev
from ledger.client import Ledger
from tests.recipes.conftest import TTL, Program, Recipe
from tests.story import ALICE

pytestmark = pytest.mark.heavy

PAGE = "recipes/two-stores.md"
RESOURCE = "payout-run:run_1"

Waiting = Callable[[str], None]
Connection = psycopg.Connection[Any]

second_database = factories.postgresql("migrated_template", dbname="accounting")


@pytest.fixture
def accounting_dsn(servers: dev.Servers, second_database: Connection) -> str:
    name = second_database.info.dbname
    second_database.execute("grant create on schema public to ledger_worker")
    second_database.commit()
    second_database.close()
    return servers.dsn("ledger_worker", name)


@pytest.fixture
def accounting(accounting_dsn: str, connect: Callable[..., Connection]) -> Connection:
    return connect(accounting_dsn)


@pytest.fixture
def accountants(servers: dev.Servers, accounting: Connection, connect: Callable[..., Connection]) -> Ledger:
    """An operator's ledger in the second store."""
    return Ledger(connect(servers.dsn("ledger_operator", accounting.info.dbname)))


@pytest.fixture
def stores(
    recipe: Recipe,
    connection: Connection,
    operators: Ledger,
    accounting: Connection,
    accounting_dsn: str,
    accountants: Ledger,
) -> Recipe:
    recipe.environment["ACCOUNTING_DSN"] = accounting_dsn
    for owner, operator in ((connection, operators), (accounting, accountants)):
        owner.execute(recipe.sql("schema.sql"))
        assert isinstance(operator.connection, psycopg.Connection)
        operator.connection.execute(recipe.sql("operator.sql"))
        operator.set_kind(
            "payout-run",
            lease_ttl=timedelta(seconds=TTL),
            idle_limit=timedelta(seconds=TTL / 2),
            lock_limit=timedelta(seconds=TTL / 2),
            actor="tests",
            reason="short limits",
        )
    return recipe


def lines(*connections: Connection) -> list[int]:
    return [len(connection.execute("select from line").fetchall()) for connection in connections]


def run(stores: Recipe) -> str:
    return stores.python("payout_run.py", "run_1").output()


def off(*operators: Ledger) -> None:
    for operator in operators:
        operator.set_mode("payout-run", "off", actor="tests", reason="the negative control")


def frozen_with_both_read(stores: Recipe, lease_ended: Waiting) -> Program:
    """It froze as it came back from its second look."""
    program = stores.frozen_after("missing", "payout_run.py", "run_1", FROZEN_AT_CALL="2")
    lease_ended(RESOURCE)
    return program


def frozen_between_its_writes(stores: Recipe, lease_ended: Waiting) -> Program:
    program = stores.frozen_after("write", "payout_run.py", "run_1")
    lease_ended(RESOURCE)
    return program


def test_a_run_is_written_to_both_stores_once(stores: Recipe, connection: Connection, accounting: Connection) -> None:
    assert run(stores) == "payments 3, accounting 3\n"
    assert run(stores) == "payments 0, accounting 0\n"
    assert lines(connection, accounting) == [3, 3]


def test_a_worker_frozen_before_its_writes_is_refused(
    stores: Recipe, connection: Connection, accounting: Connection, lease_ended: Waiting
) -> None:
    frozen = frozen_with_both_read(stores, lease_ended)
    assert run(stores) == "payments 3, accounting 3\n"
    frozen.wake()

    assert frozen.output() == "stopped: StaleToken\n"
    assert lines(connection, accounting) == [3, 3]


def test_with_both_fences_off_both_stores_hold_everything_twice(
    stores: Recipe,
    connection: Connection,
    accounting: Connection,
    operators: Ledger,
    accountants: Ledger,
    lease_ended: Waiting,
) -> None:
    off(operators, accountants)
    frozen = frozen_with_both_read(stores, lease_ended)
    assert run(stores) == "payments 3, accounting 3\n"
    frozen.wake()

    assert frozen.output() == "payments 3, accounting 3\n"
    assert lines(connection, accounting) == [6, 6]


def test_a_worker_frozen_between_its_writes_is_refused_by_the_second_store(
    stores: Recipe, connection: Connection, accounting: Connection, lease_ended: Waiting
) -> None:
    frozen = frozen_between_its_writes(stores, lease_ended)
    assert run(stores) == "payments 0, accounting 3\n"
    frozen.wake()

    assert frozen.output() == "stopped: StaleToken\n"
    assert lines(connection, accounting) == [3, 3]


def test_a_fence_in_one_store_does_not_guard_the_other(
    stores: Recipe, connection: Connection, accounting: Connection, accountants: Ledger, lease_ended: Waiting
) -> None:
    off(accountants)
    frozen = frozen_between_its_writes(stores, lease_ended)
    assert run(stores) == "payments 0, accounting 3\n"
    frozen.wake()

    assert frozen.output() == "payments 3, accounting 3\n"
    assert lines(connection, accounting) == [3, 6]


def test_a_crash_between_the_writes_is_made_good_by_the_next_run(
    stores: Recipe, connection: Connection, accounting: Connection, lease_ended: Waiting
) -> None:
    frozen = stores.frozen_after("write", "payout_run.py", "run_1")
    frozen.end()
    lease_ended(RESOURCE)
    assert lines(connection, accounting) == [3, 0]

    assert run(stores) == "payments 0, accounting 3\n"
    assert lines(connection, accounting) == [3, 3]


def test_a_number_that_was_passed_by_is_drawn_again(
    stores: Recipe, connection: Connection, accounting: Connection
) -> None:
    waking = stores.frozen_after("new_holder", "payout_run.py", "run_1")  # it has drawn in accounting, and has no lease
    token = Ledger(accounting).draw_token(RESOURCE)
    Ledger(accounting).activate_token(RESOURCE, token, ALICE)
    waking.wake()

    assert waking.output() == "payments 3, accounting 3\n"
    assert lines(connection, accounting) == [3, 3]
