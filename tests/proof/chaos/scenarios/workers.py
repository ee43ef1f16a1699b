"""Workers that are frozen or killed at a point of the protocol."""

from __future__ import annotations

from ledger.sandbox import Fault
from tests.proof.chaos.crew import Worker
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.scenarios.gateway import held, key_of
from tests.proof.chaos.worker import POINTS
from tests.proof.chaos.world import World

INSIDE = "inside refund"
"""Not a point of the worker's own: its request has arrived at the gateway, and isn't answered."""


def held_somewhere(world: World, name: str, wait: float = 0.0) -> Worker:
    """A worker that stays at a point drawn from the seed, or whose request stays at the gateway."""
    place = world.rng.choice([*POINTS, INSIDE])
    if place != INSIDE:
        worker = world.worker(name, hold=world.point(place), wait=wait)
        worker.until_held()
        world.note(f"{name} is held {place}")
        return worker
    ((refund_id,),) = world.rows("select min(refund_id) from ledger.refund where state = 'pending'")
    world.gateway.engine.plan(key_of(refund_id), Fault.HOLD)
    worker = world.worker(name, wait=wait, timeout=5.0)
    held(world, key_of(refund_id))
    world.note(f"{name}'s request for {refund_id} is held at the gateway")
    return worker


def draw_lock(world: World) -> None:
    """Leases in Redis or in Postgres, drawn from the seed."""
    world.limit(lock=world.rng.choice(["redis", "redis", "advisory"]))


@scenario("worker-frozen", "A worker is frozen past its lease at a point of the protocol, and woken later")
def worker_frozen(world: World) -> None:
    draw_lock(world)
    world.refunds()
    a = held_somewhere(world, "A")
    a.freeze()
    world.fault("A is frozen")
    if world.rng.random() < 0.5:
        world.recover()
    else:
        b = world.worker("B", wait=5.0)
        b.until(lambda said: said.what == "call" and said.facts["name"] == "activate_token", "to take over")
    a.wake()
    world.note("A is woken")


@scenario("two-workers-frozen", "Two workers are frozen, one after the other; a third one takes over; both wake up")
def two_workers_frozen(world: World) -> None:
    draw_lock(world)
    world.refunds()
    frozen = []
    for name in "AB":
        worker = held_somewhere(world, name, wait=5.0)
        worker.freeze()
        world.fault(f"{name} is frozen")
        frozen.append(worker)
    world.recover()
    world.rng.shuffle(frozen)
    for worker in frozen:
        worker.wake()
        world.note(f"{worker.name} is woken")


@scenario("worker-killed", "A worker is killed at a point of the protocol")
def worker_killed(world: World) -> None:
    draw_lock(world)
    world.refunds()
    for name in "AB"[: world.rng.randint(1, 2)]:
        worker = held_somewhere(world, name, wait=5.0)
        worker.kill()
        world.fault(f"{name} is killed")
    world.recover()
