"""A client that is frozen while it holds the gate makes activation wait for a bounded time, or is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import (
    BOB,
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    drawn,
    in_background,
    is_waiting,
    limited,
    raised,
    refund,
    refused,
    until,
)

IDLE, LOCK = 0.3, 0.2
LOOKS = 1.0
SLACK = 2.0
CLIENT = Path(__file__).with_name("frozen_client.py")

# Where nothing but the look at the holders ends a client, and what it waits for there.
BEYOND_THE_IDLE_LIMIT = {
    "inside_copy": "ClientRead",
    "in_a_pipeline": "ClientRead",
    "reading_a_large_result": "ClientWrite",
}


@dataclass(frozen=True)
class Frozen:
    """A stopped process, and its session."""

    process: subprocess.Popen[str]
    pid: int

    def wake(self) -> str:
        """Let it go on, and hear what became of its commit."""
        self.process.send_signal(signal.SIGCONT)
        out, _ = self.process.communicate("\n", timeout=10)
        return out.strip()


Freeze = Callable[..., Frozen]


@pytest.fixture
def token(ledger: Ledger, operators: Ledger) -> int:
    """The active token, that of the worker who will be frozen. Limits are short."""
    limited(operators, idle=IDLE, lock=LOCK)
    added(ledger, "r_1")
    return activated(ledger)


@pytest.fixture
def freeze(dsn: str, token: int) -> Iterator[Freeze]:
    """Stop a worker with SIGSTOP where it holds the gate: `freeze("inside_copy")`."""
    started: list[subprocess.Popen[str]] = []

    def freeze(where: str, dsn: str = dsn) -> Frozen:
        process = subprocess.Popen(
            [sys.executable, str(CLIENT), where, dsn, str(token)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return Frozen(process, pid)

    yield freeze
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def session(admin: Connection, pid: int) -> tuple[Any, ...] | None:
    return admin.execute(
        "select state, wait_event_type, wait_event from pg_stat_activity where pid = %s", [pid]
    ).fetchone()


def ended(admin: Connection) -> list[dict[str, Any]]:
    rows = admin.execute("select detail from ledger.event where event = 'session_ended' order by event_id").fetchall()
    return [detail for (detail,) in rows]


def test_one_frozen_between_statements_is_ended_by_the_idle_limit(
    freeze: Freeze, rivals: Ledger, admin: Connection, token: int
) -> None:
    frozen = freeze("between_statements")
    began = time.monotonic()
    later = activated(rivals, BOB)

    assert time.monotonic() - began < IDLE + SLACK
    until(lambda: session(admin, frozen.pid) is None)
    assert ended(admin) == []
    assert refund(admin, "r_1", "state", "fence") == ("pending", 0)
    assert rivals.claim_refund(MERCHANT, "r_1", later).outcome == "claimed"
    assert frozen.wake() == "25P03"


@pytest.mark.parametrize(("where", "wait_event"), BEYOND_THE_IDLE_LIMIT.items(), ids=BEYOND_THE_IDLE_LIMIT.keys())
def test_one_frozen_where_the_idle_limit_does_not_reach_is_ended_by_the_activation(
    freeze: Freeze, rivals: Ledger, admin: Connection, where: str, wait_event: str
) -> None:
    frozen = freeze(where)
    until(lambda: session(admin, frozen.pid) == ("active", "Client", wait_event))

    began = time.monotonic()
    later = activated(rivals, BOB)
    took = time.monotonic() - began

    assert IDLE < took < IDLE + LOOKS + LOCK + SLACK
    until(lambda: session(admin, frozen.pid) is None)
    assert refund(admin, "r_1", "state", "fence") == ("pending", 0)
    assert rivals.claim_refund(MERCHANT, "r_1", later).outcome == "claimed"
    assert frozen.wake() in {"57P01", "connection lost"}


def test_a_session_that_was_ended_is_remembered(freeze: Freeze, rivals: Ledger, admin: Connection) -> None:
    frozen = freeze("inside_copy")
    later = activated(rivals, BOB)

    (facts,) = ended(admin)
    assert (facts["pid"], facts["user"], facts["application"]) == (frozen.pid, "ledger_worker", "frozen")
    assert (facts["state"], facts["wait_event"]) == ("active", "ClientRead")
    assert admin.execute(
        "select kind, resource, token, holder from ledger.event where event = 'session_ended'"
    ).fetchall() == [("settle", RESOURCE, later, BOB)]


def test_one_that_wakes_up_in_time_is_left_to_finish(
    freeze: Freeze, rival: Connection, rivals: Ledger, operators: Ledger, admin: Connection, token: int
) -> None:
    limited(operators, idle=3)
    frozen = freeze("inside_copy")
    later = drawn(rivals)
    activation = in_background(lambda: rivals.activate_token(RESOURCE, later, BOB))
    until(is_waiting(admin, rival))

    assert frozen.wake() == "committed"
    activation.result(5)
    assert ended(admin) == []
    assert refund(admin, "r_1", "state", "fence") == ("sending", token)


@pytest.mark.parametrize("limit", [IDLE / 2, IDLE])
def test_a_caller_that_waits_no_longer_than_the_idle_limit_ends_nobody(
    limit: float, freeze: Freeze, rival: Connection, rivals: Ledger, admin: Connection, token: int
) -> None:
    frozen = freeze("inside_copy")
    rival.execute("select set_config('lock_timeout', %s, false)", [str(round(limit * 1000))])
    later = drawn(rivals)
    with raised("55P03"):
        rivals.activate_token(RESOURCE, later, BOB)
    assert frozen.wake() == "committed"
    assert ended(admin) == []


def test_one_that_comes_through_while_it_is_looked_at_is_left_alone(
    connection: Connection, ledger: Ledger, rivals: Ledger, rival: Connection, admin: Connection, token: int
) -> None:
    """A COPY that is slow, but moves on: the bytes differ from look to look."""
    connection.execute("create temporary table line (filler text)")
    later = drawn(rivals)
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", token)
        with connection.cursor().copy("copy line from stdin") as copy:
            copy.write("x\n")
            activation = in_background(lambda: rivals.activate_token(RESOURCE, later, BOB))
            until(is_waiting(admin, rival))
            while not activation.done():
                copy.write("x" * 20_000 + "\n")
                time.sleep(0.02)  # the pace of a slow client, not a wait

    with raised("55P03") as refusal:
        activation.result(5)
    assert refusal.tells(sessions_ended=[])
    assert ended(admin) == []
    assert refund(admin, "r_1", "state", "fence") == ("sending", token)


@pytest.fixture
def without_the_right_to_end(admin: Connection) -> Iterator[None]:
    """A site whose DBA withholds pg_signal_backend. The role belongs to the whole server, so it is given back."""
    admin.execute("revoke pg_signal_backend from ledger_fn")
    yield
    admin.execute("grant pg_signal_backend to ledger_fn")


@pytest.mark.usefixtures("without_the_right_to_end")
@pytest.mark.parametrize("where", BEYOND_THE_IDLE_LIMIT)
def test_without_the_right_to_end_sessions_it_is_named(
    freeze: Freeze, rivals: Ledger, admin: Connection, where: str, token: int
) -> None:
    frozen = freeze(where)
    later = drawn(rivals)

    with refused("55P03", admin) as refusal:
        rivals.activate_token(RESOURCE, later, BOB)

    (held_by,) = refusal.detail["held_by"]
    assert (held_by["pid"], held_by["user"], held_by["application"]) == (frozen.pid, "ledger_worker", "frozen")
    assert refusal.tells(sessions_ended=[], token=later, holder=BOB)
    assert refusal.message == (
        f"activate_token of settle:m_1 refused: the gate is held by pid {frozen.pid} (ledger_worker, frozen); "
        "nothing was changed"
    )
    assert frozen.wake() == "committed"
    assert refund(admin, "r_1", "state", "fence") == ("sending", token)


@pytest.mark.usefixtures("without_the_right_to_end")
def test_one_frozen_between_statements_is_ended_without_that_right_too(
    freeze: Freeze, rivals: Ledger, admin: Connection
) -> None:
    frozen = freeze("between_statements")
    activated(rivals, BOB)

    assert frozen.wake() == "25P03"


@pytest.mark.usefixtures("without_the_right_to_end")
def test_a_client_that_stops_after_activating_is_ended_by_the_idle_limit_as_well(
    connection: Connection, ledger: Ledger, rivals: Ledger, token: int
) -> None:
    connection.autocommit = False
    activated(ledger)

    assert activated(rivals, BOB) > token
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        connection.commit()


def test_a_superusers_session_is_named_and_never_an_error(
    freeze: Freeze, rivals: Ledger, admin: Connection, admin_dsn: str, token: int
) -> None:
    frozen = freeze("inside_copy", admin_dsn)
    later = drawn(rivals)

    with refused("55P03", admin) as refusal:
        rivals.activate_token(RESOURCE, later, BOB)

    (held_by,) = refusal.detail["held_by"]
    assert (held_by["pid"], held_by["user"], held_by["application"]) == (frozen.pid, "postgres", "frozen")
    assert frozen.wake() == "committed"


def test_a_superusers_session_does_not_keep_others_from_being_ended(
    freeze: Freeze, rivals: Ledger, admin: Connection, dsn: str, admin_dsn: str, connect: Connect, token: int
) -> None:
    added(rivals, "r_2")
    frozen = freeze("inside_copy")
    later = drawn(rivals)
    superuser = connect(admin_dsn, autocommit=False)
    superuser.execute("create temporary table line (number integer)")
    Ledger(superuser).claim_refund(MERCHANT, "r_2", token)

    with superuser.cursor().copy("copy line from stdin") as copy:
        with raised("55P03") as refusal:
            rivals.activate_token(RESOURCE, later, BOB)
        copy.write("1\n")
    assert [session["pid"] for session in refusal.detail["held_by"]] == [superuser.info.backend_pid]
    assert [session["pid"] for session in refusal.detail["sessions_ended"]] == [frozen.pid]


def test_a_prepared_transaction_is_named(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int
) -> None:
    connection.autocommit = False
    connection.tpc_begin(connection.xid(1, "stuck", ""))
    ledger.claim_refund(MERCHANT, "r_1", token)
    connection.tpc_prepare()
    later = drawn(rivals)
    try:
        with refused("55P03", admin) as refusal:
            rivals.activate_token(RESOURCE, later, BOB)
    finally:
        connection.tpc_rollback()

    (held_by,) = refusal.detail["held_by"]
    assert "pid" not in held_by
    assert held_by["prepared"]
    assert "the gate is held by a prepared transaction" in refusal.message
    assert "pg_prepared_xacts" in refusal.hint
    rivals.activate_token(RESOURCE, later, BOB)


@pytest.mark.parametrize(
    "work",
    ["select pg_sleep(30)", "select count(*) from generate_series(1, 100000) a, generate_series(1, 100000) b"],
    ids=["waiting for a timer", "computing"],
)
def test_a_statement_that_is_really_running_is_named_and_not_ended(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, token: int, work: str
) -> None:
    later = drawn(rivals)
    with connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, "r_1", token)
        running = in_background(lambda: connection.execute(work.encode()))
        with refused("55P03", admin) as refusal:
            rivals.activate_token(RESOURCE, later, BOB)
        admin.execute("select pg_cancel_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.errors.QueryCanceled):
            running.result(5)

    (held_by,) = refusal.detail["held_by"]
    assert (held_by["pid"], held_by["state"]) == (connection.info.backend_pid, "active")
    assert refusal.tells(sessions_ended=[])
    assert ended(admin) == []


def test_one_that_waits_for_another_lock_is_not_ended(
    connection: Connection, ledger: Ledger, rivals: Ledger, admin: Connection, connect: Connect, token: int
) -> None:
    blocker = connect(autocommit=False)
    blocker.execute("select pg_advisory_xact_lock(1)")
    later = drawn(rivals)
    with connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, "r_1", token)
        waiting = in_background(lambda: connection.execute("select pg_advisory_xact_lock(1)"))
        until(is_waiting(admin, connection))
        with refused("55P03", admin) as refusal:
            rivals.activate_token(RESOURCE, later, BOB)
        blocker.rollback()
        waiting.result(5)

    assert refusal.tells(sessions_ended=[])


def test_sessions_outside_the_gate_are_never_ended(
    freeze: Freeze, rivals: Ledger, connect: Connect, admin: Connection, token: int
) -> None:
    bystander = connect(autocommit=False)
    added(Ledger(bystander), "r_9", merchant_id="m_2")
    freeze("inside_copy")
    activated(rivals, BOB)

    bystander.commit()
    assert len(ended(admin)) == 1
