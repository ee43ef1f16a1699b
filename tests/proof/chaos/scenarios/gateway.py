"""A gateway whose answers are lost, whose requests arrive late, and which forgets keys and refusals."""

from __future__ import annotations

from datetime import timedelta

from ledger.sandbox import Fault
from tests.proof.chaos.crew import NotReachedError
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import Hold
from tests.proof.chaos.world import MERCHANT, PERSON, World
from tests.story import until


def key_of(refund_id: str) -> str:
    """The key under which the gateway sees it."""
    return f"{MERCHANT}/{refund_id}"


@scenario("gateway-reply-lost", "The gateway's reply is lost, after it moved the money or before")
def gateway_reply_lost(world: World) -> None:
    ids = world.refunds()
    faults = [Fault.DROP_REPLY, Fault.ERROR]
    for refund_id in world.rng.sample(ids, world.rng.randint(2, len(ids))):
        fault = faults.pop() if faults else world.rng.choice([Fault.DROP_REPLY, Fault.ERROR])
        world.gateway.engine.plan(key_of(refund_id), fault)
        world.fault(f"the gateway's reply about {refund_id} is lost: {fault}")
    worker = world.worker("A")
    worker.join()
    unknown = [said.facts["refund_id"] for said in worker.said if said.facts.get("answer") == "Unknown"]
    moved = {movement.refund_id for movement in world.movements}
    for refund_id in unknown:
        world.hit(f"gateway's reply lost, {'moved' if refund_id in moved else 'not moved'}")


@scenario("gateway-request-late", "A request reaches the gateway after its sender's death, and after its successor's")
def gateway_request_late(world: World) -> None:
    ids = world.refunds()
    refund_id = world.rng.choice(ids)
    engine, key = world.gateway.engine, key_of(refund_id)
    engine.plan(key, Fault.HOLD)
    worker = world.worker("A", timeout=5.0)
    held(world, key)
    world.fault(f"the request for {refund_id} is under way")
    worker.kill()
    world.fault("A is killed")
    late_first = world.rng.random() < 0.5
    if late_first:
        engine.release(key)
        until(lambda: world.movements.of(refund_id=refund_id))
    elif world.rng.random() < 0.5:
        engine.plan(key, Fault.DECLINE)
        world.fault(f"the next request for {refund_id} is declined, for good")
    world.recover()
    if not late_first:
        engine.release(key)
        world.note(f"A's request for {refund_id} arrives")
    world.hit("gateway's request arrives after its sender's death")


@scenario("refusal-not-remembered", "The gateway declines and doesn't remember it; an older request arrives later")
def refusal_not_remembered(world: World) -> None:
    ids = world.refunds()
    refund_id = world.rng.choice(ids)
    engine, key = world.gateway.engine, key_of(refund_id)
    engine.plan(key, Fault.HOLD)
    engine.plan(key, Fault.DECLINE_FORGOTTEN, times=world.rng.randint(1, 2))
    a = world.worker("A", timeout=5.0)
    held(world, key)
    a.kill()
    world.fault(f"A is killed while its request for {refund_id} is under way")
    b = world.worker("B", wait=5.0)
    b.join()
    world.fault(f"B's request for {refund_id} was declined, and that is forgotten")
    engine.release(key)
    world.note(f"A's request for {refund_id} arrives")


@scenario("key-forgotten", "The gateway forgets a key while a worker is frozen before its call, past the key window")
def key_forgotten(world: World) -> None:
    ids = world.refunds()
    window = timedelta(seconds=1.0)
    world.limit(key_window=window)
    refund_id = world.rng.choice(ids)
    a = world.worker("A", hold=Hold(world.rng.choice(["before refund", "after refund"]), 1, refund_id), batch=1)
    a.until_held()
    a.freeze()
    world.fault(f"A is frozen with {refund_id}")
    until(
        lambda: world.rows(
            "select from ledger.refund where refund_id = %s and first_claimed_at < clock_timestamp() - %s",
            [refund_id, window],
        )
    )
    world.gateway.engine.forget(key_of(refund_id))
    world.fault(f"the gateway forgets the key of {refund_id}")
    world.recover()
    a.wake()
    a.join()
    (state,) = world.rows("select state from ledger.refund where refund_id = %s", [refund_id])
    assert state == ("review",), f"{refund_id} is {state}"
    resolve_by_the_log(world, refund_id)


def resolve_by_the_log(world: World, refund_id: str) -> None:
    """A person looks at the gateway's books, and says what became of it."""
    found = list(world.movements.of(refund_id=refund_id))
    with world.ledger() as ledger:
        if found:
            evidence = {"ref": found[0].ref}
            ledger.resolve_refund(MERCHANT, refund_id, "sent", found[0].ref, evidence=evidence, **PERSON)
        else:
            ledger.resolve_refund(MERCHANT, refund_id, "failed", evidence={"not_at_gateway": True}, **PERSON)


def held(world: World, key: str) -> None:
    """Return once a request is held under the key. Raises NotReachedError."""
    if not world.gateway.engine.held(key, 1, 10.0):
        raise NotReachedError(f"no request came under {key}")
