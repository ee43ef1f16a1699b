"""Redis that forgets everything, or can't be reached."""

from __future__ import annotations

import redis

from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import POINTS
from tests.proof.chaos.world import World


@scenario("redis-wiped", "Redis loses everything, flushed or killed and started empty; two workers hold the lease")
def redis_wiped(world: World) -> None:
    world.refunds()
    a = world.worker("A", hold=world.point(*POINTS[2:]))
    a.until_held()
    for _ in range(world.rng.randint(1, 2)):
        if world.rng.random() < 0.5:
            world.servers.kill_redis()
            world.servers.start_redis()
            world.fault("Redis was killed and came back empty")
        else:
            with redis.Redis.from_url(world.servers.redis_url) as client:
                client.flushall()
            world.fault("Redis was flushed")
    b = world.worker("B", wait=5.0)
    b.until(lambda said: said.what == "call" and said.facts["name"] == "activate_token", "to take over")
    if world.rng.random() < 0.5:
        a.go()
        b.join()
    else:
        world.recover()
        a.go()


@scenario("redis-dark", "Nothing gets through to Redis for longer than a lease, either way")
def redis_dark(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point(*POINTS[1:]), through=("redis",))
    worker.until_held()
    world.to_redis.mode = world.rng.choice(["blackhole", "refuse", "drop_reply"])
    world.fault(f"Redis can't be reached: {world.to_redis.mode}")
    if world.rng.random() < 0.5:
        world.until_lease_ended()
    worker.go()
    world.recover()
    worker.join()
