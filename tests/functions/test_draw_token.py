from __future__ import annotations

import psycopg
import pytest

from ledger.client import Ledger
from tests.story import (
    ALICE,
    BOB,
    RESOURCE,
    Connection,
    activated,
    added,
    as_ledger_fn,
    on_a_new_timeline,
    raised,
    refused,
)

MALFORMED = {
    "null": None,
    "empty": "",
    "no colon": "settle",
    "no kind": ":m_1",
    "no name": "settle:",
    "a brace in the kind": "set{tle:m_1",
    "a brace in the name": "settle:{m_1}",
    "a line break": "settle:m_1\nm_2",
    "a tab": "settle:m\t1",
    "a kind of 101 characters": "k" * 101 + ":m_1",
    "301 characters": "settle:" + "m" * 294,
}


def drawn_rows(admin: Connection) -> list[tuple[str, int]]:
    return admin.execute("select resource, token from ledger.draw order by token").fetchall()


def test_the_numbers_begin_at_one(ledger: Ledger) -> None:
    assert ledger.draw_token(RESOURCE) == 1


def test_every_draw_is_higher_than_the_one_before(ledger: Ledger, rivals: Ledger) -> None:
    tokens = [ledger.draw_token(RESOURCE), rivals.draw_token("settle:m_2"), ledger.draw_token(RESOURCE)]

    assert tokens == sorted(set(tokens))
    assert tokens[0] > 0


def test_a_draw_is_known_until_an_activation_passes_it(ledger: Ledger, admin: Connection) -> None:
    first, other, second = (ledger.draw_token(name) for name in (RESOURCE, "settle:m_2", RESOURCE))
    assert drawn_rows(admin) == [(RESOURCE, first), ("settle:m_2", other), (RESOURCE, second)]

    ledger.activate_token(RESOURCE, first, ALICE)
    assert drawn_rows(admin) == [("settle:m_2", other)]


def test_a_draw_activates_nothing(ledger: Ledger, admin: Connection) -> None:
    ledger.draw_token(RESOURCE)

    assert admin.execute("select from ledger.fence").fetchall() == []


@pytest.mark.parametrize(
    "resource", ["settle:m_1", "k" * 100 + ":x", "settle:" + "m" * 293, "settle:a:b", "Gutschrift:Müller & Söhne"]
)
def test_a_resource_is_any_printable_kind_and_name(ledger: Ledger, resource: str) -> None:
    assert activated(ledger, resource=resource) > 0


def test_a_draw_that_rolled_back_was_never_drawn_and_is_never_given_out_again(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    with connection.transaction(force_rollback=True):
        lost = ledger.draw_token(RESOURCE)

    with refused("LG102", admin):
        ledger.activate_token(RESOURCE, lost, ALICE)
    assert ledger.draw_token(RESOURCE) > lost


def test_a_draw_whose_savepoint_rolled_back_was_never_drawn(
    connection: Connection, ledger: Ledger, admin: Connection
) -> None:
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            lost = ledger.draw_token(RESOURCE)
        kept = ledger.draw_token(RESOURCE)

    assert kept > lost
    assert drawn_rows(admin) == [(RESOURCE, kept)]


def test_drawing_waits_for_no_one(connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    rival.execute("set statement_timeout = '2s'")
    with connection.transaction():
        ledger.claim_refund("m_1", "r_1", token)
        mine = ledger.draw_token(RESOURCE)

        assert rivals.draw_token(RESOURCE) > mine


def test_a_draw_goes_on_until_it_is_above_the_barrier(ledger: Ledger, admin: Connection) -> None:
    barrier = activated(ledger) + 500
    as_ledger_fn(admin, "update ledger.fence set barrier = %s", [barrier])

    token = ledger.draw_token(RESOURCE)

    assert token == barrier + 1
    ledger.activate_token(RESOURCE, token, BOB)


def test_a_draw_never_touches_another_resources_barrier(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    as_ledger_fn(admin, "update ledger.fence set barrier = %s", [token + 500])

    assert ledger.draw_token("settle:m_2") == token + 1


@pytest.mark.parametrize("resource", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_resource_is_refused(connection: Connection, admin: Connection, resource: str | None) -> None:
    with refused("LG304", admin) as refusal:
        connection.execute("select ledger.draw_token(%s)", [resource])

    assert refusal.tells(function="draw_token", resource=resource)


def test_a_malformed_resource_is_told_what_one_looks_like(connection: Connection) -> None:
    with raised("LG304") as refusal:
        connection.execute("select ledger.draw_token('settle')")

    assert refusal.message == (
        "draw_token of settle refused: a resource is kind:name, printable, without braces, at most 300 characters; "
        "nothing was changed"
    )
    assert refusal.detail["reason"] in refusal.message
    assert isinstance(refusal.detail["refusal"], int)
    assert "docs/errors.md, LG304" in refusal.hint


def test_nothing_is_drawn_on_a_new_timeline(ledger: Ledger, admin: Connection) -> None:
    on_a_new_timeline(admin)

    with refused("LG106", admin) as refusal:
        ledger.draw_token(RESOURCE)

    assert refusal.tells(function="draw_token", resource=RESOURCE, known_timeline="FFFFFFFF", timeline="00000001")
    assert refusal.message == (
        "draw_token of settle:m_1 refused: this server was promoted or restored, and tokens handed out before are "
        "unknown here; nothing was changed"
    )
    assert "ledger.recover_failover" in refusal.hint


def test_a_barrier_out_of_reach_means_a_restore(ledger: Ledger, admin: Connection) -> None:
    barrier = activated(ledger) + 10_000
    as_ledger_fn(admin, "update ledger.fence set barrier = %s", [barrier])

    with refused("LG106", admin) as refusal:
        ledger.draw_token(RESOURCE)

    assert refusal.tells(barrier=barrier)
    assert refusal.detail["drawn"] < barrier


def test_the_barrier_itself_is_not_handed_out(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    barrier = token + 1000
    as_ledger_fn(admin, "update ledger.fence set barrier = %s", [barrier])

    with refused("LG106", admin) as refusal:
        ledger.draw_token(RESOURCE)
    assert refusal.tells(barrier=barrier, drawn=barrier)


def test_a_malformed_resource_is_refused_before_the_timeline_is(connection: Connection, admin: Connection) -> None:
    on_a_new_timeline(admin)

    with raised("LG304"):
        connection.execute("select ledger.draw_token('settle')")


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_a_draw_works_at_every_isolation_level(
    connection: Connection, ledger: Ledger, level: psycopg.IsolationLevel
) -> None:
    connection.isolation_level = level
    with connection.transaction():
        token = ledger.draw_token(RESOURCE)

    ledger.activate_token(RESOURCE, token, ALICE)
