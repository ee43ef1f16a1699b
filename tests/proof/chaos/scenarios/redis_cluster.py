"""A cluster of two nodes whose slots move, and one of whose nodes goes down."""

from __future__ import annotations

from collections.abc import Callable

import redis
from redis.cluster import key_slot

from tests.proof.chaos.redis_nodes import Node, node
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import POINTS
from tests.proof.chaos.world import RESOURCE, TTL, World
from tests.story import until

LEASE = f"lock:{{{RESOURCE}}}"
SLOT = key_slot(LEASE.encode())


def cluster(world: World) -> tuple[Node, Node]:
    """The node that the lease belongs to, and the other one, by which workers enter."""

    def options(made: Node) -> tuple[str, ...]:
        return "--cluster-enabled", "yes", "--cluster-port", str(made.bus), "--cluster-node-timeout", "500"

    owner, other = world.enter(node(options)), world.enter(node(options))
    owner.client.execute_command("cluster addslotsrange", 0, 16383)
    owner.client.execute_command("cluster meet", "127.0.0.1", other.port, other.bus)
    until(lambda: all_is_well(owner, other), within=15)
    world.redis_url = f"redis://127.0.0.1:{other.port}"
    return owner, other


def all_is_well(*nodes: Node) -> bool:
    """Whether every node knows of the other, and takes commands."""
    try:
        told = [each.client.execute_command("cluster info") for each in nodes]
    except redis.ConnectionError:
        return False
    return all(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(len(nodes)) for info in told)


@scenario("slot-moved", "The slot of the lease moves to another node of a cluster, in steps, while workers use it")
def slot_moved(world: World) -> None:
    """Nobody loses a lease by it."""
    world.refunds()
    here, there = cluster(world)
    steps = moving(here, there)
    before = world.rng.randint(0, len(steps))
    for step in steps[:before]:
        step()
    world.fault(f"the slot of the lease moves; {before} of {len(steps)} steps are done")
    worker = world.worker("A", hold=world.point(*POINTS[1:-1]))
    worker.until_held()
    rival = world.worker("B", wait=10.0)
    for step in steps[before:]:
        step()
    world.fault("the slot has moved")
    until(lambda: there.client.exists(LEASE))
    worker.go()
    worker.join()
    (lost,) = [said.facts["lost"] for said in worker.said if said.what == "ended"]
    if lost is not None:
        world.breaches.append(f"A lost its lease while its slot moved: {lost}")
    rival.join()


def moving(here: Node, there: Node) -> list[Callable[[], object]]:
    """The steps by which a slot moves, as the manual of a cluster has them."""
    ids = [each.client.execute_command("cluster myid") for each in (here, there)]

    def move_keys() -> None:
        for key in here.client.execute_command("cluster getkeysinslot", SLOT, 10):
            here.client.migrate("127.0.0.1", there.port, key, 0, 1000)

    return [
        lambda: there.client.execute_command("cluster setslot", SLOT, "importing", ids[0]),
        lambda: here.client.execute_command("cluster setslot", SLOT, "migrating", ids[1]),
        move_keys,
        lambda: there.client.execute_command("cluster setslot", SLOT, "node", ids[1]),
        lambda: here.client.execute_command("cluster setslot", SLOT, "node", ids[1]),
    ]


@scenario("node-down", "The cluster's node with the lease is killed, and comes back empty")
def node_down(world: World) -> None:
    world.refunds()
    owner, other = cluster(world)
    worker = world.worker("A", hold=world.point(*POINTS[1:-1]))
    worker.until_held()
    active = world.rows("select active from ledger.fence where resource = %s", [RESOURCE])
    owner.kill()
    world.fault("the node with the lease is killed")
    rival = world.worker("B", wait=TTL)
    rival.join()
    assert [said.what for said in rival.said if said.what in ("lease", "gave up")] == ["gave up"], rival.said
    assert active == world.rows("select active from ledger.fence where resource = %s", [RESOURCE])
    if world.rng.random() < 0.5:
        worker.go()
        worker.join()
    else:
        worker.freeze()
        world.fault("A is frozen")
    owner.start()
    until(lambda: all_is_well(owner, other), within=30)
    world.note("the node is back")
    world.recover()
