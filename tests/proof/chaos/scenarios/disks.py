"""Commits that aren't waited for, and disks that are full."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from ledger.dev.account import Account
from ledger.doctor import examine
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import Hold
from tests.proof.chaos.world import RESOURCE, World
from tests.story import until

MEGABYTE = 2**20
STATES = {"claimed": "sending", "taken_over": "sending", "confirmed": "sent"}


@scenario("commits-not-awaited", "synchronous_commit is off for the workers' role, and Postgres crashes")
def commits_not_awaited(world: World) -> None:
    """What a worker was told is there all the same."""
    world.refunds()
    world.enter(world.setting("wal_writer_delay", "10s"))  # nobody else writes the log meanwhile
    world.rows(f"alter role ledger_worker in database {world.database} set synchronous_commit = off")
    with psycopg.connect(world.dsn("postgres"), autocommit=True) as connection:
        assert "durability" in {found.check for found in examine(connection)}
    worker = world.worker("A", hold=world.point("after draw", "after activate", "after claim", "after confirm"))
    worker.until_held()
    with world.ledger("ledger_worker") as ledger:
        world.tokens_by_hand += [ledger.draw_token(RESOURCE) for _ in range(3)]
    world.crash_postgres()
    world.until_postgres_answers()
    there = set(world.rows("select refund_id, token, to_state from ledger.journal"))
    for said in worker.calls():
        for refund_id, outcome in said.facts.get("rows", ()):
            if (refund_id, said.facts["token"], STATES[outcome]) not in there:
                world.breaches.append(f"I4: {refund_id} was told to be {outcome}, and isn't after the crash")
    with world.ledger("ledger_worker") as ledger:
        world.tokens_by_hand += [ledger.draw_token(RESOURCE) for _ in range(3)]
    worker.go()


def no_mount() -> str:
    """Why it can't run on this machine."""
    try:
        with small_disk(1):
            return ""
    except (OSError, subprocess.CalledProcessError):
        return "a small disk can't be mounted here; that takes root"


@contextlib.contextmanager
def small_disk(megabytes: int, account: Account | None = None) -> Iterator[Path]:
    """A disk of that size, of the servers' user."""
    with tempfile.TemporaryDirectory(prefix="chaos-disk-", dir="/tmp") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "chaos", folder]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            if account is not None:
                account.own(Path(folder))
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on it; the file to delete."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
    return ballast


@scenario("disk-full", "No table can grow any more in the middle of a batch, until there is room again", needs=no_mount)
def disk_full(world: World) -> None:
    disk = world.enter(small_disk(64, world.servers.postgres.account))
    world.enter(tables_on(world, disk))
    world.refunds(world.rng.randint(60, 90))
    worker = world.worker("A", hold=Hold("before claim", world.rng.randint(1, 5)))
    worker.until_held()
    ballast = fill(disk)
    world.fault("the disk is full")
    worker.go()
    worker.until(lambda said: said.facts.get("outcome") == "53100", "to find no room")
    ends_first = world.rng.random() < 0.5
    if ends_first:
        worker.join()
    ballast.unlink()
    world.note("there is room again")


@contextlib.contextmanager
def tables_on(world: World, disk: Path) -> Iterator[None]:
    """The run's tables are on that disk, for the length of a block."""
    name = f"small_{world.database}"

    def move(to: str) -> None:
        world.hang_up()
        with psycopg.connect(world.servers.dsn("postgres", "postgres"), autocommit=True) as admin:
            others = (
                "select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity where datname = %s) t"
            )
            until(lambda: admin.execute(others, [world.database]).fetchone() == (0,))
            admin.execute(f"alter database {world.database} set tablespace {to}".encode())

    world.rows(f"create tablespace {name} location '{disk}'")
    move(name)
    try:
        yield
    finally:
        move("pg_default")
        world.rows(f"drop tablespace {name}")
        world.hang_up()


@scenario("log-disk-full", "The disk of Postgres' log is full, and the server dies of it", needs=no_mount)
def log_disk_full(world: World) -> None:
    world.refunds()
    log = world.servers.postgres.data / "pg_wal"
    size = sum(file.stat().st_size for file in log.iterdir()) // MEGABYTE
    disk = world.enter(small_disk(size + 64, world.servers.postgres.account))  # four files more
    world.enter(log_on(world, disk))
    worker = world.worker("A", hold=world.point())
    worker.until_held()
    ballast = fill(disk)
    world.fault("the disk of the log is full")
    world.postgres_failed = True
    until(lambda: not_written(world), within=30)
    world.note("Postgres is down")
    worker.go()
    if world.rng.random() < 0.5:
        worker.join()
    ballast.unlink()
    world.servers.crash_postgres()  # what is dying, or tries again to come up without room
    world.servers.start_postgres()
    world.until_postgres_answers()
    world.note("there is room again")


def not_written(world: World) -> bool:
    """Whether a commit that needs another file of the log fails."""
    try:
        world.rows("select pg_switch_wal()")
        world.rows("select pg_logical_emit_message(true, 'chaos', 'one more')")
    except psycopg.OperationalError:
        return True
    return False


@contextlib.contextmanager
def log_on(world: World, disk: Path) -> Iterator[None]:
    """Postgres writes its log to that disk, for the length of a block."""
    servers, log, kept = world.servers, world.servers.postgres.data / "pg_wal", disk / "pg_wal"
    world.hang_up()
    servers.stop_postgres()
    shutil.move(log, kept)
    servers.postgres.account.own(disk)
    log.symlink_to(kept)
    servers.start_postgres()
    try:
        yield
    finally:
        world.hang_up()
        servers.stop_postgres()
        log.unlink()
        shutil.copytree(kept, log)
        servers.postgres.account.own(log)
        servers.start_postgres()
