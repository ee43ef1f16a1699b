from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.recipes.conftest import Program, Recipe
from tests.story import ALICE

pytestmark = pytest.mark.heavy

PAGE = "recipes/event-stream.md"

Waiting = Callable[[str], None]
Connection = psycopg.Connection[Any]


@pytest.fixture
def stream(recipe: Recipe, connection: Connection, short: Waiting) -> Recipe:
    """An account that holds 100.00."""
    connection.execute(recipe.sql("schema.sql"))
    short("account")
    with connection.transaction():
        connection.execute(
            "with job as (select ledger.lock_job('account:a_1', %s) as token)"
            " insert into event select 'a_1', 1, 'deposited', '{\"amount_minor\": 10000}',"
            " jsonb_build_object('token', job.token) from job",
            [ALICE],
        )
    return recipe


def withdraw(stream: Recipe) -> str:
    return stream.python("account.py", "a_1", "8000").output()


def frozen_after_deciding(stream: Recipe, lease_ended: Waiting) -> Program:
    writer = stream.frozen_after("decide", "account.py", "a_1", "8000")
    lease_ended("account:a_1")
    return writer


def events(connection: Connection) -> list[str]:
    return [type_ for (type_,) in connection.execute("select type from event order by version").fetchall()]


def falling(stream: Recipe, connection: Connection) -> list[int]:
    return [version for _, version in connection.execute(stream.sql("check.sql")).fetchall()]


def consumed(stream: Recipe, connection: Connection) -> Any:
    spec = importlib.util.spec_from_file_location("consumer", stream.folder / "consumer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    consumer = module.Consumer()
    for row in connection.execute(
        "select account_id, type, (data ->> 'amount_minor')::bigint, (metadata ->> 'token')::bigint"
        " from event order by version"
    ).fetchall():
        consumer.take(*row)
    return consumer


def test_the_second_withdrawal_sees_the_first(stream: Recipe, connection: Connection) -> None:
    assert withdraw(stream) == "withdrawn\n"
    assert withdraw(stream) == "refused\n"
    assert events(connection) == ["deposited", "withdrawn", "refused"]


def test_tokens_rise_along_the_stream(stream: Recipe, connection: Connection) -> None:
    withdraw(stream)
    withdraw(stream)
    rows = connection.execute("select (metadata ->> 'token')::bigint from event order by version").fetchall()
    tokens = [token for (token,) in rows]

    assert tokens == sorted(set(tokens))
    assert falling(stream, connection) == []


def test_a_stale_append_is_refused(stream: Recipe, connection: Connection, lease_ended: Waiting) -> None:
    frozen = frozen_after_deciding(stream, lease_ended)
    assert withdraw(stream) == "withdrawn\n"
    frozen.wake()

    assert frozen.output() == "not appended: StaleToken\n"
    assert events(connection) == ["deposited", "withdrawn"]
    assert consumed(stream, connection).balance == {"a_1": 2000}


def test_with_the_fence_off_the_account_is_overdrawn_and_the_tokens_show_it(
    stream: Recipe, connection: Connection, lease_ended: Waiting, unfenced: Waiting
) -> None:
    unfenced("account")
    frozen = frozen_after_deciding(stream, lease_ended)
    assert withdraw(stream) == "withdrawn\n"
    frozen.wake()

    assert frozen.output() == "withdrawn\n"
    assert events(connection) == ["deposited", "withdrawn", "withdrawn"]
    assert falling(stream, connection) == [3]
    consumer = consumed(stream, connection)
    assert consumer.balance == {"a_1": 2000}
    assert [type_ for _, type_, _ in consumer.put_aside] == ["withdrawn"]
