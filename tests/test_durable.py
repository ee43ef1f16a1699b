"""What the ledger told its caller survives a crash, whatever synchronous_commit the session has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ledger import dev
from ledger.client import Ledger
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, Connection, activated, added, on_a_new_timeline, refund

# Every function that hands out a token or moves a refund.
TELLING: dict[str, Callable[[Ledger, int], Any]] = {
    "draw_token": lambda ledger, _: ledger.draw_token(RESOURCE),
    "activate_token": lambda ledger, token: ledger.activate_token(RESOURCE, token + 1, BOB),
    "lock_job": lambda ledger, _: ledger.lock_job("charges:org_7", ALICE),
    "claim_refund": lambda ledger, token: ledger.claim_refund(MERCHANT, "r_new", token),
    "claim_refunds": lambda ledger, token: ledger.claim_refunds(MERCHANT, token, 10),
    "confirm_refund": lambda ledger, token: ledger.confirm_refund(MERCHANT, "r_mine", token, "re_1"),
    "confirm_refunds": lambda ledger, token: ledger.confirm_refunds(MERCHANT, token, ["r_mine"], ["re_1"]),
    "fail_refund": lambda ledger, token: ledger.fail_refund(MERCHANT, "r_mine", token, "card closed"),
    "release_refund": lambda ledger, token: ledger.release_refund(MERCHANT, "r_mine", token, "not sent"),
    "mark_unknown": lambda ledger, token: ledger.mark_unknown(MERCHANT, "r_mine", token, "timeout"),
    "accept_refund": lambda ledger, token: ledger.accept_refund(MERCHANT, "r_mine", token, "re_1"),
}


@pytest.fixture
def token(ledger: Ledger) -> int:
    """The active token, under which r_mine is claimed. The number after it is drawn."""
    added(ledger, "r_mine", "r_new")
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_mine", token)
    assert ledger.draw_token(RESOURCE) == token + 1
    return token


def synchronous_commit(connection: Connection) -> str:
    row = connection.execute("show synchronous_commit").fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize("call", TELLING.values(), ids=TELLING.keys())
@pytest.mark.parametrize(
    ("session", "inside"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
def test_the_transaction_of_a_call_waits_for_its_commit_and_the_session_stays_as_it_was(
    connection: Connection,
    ledger: Ledger,
    token: int,
    call: Callable[[Ledger, int], Any],
    session: str,
    inside: str,
) -> None:
    connection.execute(f"set synchronous_commit = {session}".encode())
    with connection.transaction():
        call(ledger, token)
        assert synchronous_commit(connection) == inside

    assert synchronous_commit(connection) == session


def test_a_recovery_waits_for_its_commit(connection: Connection, operators: Ledger, admin: Connection) -> None:
    assert isinstance(operators.connection, psycopg.Connection)
    on_a_new_timeline(admin)
    operators.connection.execute("set synchronous_commit = off")
    with operators.connection.transaction():
        operators.recover_failover(actor="dana", reason="INC-7")
        assert synchronous_commit(operators.connection) == "on"


def crash(servers: dev.Servers) -> None:
    servers.crash_postgres()
    servers.start_postgres()


def test_numbers_that_were_handed_out_are_still_drawn_after_a_crash_and_come_never_again(
    running: dev.Servers, dsn: str, connection: Connection, ledger: Ledger
) -> None:
    connection.execute("set synchronous_commit = off")
    tokens = [ledger.draw_token(RESOURCE) for _ in range(3)]
    crash(running)

    with psycopg.connect(dsn, autocommit=True) as again:
        assert Ledger(again).draw_token(RESOURCE) > max(tokens)
        Ledger(again).activate_token(RESOURCE, tokens[1], ALICE)


def test_numbers_come_never_again_however_many_crashes_there_are(running: dev.Servers, dsn: str) -> None:
    tokens: list[int] = []
    for _ in range(3):
        with psycopg.connect(dsn, autocommit=True, options="-c synchronous_commit=off") as connection:
            tokens += [Ledger(connection).draw_token(RESOURCE) for _ in range(40)]  # past what a sequence logs ahead
            crash(running)

    assert tokens == sorted(set(tokens))


def test_an_activation_that_returned_survives_a_crash(
    running: dev.Servers, dsn: str, connection: Connection, ledger: Ledger
) -> None:
    connection.execute("set synchronous_commit = off")
    token = activated(ledger)
    crash(running)

    with psycopg.connect(dsn, autocommit=True) as again:
        assert again.execute("select active, holder from ledger.fence").fetchall() == [(token, ALICE)]


def test_a_claim_that_returned_survives_a_crash_so_that_the_next_holder_asks_first(
    running: dev.Servers, dsn: str, connection: Connection, ledger: Ledger, token: int
) -> None:
    connection.execute("set synchronous_commit = off")
    ledger.claim_refund(MERCHANT, "r_new", token)
    crash(running)

    with psycopg.connect(dsn, autocommit=True) as again:
        assert Ledger(again).claim_refund(MERCHANT, "r_new", activated(Ledger(again), BOB)).outcome == "taken_over"


def test_a_confirm_that_returned_survives_a_crash(
    running: dev.Servers, admin_dsn: str, connection: Connection, ledger: Ledger, token: int
) -> None:
    connection.execute("set synchronous_commit = off")
    ledger.confirm_refund(MERCHANT, "r_mine", token, "re_1")
    crash(running)

    with psycopg.connect(admin_dsn, autocommit=True) as again:
        assert refund(again, "r_mine", "state", "gateway_ref") == ("sent", "re_1")
        assert Ledger(again).verify() == []
