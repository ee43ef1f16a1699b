"""A very small pool of PgBouncer's for everybody, in transaction mode."""

from __future__ import annotations

from ledger.lease import AdvisoryLease
from tests.dba.pgbouncer import PGBOUNCER, behind, pgbouncer
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.scenarios.transactions import frozen
from tests.proof.chaos.world import World


def no_pooler() -> str:
    """Why it can't run on this machine."""
    return "" if PGBOUNCER else "there is no pgbouncer"


def pool(world: World, sessions: int) -> str:
    """The run's database through a pooler that has so many sessions for all workers."""
    port = world.enter(pgbouncer(world.servers, "transaction", default_pool_size=sessions))
    world.fault(f"everybody shares {sessions} of its sessions")
    return behind(port, world.database)


@scenario(
    "one-session", "All workers share one session of PgBouncer, and one of them is frozen or killed", needs=no_pooler
)
def pooled_worker_frozen(world: World) -> None:
    world.refunds()
    dsn = pool(world, 1)
    assert world.tries(lambda: AdvisoryLease("job:nightly", db=dsn).acquire()) == "LG304"
    a = world.worker("A", hold=world.point(), dsn=dsn)
    a.until_held()
    if world.rng.random() < 0.5:
        a.freeze()
        world.fault("A is frozen")
    else:
        a.kill()
        world.fault("A is killed")
    world.recover(dsn=dsn)
    a.wake()


@scenario(
    "pool-frozen", "A client that has a session of a pool, its only one or one of two, is frozen in it", needs=no_pooler
)
def pooled_client_frozen(world: World) -> None:
    """Where the idle limit doesn't reach, whoever ends the client needs a session to do it from."""
    where, sessions = world.rng.choice([("between_statements", 1), ("reading_a_large_result", 2)])
    frozen(world, where, pool(world, sessions))
