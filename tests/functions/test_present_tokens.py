from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from tests.story import ALICE, BOB, Connection, activated, refused

JOBS = ["charges:a_long_name", "charges:b", "charges:c"]  # JSON would have the shorter ones first


def bound(connection: Connection) -> Any:
    look = connection.execute("select nullif(current_setting('ledger.tokens', true), '')::jsonb").fetchone()
    return look and look[0]


def test_several_tokens_are_bound_together(connection: Connection, ledger: Ledger) -> None:
    tokens = {job: activated(ledger, ALICE, job) for job in JOBS}
    with connection.transaction():
        ledger.present_tokens(tokens)
        assert bound(connection) == tokens
    assert bound(connection) is None


def test_gates_are_taken_in_the_order_of_the_resources(connection: Connection, ledger: Ledger) -> None:
    """The first stale one that is said is the first by name, whatever the order given."""
    tokens = {job: activated(ledger, ALICE, job) for job in JOBS}
    for job in JOBS:
        activated(ledger, BOB, job)
    for order in (tokens, dict(reversed(tokens.items()))):
        with refused("LG101", connection) as refusal:
            ledger.present_tokens(order)
        assert refusal.tells(function="present_token", resource=JOBS[0])


def test_nothing_is_bound_when_one_is_refused(connection: Connection, ledger: Ledger, admin: Connection) -> None:
    tokens = {job: activated(ledger, ALICE, job) for job in JOBS}
    with connection.transaction():
        with refused("LG102", admin), connection.transaction():
            ledger.present_tokens({**tokens, JOBS[2]: 10**17})
        assert bound(connection) is None


def test_no_token_at_all_is_allowed(ledger: Ledger) -> None:
    ledger.present_tokens({})


def test_500_resources_are_presented_together_and_not_one_more(connection: Connection, ledger: Ledger) -> None:
    tokens = {f"charges:org_{number}": activated(ledger, ALICE, f"charges:org_{number}") for number in range(500)}
    with connection.transaction():
        ledger.present_tokens(tokens)
        assert bound(connection) == tokens
    with refused("LG304", connection) as refusal:
        ledger.present_tokens({**tokens, "charges:one_more": 1})
    assert refusal.tells(function="present_tokens", reason="at most 500 resources are presented together")


@pytest.mark.parametrize("tokens", [None, "[]", "7", "null", '"charges:org_1"', '[{"charges:org_1": 1}]'])
def test_what_is_no_object_is_refused(tokens: str | None, connection: Connection, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.present_tokens(%s::jsonb)", [tokens])
    assert refusal.tells(reason="tokens is an object of resources and their tokens")


@pytest.mark.parametrize("token", ['"7"', "1.5", "null", "true", "[7]", "1e30"])
def test_what_is_no_whole_number_is_refused_before_any_gate(
    token: str, connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    activated(ledger, ALICE, "a:stale")
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.present_tokens(%s::jsonb)", [f'{{"a:stale": 99, "charges:org_1": {token}}}'])
    assert refusal.tells(resource="charges:org_1", reason="a token is a whole number")


def test_a_malformed_resource_is_refused_before_any_token_is_judged(ledger: Ledger, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.present_tokens({"a:undrawn": 99, "z": 1})
    assert refusal.tells(resource="z")
