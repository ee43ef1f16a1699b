"""Pauses, servers that must be recovered, writes past the functions, and leases in Postgres that are ended."""

from __future__ import annotations

from ledger.sandbox import Behaviour
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.world import PERSON, RESOURCE, World
from tests.story import on_a_new_timeline


@scenario("paused", "An operator pauses the kind or the merchant while a worker is at it, and resumes later")
def paused(world: World) -> None:
    world.refunds()
    worker = world.worker(
        "A", hold=world.point("before claim", "after claim", "before refund", "before confirm", most=2)
    )
    worker.until_held()
    target = world.rng.choice(["settle", RESOURCE])
    with world.ledger() as ledger:
        ledger.pause(target, **PERSON)
        world.fault(f"{target} is paused")
        worker.go()
        worker.join()
        assert world.open_refunds("sending") == 0, "what is out gets recorded or given back"
        rival = world.worker("B")
        rival.join()
        assert any(said.facts.get("outcome") == "LG107" for said in rival.calls("draw_token")), rival.said
        ledger.resume(target, **PERSON)


@scenario(
    "fenced-at-full-speed", "A worker with many calls in flight is fenced out, again and again, and isn't held anywhere"
)
def fenced_at_full_speed(world: World) -> None:
    world.open_gateway(Behaviour(latency=0.15))
    world.refunds(30)
    for name in "AB":
        worker = world.worker(name, in_flight=world.rng.choice([2, 4]), batch=world.rng.choice([4, 30]), wait=5.0)
        worker.until(lambda said: said.what in ("answer", "found"), "to get an answer")
        _, holder = world.active()
        with world.ledger() as ledger:
            world.fault(f"{name} is fenced out by token {ledger.break_lease(RESOURCE, holder, **PERSON)}")


@scenario("unknown-server", "The server is another than the one that handed the tokens out, until it is recovered")
def unknown_server(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point("before claim", "before refund", "before confirm", "after activate"))
    worker.until_held()
    on_a_new_timeline(world.admin)
    world.fault("the timeline is another")
    worker.go()
    worker.join()
    with world.ledger("ledger_worker") as ledger:
        assert world.tries(lambda: ledger.draw_token(RESOURCE)) == "LG106"
    with world.ledger() as ledger:
        world.note(f"recover_failover: {ledger.recover_failover(**PERSON)}")


@scenario("stray-writes", "The owner and a superuser write past the functions while a worker is at it")
def stray_writes(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point("after claim", "before refund", "after confirm"))
    worker.until_held()
    for statement in world.rng.sample(STRAY, len(STRAY)):
        stray(world, statement)
    worker.go()


STRAY = (
    "set local role ledger_owner; update ledger.refund set state = 'pending'",
    "set local role ledger_owner; update ledger.refund set fence = fence - 1 where fence > 0",
    "set local role ledger_owner; delete from ledger.journal",
    "set local role ledger_owner; truncate ledger.journal",
    "update ledger.refund set fence = 0, state = 'pending'",
    "update ledger.fence set active = active - 1",
    "set local session_replication_role = replica; update ledger.refund set fence = fence - 1 where fence > 0",
    "set local session_replication_role = replica; delete from ledger.journal where number > 1",
)


def stray(world: World, statement: str) -> None:
    """Write past the functions, and say whether that was refused."""

    def write() -> None:
        with world.admin.transaction():
            for part in statement.split("; "):
                world.admin.execute(part.encode())

    code = world.tries(write)
    world.fault(f"{statement}: {code}")
    if code is None:
        world.breaches.append(f"I3: {statement} went through")


@scenario("advisory-holder-ended", "The session that holds an advisory lease is ended, or its server is restarted")
def advisory_holder_ended(world: World) -> None:
    world.limit(lock="advisory")
    world.refunds()
    worker = world.worker("A", hold=world.point("after activate", "after claim", "before refund", "before confirm"))
    worker.until_held()
    token, _ = world.active()
    if world.rng.random() < 0.5:
        ((holders,),) = world.rows("select ledger.job_holders(%s)", [RESOURCE])
        world.rows("select pg_terminate_backend(%s)", [holders[0]["pid"]])
        world.fault("the session with the lease is ended")
    else:
        world.postgres_failed = True
        world.servers.restart_postgres()
        world.fault("Postgres is restarted")
    rival = world.worker("B", wait=5.0)
    rival.until(lambda said: said.what == "call" and said.facts["name"] == "activate_token", "to take over")
    assert world.active()[0] > token
    worker.go()
