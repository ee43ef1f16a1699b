"""Redis that fails over without its last writes, and Redis that isn't there at all."""

from __future__ import annotations

import redis

from tests.faults import FaultProxy
from tests.proof.chaos.redis_nodes import node
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import POINTS, Hold
from tests.proof.chaos.world import RESOURCE, World
from tests.story import until

LEASE = f"lock:{{{RESOURCE}}}"


@scenario("redis-failed-over", "A replica that never heard of the lease is promoted; the old server may live on")
def redis_failed_over(world: World) -> None:
    world.refunds()
    old, new = (world.enter(node(lambda _: ("--repl-diskless-sync-delay", "0"))) for _ in range(2))
    between = world.enter(FaultProxy(("127.0.0.1", old.port)))
    new.client.replicaof(between.host, between.port)
    until(lambda: new.client.info("replication")["master_link_status"] == "up", within=15)
    clients = world.enter(FaultProxy(("127.0.0.1", old.port)))
    world.redis_url = f"redis://{clients.host}:{clients.port}"
    a = world.worker("A", hold=(Hold("before take"), world.point(*POINTS[1:])))
    a.until_held()
    between.mode = "blackhole"
    world.fault("the replica hears nothing more")
    a.go()
    a.until_held()
    new.client.replicaof("NO", "ONE")
    assert not new.client.exists(LEASE), "the lease was replicated"
    clients.upstream = ("127.0.0.1", new.port)
    lives_on = world.rng.random() < 0.5
    if not lives_on:
        clients.cut()
    world.fault(f"the replica is promoted; A {'stays with the old server' if lives_on else 'is sent to it'}")
    b = world.worker("B", wait=5.0)
    b.until(lambda said: said.what == "call" and said.facts["name"] == "activate_token", "to take over")
    world.note(f"A's lease is {old.client.get(LEASE)}, B's is {new.client.get(LEASE)}")
    if world.rng.random() < 0.5:
        a.go()
        b.join()
    else:
        world.recover()
        a.go()


@scenario("redis-down", "Redis is down to the end: nobody begins, who is at work ends, and advisory leases go on")
def redis_down(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point(*POINTS[2:]))
    worker.until_held()
    active = world.active()
    world.servers.kill_redis()
    world.fault("Redis is down")
    rival = world.worker("B")
    rival.join()
    gave_up = [said.facts["error"] for said in rival.said if said.what == "gave up"]
    assert gave_up == ["LeaseUnreachable"], rival.said
    assert world.active() == active, "B began without a lease"
    frozen = world.rng.random() < 0.5
    if frozen:
        worker.freeze()
        world.fault("A is frozen")
    else:
        worker.go()
        worker.join()
    world.limit(lock="advisory")
    world.note("leases of this kind are advisory locks from here on")
    world.recover()
    worker.wake()
    worker.join()
    try:
        redis.Redis.from_url(world.redis_url).ping()
    except redis.ConnectionError:
        return
    raise AssertionError("Redis was there")
