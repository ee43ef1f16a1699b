"""After a promotion or a restore nothing passes until recovery: numbers of the lost timeline are unknown here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import dev, schema
from ledger.client import Ledger
from ledger.dev.postgres import OWN_SETTINGS
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    UNDRAWN,
    Connection,
    activated,
    added,
    as_ledger_fn,
    limited,
    on_a_new_timeline,
    raised,
    refused,
    until,
)

WHO: dict[str, Any] = {"actor": "dana", "reason": "INC-7"}
JOB = "charges:org_7"

FENCED: dict[str, Callable[[Ledger, int], Any]] = {
    "draw_token": lambda ledger, _: ledger.draw_token(RESOURCE),
    "activate_token": lambda ledger, token: ledger.activate_token(RESOURCE, token, ALICE),
    "lock_job": lambda ledger, _: ledger.lock_job(JOB, ALICE),
    "hold_job": lambda ledger, _: ledger.hold_job(JOB),
    "claim_refund": lambda ledger, token: ledger.claim_refund(MERCHANT, "r_new", token),
    "claim_refunds": lambda ledger, token: ledger.claim_refunds(MERCHANT, token, 10),
    "confirm_refund": lambda ledger, token: ledger.confirm_refund(MERCHANT, "r_mine", token, "re_1"),
    "confirm_refunds": lambda ledger, token: ledger.confirm_refunds(MERCHANT, token, ["r_mine"], ["re_1"]),
    "fail_refund": lambda ledger, token: ledger.fail_refund(MERCHANT, "r_mine", token, "card closed"),
    "release_refund": lambda ledger, token: ledger.release_refund(MERCHANT, "r_mine", token, "not sent"),
    "mark_unknown": lambda ledger, token: ledger.mark_unknown(MERCHANT, "r_mine", token, "timeout"),
    "accept_refund": lambda ledger, token: ledger.accept_refund(MERCHANT, "r_mine", token, "re_1"),
}

every_fenced_call = pytest.mark.parametrize("call", FENCED.values(), ids=FENCED.keys())


@pytest.fixture
def token(ledger: Ledger) -> int:
    """The active token, under which r_mine is claimed."""
    added(ledger, "r_mine", "r_new")
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_mine", token)
    return token


def restored_elsewhere(admin: Connection) -> None:
    """What a dump finds on another server: the timeline may be the same, the start and the identifier aren't."""
    as_ledger_fn(admin, "update ledger.server set system_identifier = 7, started_at = started_at - interval '1 day'")


def restarted(admin: Connection) -> None:
    """What a plain restart changes."""
    as_ledger_fn(admin, "update ledger.server set started_at = started_at - interval '1 day'")


def known_server(connection: Connection) -> Any:
    row = connection.execute(
        "select timeline, system_identifier, started_at = pg_postmaster_start_time(), xmin::text from ledger.server"
    ).fetchone()
    assert row is not None
    return row


@every_fenced_call
@pytest.mark.parametrize("happened", [on_a_new_timeline, restored_elsewhere])
def test_every_fenced_call_is_refused(
    ledger: Ledger,
    admin: Connection,
    token: int,
    call: Callable[[Ledger, int], Any],
    happened: Callable[[Connection], None],
) -> None:
    timeline, identifier, *_ = known_server(admin)
    happened(admin)
    known_timeline, known_identifier, *_ = known_server(admin)

    with refused("LG106", admin) as refusal:
        call(ledger, token)

    assert refusal.tells(
        timeline=timeline,
        known_timeline=known_timeline,
        system_identifier=identifier,
        known_system_identifier=known_identifier,
    )
    assert "this server was promoted or restored" in refusal.message
    assert refusal.message.endswith("; nothing was changed")
    assert refusal.hint.startswith("An operator runs select ledger.recover_failover(...) once")


@every_fenced_call
def test_every_fenced_call_is_refused_in_the_stricter_levels_too(
    connection: Connection, ledger: Ledger, admin: Connection, token: int, call: Callable[[Ledger, int], Any]
) -> None:
    on_a_new_timeline(admin)
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE

    with refused("LG106", admin), connection.transaction():
        call(ledger, token)


def test_a_repeated_confirm_is_refused_too_for_its_record_may_be_lost(
    ledger: Ledger, admin: Connection, token: int
) -> None:
    ledger.confirm_refund(MERCHANT, "r_mine", token, "re_1")
    on_a_new_timeline(admin)

    with refused("LG106", admin):
        ledger.confirm_refund(MERCHANT, "r_mine", token, "re_1")
    with refused("LG106", admin):
        ledger.claim_refund(MERCHANT, "r_mine", UNDRAWN)


def test_what_needs_no_token_goes_on(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    ledger.hold_job(JOB)
    on_a_new_timeline(admin)

    added(ledger, "r_1")
    limited(operators)
    assert ledger.get_kind("settle").known
    assert ledger.verify() == []
    assert ledger.free_job(JOB)
    assert ledger.record_refusal("LG106", "told", {}) > 0


@every_fenced_call
def test_a_plain_restart_is_remembered_and_costs_nothing(
    connection: Connection, ledger: Ledger, admin: Connection, call: Callable[[Ledger, int], Any], token: int
) -> None:
    restarted(admin)
    with connection.transaction():
        assert known_server(admin)[2] is False
        call(ledger, token)

    assert known_server(admin)[2] is True


def test_after_a_restart_each_resource_has_its_own_token(ledger: Ledger, admin: Connection, token: int) -> None:
    for merchant_id in ("m_2", "m_3"):
        other = activated(ledger, resource=f"settle:{merchant_id}")
        added(ledger, "r_1", merchant_id=merchant_id)
        restarted(admin)
        assert ledger.claim_refund(merchant_id, "r_1", other).outcome == "claimed"


def test_a_restart_is_remembered_once(ledger: Ledger, admin: Connection, token: int) -> None:
    restarted(admin)
    ledger.claim_refund(MERCHANT, "r_new", token)
    remembered = known_server(admin)
    ledger.confirm_refund(MERCHANT, "r_mine", token, "re_1")
    ledger.draw_token(RESOURCE)

    assert known_server(admin) == remembered


def test_nobody_waits_for_whoever_is_remembering_a_restart(
    connection: Connection, rival: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int
) -> None:
    restarted(admin)
    rival.execute("set statement_timeout = '2s'")
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_new", token)

        assert rivals.confirm_refund(MERCHANT, "r_mine", token, "re_1").outcome == "confirmed"
        assert rivals.draw_token(RESOURCE) > token


def test_a_strict_transaction_passes_after_a_restart_and_leaves_the_remembering_to_others(
    connection: Connection, rivals: Ledger, ledger: Ledger, admin: Connection, token: int
) -> None:
    restarted(admin)
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with connection.transaction():
        connection.execute("select from ledger.refund")
        rivals.draw_token(RESOURCE)
        assert ledger.claim_refund(MERCHANT, "r_new", token).outcome == "claimed"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_real_restart_and_a_real_crash_cost_nobody_a_token(
    running: dev.Servers, dsn: str, token: int, mode: str
) -> None:
    running.restart_postgres(mode)

    with psycopg.connect(dsn, autocommit=True) as again:
        assert known_server(again)[2] is False
        assert Ledger(again).confirm_refund(MERCHANT, "r_mine", token, "re_1").outcome == "confirmed"
        assert known_server(again)[2] is True


@pytest.fixture
def own_servers(pytestconfig: pytest.Config) -> Iterator[dev.Servers]:
    """Servers of this test alone, with a migrated database: their timeline won't be that of the others."""
    with dev.temporary(pytestconfig.getoption("pg")) as servers:
        servers.prepare()
        schema.upgrade(servers.dsn())
        yield servers


def back_up(servers: dev.Servers) -> Path:
    """A copy of the data of a server that is down for it."""
    data = servers.postgres.data
    backup = data.with_name("backup")
    servers.stop_postgres()
    servers.postgres.account.run("cp", "-a", data, backup)
    servers.start_postgres()
    return backup


def restore(servers: dev.Servers, backup: Path) -> None:
    """Start from the backup as a restore does: Postgres goes to the end of its log and opens a new timeline."""
    data = servers.postgres.data
    servers.stop_postgres("immediate")
    servers.postgres.account.run("mv", data, data.with_name("lost"))
    servers.postgres.account.run("mv", backup, data)
    servers.postgres.account.run("touch", data / "recovery.signal")
    with (data / OWN_SETTINGS).open("a") as settings:
        settings.write("restore_command = 'false'\n")
    servers.start_postgres()


def test_a_real_restore_that_lost_commits_lets_nobody_through_until_recovery(own_servers: dev.Servers) -> None:
    with psycopg.connect(own_servers.dsn("ledger_worker"), autocommit=True) as connection:
        worker = Ledger(connection)
        added(worker, "r_1", "r_2")
        active = activated(worker)
    backup = back_up(own_servers)

    with psycopg.connect(own_servers.dsn("ledger_worker"), autocommit=True) as connection:
        worker = Ledger(connection)
        lost = activated(worker, BOB)
        worker.claim_refund(MERCHANT, "r_1", lost)
        worker.confirm_refund(MERCHANT, "r_1", lost, "re_1")
    restore(own_servers, backup)

    with (
        psycopg.connect(own_servers.dsn("postgres"), autocommit=True) as admin,
        psycopg.connect(own_servers.dsn("ledger_worker"), autocommit=True) as connection,
    ):
        until(lambda: admin.execute("select 1 where not pg_is_in_recovery()").fetchone(), within=20)
        worker, operator = Ledger(connection), Ledger(admin)
        for token in (active, lost):
            with refused("LG106", admin) as refusal:
                worker.claim_refund(MERCHANT, "r_1", token)
            assert refusal.tells(timeline="00000002", known_timeline="00000001")
        with refused("LG106", admin):
            worker.draw_token(RESOURCE)

        assert operator.recover_failover(**WHO) == "recovered"
        for token, reason in ((active, "superseded"), (lost, "voided")):
            with raised("LG101") as refusal:
                worker.claim_refund(MERCHANT, "r_1", token)
            assert refusal.tells(reason=reason, active_holder="recovery")

        fresh = activated(worker)
        assert fresh > lost
        claims = worker.claim_refunds(MERCHANT, fresh, 10)
        assert {claim.refund_id: claim.outcome for claim in claims} == {"r_1": "taken_over", "r_2": "taken_over"}
        for claim in claims:
            worker.confirm_refund(MERCHANT, claim.refund_id, fresh, f"re_{claim.refund_id}")
        assert worker.verify() == []


def test_work_goes_on_in_the_same_sessions_after_recovery(
    ledger: Ledger, operators: Ledger, admin: Connection, token: int
) -> None:
    on_a_new_timeline(admin)
    with raised("LG106"):
        ledger.claim_refund(MERCHANT, "r_new", token)
    operators.recover_failover(**WHO)

    claims = ledger.claim_refunds(MERCHANT, activated(ledger, BOB), 10)
    assert [claim.outcome for claim in claims] == ["taken_over", "taken_over"]
    assert ledger.verify() == []
