"""A client that is frozen inside a transaction in which it wrote under its token."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg

from ledger.client import Ledger
from ledger.doctor import examine
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.world import MERCHANT, RESOURCE, World
from tests.story import until

CLIENT = Path(__file__).parents[3] / "frozen_client.py"


@scenario("frozen-idle", "A client is frozen between the statements of its transaction")
def frozen_idle(world: World) -> None:
    frozen(world, "between_statements")


@scenario("frozen-in-copy", "A client is frozen inside a COPY of its transaction")
def frozen_in_copy(world: World) -> None:
    frozen(world, "inside_copy")


@scenario("frozen-in-pipeline", "A client is frozen in a pipeline that it didn't end")
def frozen_in_pipeline(world: World) -> None:
    frozen(world, "in_a_pipeline")


@scenario("frozen-reading", "A client is frozen while Postgres sends it a large result")
def frozen_reading(world: World) -> None:
    frozen(world, "reading_a_large_result")


def frozen(world: World, where: str, dsn: str | None = None) -> None:
    """It has claimed r_1 and holds the gate; whoever comes next gets in all the same, and it commits nothing."""
    world.refunds()
    dsn = dsn or world.dsn()
    with world.ledger("ledger_worker") as ledger:
        token = ledger.draw_token(RESOURCE)
        ledger.activate_token(RESOURCE, token, "frozen/1/0123456789abcdef")
    arguments = [sys.executable, str(CLIENT), where, dsn, str(token)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None
            (pid, ready) = (int(client.stdout.readline()), client.stdout.readline())
            assert ready == "ready\n"
            client.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(client.pid, os.WUNTRACED)[1])
            world.fault(f"a client is frozen {where.replace('_', ' ')}")
            world.recover(dsn=dsn)
            until(lambda: not world.rows("select 1 from pg_stat_activity where pid = %s", [pid]))
            client.send_signal(signal.SIGCONT)
            said, _ = client.communicate("\n", timeout=10)
        finally:
            client.kill()
    world.note(f"it wakes up, commits, and gets: {said.strip()}")
    world.codes.add(said.strip())
    if said.strip() == "committed":
        world.breaches.append("I4: a frozen client committed after a newer token was active")


@scenario("prepared-and-left", "A transaction that wrote under its token is prepared and left until a person ends it")
def prepared_and_left(world: World) -> None:
    world.refunds()
    with world.ledger("ledger_worker") as ledger:
        token = ledger.draw_token(RESOURCE)
        ledger.activate_token(RESOURCE, token, "coordinator/1/0123456789abcdef")
    gid = world.enter(prepared_claim(world, token))
    world.fault("a claim is prepared and left")
    rival = world.worker("B", wait=5.0)
    rival.join()
    assert [said.facts["code"] for said in rival.said if said.what == "gave up"] == ["55P03"], rival.said
    assert world.active()[0] == token
    with psycopg.connect(world.dsn("postgres"), autocommit=True) as connection:
        assert "prepared_transactions" in {found.check for found in examine(connection)}
    verdict = world.rng.choice(["commit", "rollback"])
    world.rows(f"{verdict} prepared '{gid}'")
    world.note(f"a person ends it: {verdict}")
    assert world.open_refunds("sending") == (verdict == "commit")


@contextlib.contextmanager
def prepared_claim(world: World, token: int) -> Iterator[str]:
    """A claim of r_1 in a transaction that is prepared; it is gone by the end of the run."""
    with contextlib.closing(psycopg.connect(world.dsn())) as connection:
        connection.tpc_begin(connection.xid(1, world.database, ""))
        Ledger(connection).claim_refund(MERCHANT, "r_1", token)
        connection.tpc_prepare()
    left = "select gid from pg_prepared_xacts where database = current_database()"
    ((gid,),) = world.rows(left)
    try:
        yield gid
    finally:
        if world.rows(left):
            world.rows(f"rollback prepared '{gid}'")
