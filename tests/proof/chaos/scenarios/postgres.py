"""Postgres that crashes, loses a server process, or answers into the void."""

from __future__ import annotations

from tests.proof.chaos.crew import Worker
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import LOST, POINTS, Hold
from tests.proof.chaos.world import RESOURCE, TTL, World
from tests.story import until

# The call whose reply is lost, and the states that it brings refunds to.
CALLS = {"claim": ("sending",), "confirm": ("sent",)}


@scenario("postgres-crashed", "Postgres stops without a checkpoint while a worker is at a point of the protocol")
def postgres_crashed(world: World) -> None:
    world.limit(lock=world.rng.choice(["redis", "advisory"]))
    world.refunds()
    worker = world.worker("A", hold=world.point())
    worker.until_held()
    rival = world.worker("B", wait=5.0) if world.rng.random() < 0.5 else None
    if world.rng.random() < 0.5:
        worker.go()  # then it falls anywhere after that point
    world.crash_postgres()
    worker.go()
    if rival is None:
        worker.join()


@scenario("backend-killed", "The server process of a worker is killed with SIGKILL; all others go with it")
def backend_killed(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point("after claim", "after refund", "before confirm", "after confirm"))
    worker.until_held()
    pids = world.rows(
        "select pid from pg_stat_activity where datname = current_database() and usename = 'ledger_worker' order by 1"
    )
    world.kill_backend(world.rng.choice(pids)[0])
    worker.go()
    worker.join()


@scenario("claim-reply-lost", "A claim is committed, and its reply is lost")
def claim_reply_lost(world: World) -> None:
    reply_lost(world, "claim", committed=True)


@scenario("claim-request-lost", "A claim never arrives, and its sender can't tell")
def claim_request_lost(world: World) -> None:
    reply_lost(world, "claim", committed=False)


@scenario("confirm-reply-lost", "A confirm is committed, and its reply is lost")
def confirm_reply_lost(world: World) -> None:
    reply_lost(world, "confirm", committed=True)


@scenario("confirm-request-lost", "A confirm never arrives, and its sender can't tell")
def confirm_request_lost(world: World) -> None:
    reply_lost(world, "confirm", committed=False)


def reply_lost(world: World, word: str, *, committed: bool) -> None:
    """Lose one answer of a worker, and see in the journal which branch it was; then it goes on, dies or is frozen."""
    world.refunds()
    nth = world.rng.randint(1, 3)
    worker = world.worker("A", hold=(Hold(f"before {word}", nth), Hold(f"lost {word}")), through=("postgres",))
    worker.until_held()
    token = drawn(worker)
    before = world.entries(token, *CALLS[word])
    lose_answer(world, worker, committed=committed)
    assert (world.entries(token, *CALLS[word]) > before) == committed
    world.hit(f"{word}'s reply lost, {'committed' if committed else 'not committed'}")
    match world.rng.choice(["goes on", "goes on", "is killed", "is frozen"]):
        case "goes on":
            worker.go()
            worker.join()
        case "is killed":
            worker.kill()
            world.fault("A is killed")
        case "is frozen":
            worker.freeze()
            world.fault("A is frozen")
            world.recover()


def lose_answer(world: World, worker: Worker, *, committed: bool) -> None:
    """The held call is carried out and its reply lost, or it never arrives; either way the worker can't tell."""
    if committed:
        world.lose_replies_of_postgres()
        worker.go()
    else:
        world.postgres_failed = True
        world.to_postgres.mode = "blackhole"
        world.fault("Postgres can't be reached")
        worker.go()
        # What it sends into the dark is lost; then the connection breaks.
        world.to_postgres.mode = "refuse"
    held = worker.until_held()
    assert held.facts["point"].startswith(LOST), held
    world.to_postgres.mode = "pass"


@scenario("activation-reply-lost", "A token becomes active, and its holder isn't told")
def activation_reply_lost(world: World) -> None:
    token_lost(world, committed=True)


@scenario("activation-request-lost", "An activation never arrives, and its sender can't tell")
def activation_request_lost(world: World) -> None:
    token_lost(world, committed=False)


def token_lost(world: World, *, committed: bool) -> None:
    """First a draw meets it, in every second run, then an activation of the next attempt."""
    world.refunds()
    words = ["draw", "activate"] if world.rng.random() < 0.5 else ["activate"]
    for name, word in zip("AB", words, strict=False):
        worker = world.worker(
            name, hold=(Hold(f"before {word}"), Hold(f"lost {word}")), through=("postgres",), wait=5.0
        )
        worker.until_held()
        lose_answer(world, worker, committed=committed)
        if word == "activate":
            query = "select 1 from ledger.fence where resource = %s and active = %s"
            assert bool(world.rows(query, [RESOURCE, drawn(worker)])) == committed
            world.hit(f"activation's reply lost, {'committed' if committed else 'not committed'}")
        worker.go()
        worker.join()


def drawn(worker: Worker) -> int:
    """The number that a worker drew last."""
    return int([said.facts["value"] for said in worker.calls("draw_token") if said.facts["outcome"] == "ok"][-1])


@scenario("postgres-dark", "Nothing gets through to Postgres for three leases, either way")
def postgres_dark(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=world.point(*POINTS[:-1]), through=("postgres",), patience=TTL)
    worker.until_held()
    world.postgres_failed = True
    world.to_postgres.mode = "blackhole"
    world.fault("Postgres is dark")
    worker.go()
    world.recover()  # for everybody else it is there
    worker.join(10.0)  # its own deadline ends it, in the dark
    world.to_postgres.cut()


@scenario("call-killed", "A server process is ended while it carries out a claim or a confirm")
def call_killed(world: World) -> None:
    """The call waits at the gate, which an administrator holds, so that it is ended in the middle."""
    world.refunds()
    word = world.rng.choice(["claim", "confirm"])
    worker = world.worker("A", hold=(Hold(f"before {word}", world.rng.randint(1, 2)), Hold(f"lost {word}")))
    worker.until_held()
    token = drawn(worker)
    before = world.entries(token, *CALLS[word])
    with world.admin.transaction():
        world.admin.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [RESOURCE])
        worker.go()
        (pid,) = waiting_at_the_gate(world)
        world.admin.execute("select pg_terminate_backend(%s)", [pid])
        world.postgres_failed = True
        world.fault(f"the {word} of A is ended while it waits at the gate")
        worker.until_held()
    assert world.entries(token, *CALLS[word]) == before
    world.hit(f"{word}'s reply lost, not committed")
    worker.go()
    worker.join()


def waiting_at_the_gate(world: World) -> list[int]:
    """The sessions that wait for an advisory lock."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [
            pid
            for (pid,) in world.admin.execute(
                "select pid from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
            ).fetchall()
        ]
        return bool(found)

    until(look)
    return found
