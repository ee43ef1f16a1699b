"""A ledger that goes on from its dump, in another cluster."""

from __future__ import annotations

from ledger import dev
from tests.dba.dump import dump, restore
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.scenarios.workers import held_somewhere
from tests.proof.chaos.world import PERSON, RESOURCE, World


@scenario(
    "dump-restored", "A dump from the middle of a batch is restored into another cluster; what came after it is lost"
)
def dump_restored(world: World) -> None:
    world.refunds()
    worker = held_somewhere(world, "A")
    file = dump(world.servers, world.dsn("ledger_admin"), world.folder / "ledger.dump")
    world.fault("a dump is taken")
    if world.rng.random() < 0.5:
        worker.go()
        world.note("A goes on for a while")
        with world.ledger("ledger_worker") as ledger:
            handed_out = ledger.draw_token(RESOURCE)
    else:
        ((handed_out,),) = world.rows("select last_value from ledger.token_seq")
    worker.kill()
    world.fault("the cluster is lost, and A with it")
    world.postgres_failed = True
    move_to(world, world.enter(dev.temporary(world.servers.pg)))
    restore(world.servers, world.dsn("ledger_admin"), file)
    with world.ledger("ledger_worker") as ledger:
        assert world.tries(lambda: ledger.draw_token(RESOURCE)) == "LG106"
    with world.ledger() as ledger:
        assert ledger.recover_failover(**PERSON) == "recovered"
        world.note("an operator let the ledger recover")
        assert ledger.draw_token(RESOURCE) > handed_out


def move_to(world: World, elsewhere: dev.Servers) -> None:
    """The run goes on there; leases stay where they are."""
    world.hang_up()
    elsewhere.prepare(world.database)
    world.servers = elsewhere
