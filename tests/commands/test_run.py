"""`ledger run`: any program under a lease, in Redis or in Postgres."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from ledger.client import Ledger
from ledger.lease import AdvisoryLease, Lease
from tests.commands.conftest import CHECKOUT, Cli
from tests.story import until

JOB = "report:daily"
LOCKS = ("redis", "advisory")
READY = "echo ready; "

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=LOCKS)
def lock(request: pytest.FixtureRequest, operators: Ledger) -> str:
    """Where leases of kind report live; they are short."""
    operators.set_kind(
        "report",
        lock=request.param,
        lease_ttl=timedelta(seconds=0.6),
        idle_limit=timedelta(seconds=0.3),
        lock_limit=timedelta(seconds=0.2),
        actor="tests",
        reason="short limits",
    )
    return str(request.param)


@pytest.fixture
def free(lock: str, dsn: str, redis_url: str) -> Callable[[], bool]:
    """Whether the lease can be had at once."""

    def look() -> bool:
        with AdvisoryLease(JOB, db=dsn) if lock == "advisory" else Lease(JOB, db=dsn, redis=redis_url) as lease:
            return lease.token > 0

    return look


def sh(script: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", script)


def is_ready(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "ready\n"


def test_the_program_finds_its_token_and_its_resource(
    cli: Cli, lock: str, free: Callable[[], bool], admin: psycopg.Connection[Any]
) -> None:
    said = cli("run", JOB, *sh('echo "$LEDGER_RESOURCE $LEDGER_TOKEN $LEDGER_HOLDER"'))

    assert (said.code, said.err) == (0, "")
    resource, token, holder = said.out.split()
    fence = admin.execute("select active, holder from ledger.fence where resource = %s", [JOB]).fetchone()
    assert (resource, int(token), holder) == (JOB, *(fence or ()))
    assert free()


@pytest.mark.parametrize("code", [0, 1, 6, 42, 255])
def test_its_exit_code_is_the_programs(cli: Cli, lock: str, free: Callable[[], bool], code: int) -> None:
    assert cli("run", JOB, *sh(f"exit {code}")).code == code
    assert free()


def test_a_program_that_a_signal_ended_exits_as_in_a_shell(cli: Cli, lock: str) -> None:
    assert cli("run", JOB, *sh("kill -9 $$")).code == 128 + 9


def test_while_it_runs_another_one_is_busy_and_starts_nothing(
    cli: Cli, start: Start, lock: str, tmp_path: Path
) -> None:
    first = start("run", JOB, *sh(READY + "read line"), stdin=subprocess.PIPE)
    assert is_ready(first)

    said = cli("run", JOB, *sh("touch started"))

    assert said.code == 6
    assert f"{JOB} is" in said.err or f"lock of {JOB}" in said.err or "refused" in said.err
    assert not (tmp_path / "started").exists()
    first.communicate("go on\n")
    assert first.returncode == 0


def test_waiting_it_starts_when_the_other_has_ended(cli: Cli, start: Start, lock: str) -> None:
    first = start("run", JOB, *sh(READY + "read line"), stdin=subprocess.PIPE)
    assert is_ready(first)
    second = start("run", JOB, "--wait", "20s", *sh("echo second"))
    first.communicate("go on\n")

    assert second.communicate()[0] == "second\n"
    assert second.returncode == 0


def test_the_lease_is_kept_while_the_program_runs(start: Start, lock: str, admin: psycopg.Connection[Any]) -> None:
    process = start("run", JOB, *sh("sleep 1.2"))  # two times the ttl
    _, err = process.communicate()

    assert (process.returncode, err) == (0, "")
    renewals = admin.execute(
        "select (detail ->> 'renewals')::integer from ledger.event where event = 'held' and resource = %s", [JOB]
    ).fetchone()
    assert renewals is not None
    assert renewals[0] >= 2


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_go_on_to_the_program_and_the_lease_is_given_back(
    start: Start, lock: str, free: Callable[[], bool], sent: signal.Signals, code: int
) -> None:
    process = start("run", JOB, *sh(READY + "exec sleep 60"))
    assert is_ready(process)

    process.send_signal(sent)

    process.communicate()
    assert process.returncode == code
    assert free()


def test_a_program_may_end_in_its_own_way_when_it_is_told_to(start: Start, lock: str) -> None:
    process = start("run", JOB, *sh("trap 'echo tidied; exit 17' TERM; " + READY + "while :; do sleep 0.05; done"))
    assert is_ready(process)
    process.terminate()
    assert process.communicate()[0] == "tidied\n"
    assert process.returncode == 17


def test_a_signal_reaches_what_the_program_has_started(start: Start, lock: str) -> None:
    process = start("run", JOB, *sh("sleep 60 & echo $!; wait"))
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    process.terminate()
    process.communicate()
    until(lambda: not alive(grandchild))


def test_when_the_lease_is_lost_the_program_is_stopped(
    start: Start, lock: str, redis_url: str, admin: psycopg.Connection[Any]
) -> None:
    process = start("run", JOB, *sh("trap 'echo told; exit 0' TERM; " + READY + "while :; do sleep 0.05; done"))
    assert is_ready(process)

    take_away(lock, redis_url, admin)

    out, err = process.communicate()
    assert (process.returncode, out) == (8, "told\n")
    assert f"the lease on {JOB} is lost" in err
    assert "The command was stopped" in err


def test_one_that_does_not_listen_is_killed_after_the_grace(
    start: Start, lock: str, redis_url: str, admin: psycopg.Connection[Any]
) -> None:
    process = start("run", JOB, "--grace", "0.2s", *sh("trap '' TERM; echo $$; while :; do sleep 0.05; done"))
    assert process.stdout is not None
    pid = int(process.stdout.readline())

    take_away(lock, redis_url, admin)

    process.communicate()
    assert process.returncode == 8
    assert not alive(pid)


def test_a_program_that_is_not_there_takes_no_lease(cli: Cli, lock: str, admin: psycopg.Connection[Any]) -> None:
    said = cli("run", JOB, "--", "no-such-program", "--flag")
    assert said.code == 127
    assert "no-such-program can't be started: there is no such program" in said.err
    assert admin.execute("select from ledger.fence").fetchall() == []


def test_one_that_is_not_executable_says_so(cli: Cli, lock: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a program")
    said = cli("run", JOB, "--", "./notes")
    assert said.code == 126
    assert "it isn't executable" in said.err


def test_one_that_turns_out_not_to_be_a_program_gives_the_lease_back(
    cli: Cli, lock: str, free: Callable[[], bool], tmp_path: Path
) -> None:
    (tmp_path / "notes").write_bytes(b"\0not a program")
    (tmp_path / "notes").chmod(0o755)
    assert cli("run", JOB, "--", "./notes").code == 126
    assert free()


def test_a_new_kind_is_of_the_lock_that_it_is_first_run_under(cli: Cli, admin: psycopg.Connection[Any]) -> None:
    assert cli("run", "backup:nightly", "--lock", "advisory", *sh("true")).code == 0
    assert cli("run", "export:nightly", *sh("true")).code == 0
    assert admin.execute("select kind, lock from ledger.kind where kind <> 'settle' order by 1").fetchall() == [
        ("backup", "advisory"),
        ("export", "redis"),
    ]


def test_a_lock_that_is_not_the_kinds_is_refused(cli: Cli, lock: str) -> None:
    other = LOCKS[1 - LOCKS.index(lock)]
    said = cli("run", JOB, "--lock", other, *sh("true"))
    assert said.code == 2
    assert f"ledger kind set report --lock {other}" in said.err


def test_without_redis_it_says_how_to_do_without(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEDGER_REDIS_URL")
    said = cli("run", JOB, *sh("true"))
    assert said.code == 4
    assert "ledger kind set report --lock advisory" in said.err


@pytest.mark.parametrize("resource", ["report", ":daily", "report:"])
def test_what_is_no_resource_is_refused(cli: Cli, resource: str) -> None:
    said = cli("run", resource, *sh("true"))
    assert said.code == 2
    assert "those are kind:name" in said.err


def test_options_behind_the_dashes_are_the_programs(cli: Cli, lock: str) -> None:
    said = cli("run", JOB, "--", "echo", "-o", "json", "--dry-run", "--")
    assert said.out == "-o json --dry-run --\n"
    failed = cli("run", "nothing", "--", "kubectl", "-o", "json")
    assert failed.err.startswith("error: ")


def test_there_is_no_dry_run_of_somebody_elses_program(cli: Cli) -> None:
    assert cli("run", JOB, "--dry-run", *sh("true")).code == 2


def test_at_a_terminal_the_program_has_the_keyboard(cli: Cli, lock: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ledger", "run", JOB, *sh('read line; echo "read $line"')],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, b"typed\n")
    out, err = process.communicate()
    os.close(ours)
    assert (process.returncode, out, err) == (0, "read typed\n", "")


def take_away(lock: str, redis_url: str, admin: psycopg.Connection[Any]) -> None:
    """The lease is gone, as when an operator takes it."""
    if lock == "redis":
        with redis.Redis.from_url(redis_url) as server:
            server.flushall()
    else:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and objsubid = 2"
            " and mode = 'ExclusiveLock'"
        )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "(zombie)" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc").is_dir() else True
