"""One session of PgBouncer for everybody, in transaction mode."""

from __future__ import annotations

from ledger.lease import AdvisoryLease
from tests.dba.pgbouncer import PGBOUNCER, behind, pgbouncer
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.scenarios.transactions import frozen
from tests.proof.chaos.world import World


def no_pooler() -> str:
    """Why it can't run on this machine."""
    return "" if PGBOUNCER else "there is no pgbouncer"


def one_session(world: World) -> str:
    """The run's database through a pooler that has one session for all workers."""
    port = world.enter(pgbouncer(world.servers, "transaction", default_pool_size=1))
    world.fault("everybody shares one session")
    return behind(port, world.database)


@scenario(
    "one-session", "All workers share one session of PgBouncer, and one of them is frozen or killed", needs=no_pooler
)
def pooled_worker_frozen(world: World) -> None:
    world.refunds()
    dsn = one_session(world)
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
    "one-session-frozen", "The client that has PgBouncer's one session is frozen in a transaction", needs=no_pooler
)
def pooled_client_frozen(world: World) -> None:
    frozen(world, world.rng.choice(["between_statements", "inside_copy"]), one_session(world))
