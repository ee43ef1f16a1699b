"""A standby that is promoted without the last commits, and a synchronous one that stops hearing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.scenarios.postgres import CALLS, drawn
from tests.proof.chaos.worker import Hold
from tests.proof.chaos.world import PERSON, RESOURCE, World
from tests.standby import Pair, standby_of
from tests.story import until

AFTER_A_CLAIM = ("after claim", "before refund", "after refund", "before confirm", "after confirm")


@scenario("standby-promoted", "The primary is lost, and a standby that lacks its last commits is promoted")
def standby_promoted(world: World) -> None:
    world.refunds()
    world.hang_up()
    pair = world.enter(standby_of(world.servers, world.database))
    worker = world.worker("A", hold=Hold("before claim", world.rng.randint(1, 2)), dsn=pair.dsn("ledger_worker"))
    worker.until_held()
    pair.catch_up()
    pair.freeze_receiver()
    worker.hold(Hold(world.rng.choice(AFTER_A_CLAIM)))
    worker.go()
    worker.until_held()
    token, claimed = drawn(worker), world.entries(drawn(worker), "sending")
    with world.ledger("ledger_worker") as ledger:
        handed_out = ledger.draw_token(RESOURCE)
    pair.lose_primary()
    world.postgres_failed = True
    world.enter(served_by_standby(world, pair))
    lost = claimed - world.entries(token, "sending")
    assert lost > 0, "nothing was lost"
    world.fault(f"a standby without {lost} claims is promoted")
    goes_on_at_once = world.rng.random() < 0.5
    if goes_on_at_once:
        worker.go()
        worker.join()
    else:
        worker.freeze()
        world.fault("A is frozen")
    with world.ledger("ledger_worker") as ledger:
        assert world.tries(lambda: ledger.draw_token(RESOURCE)) == "LG106"
    with world.ledger() as ledger:
        assert ledger.recover_failover(**PERSON) == "recovered"
        world.note("an operator let the ledger recover")
    with world.ledger("ledger_worker") as ledger:
        assert ledger.draw_token(RESOURCE) > handed_out
        assert world.tries(lambda: ledger.claim_refund("m_1", "r_1", handed_out)) == "LG101"
    world.recover()


@contextlib.contextmanager
def served_by_standby(world: World, pair: Pair) -> Iterator[None]:
    """The run goes on at the promoted server; the next one finds the primary in its place again."""
    servers, note = world.servers, world.servers.note
    world.hang_up()
    servers.postgres, servers.note = pair.standby, replace(note, port=pair.standby.port)
    try:
        yield
    finally:
        servers.postgres, servers.note = pair.primary, note


@scenario(
    "sync-standby-lost",
    "The synchronous standby stops hearing; a call that waits for it is cancelled or ended",
    settings={},
)
def sync_standby_lost(world: World) -> None:
    """What was committed here stands, whatever its caller was told."""
    world.refunds()
    world.hang_up()
    pair = world.enter(standby_of(world.servers, world.database))
    world.enter(world.setting("synchronous_standby_names", "*"))
    in_step = "select from pg_stat_replication where sync_state = 'sync'"
    until(lambda: world.rows(in_step), within=10)
    word, nth = world.rng.choice(["claim", "confirm"]), world.rng.randint(1, 2)
    holds = (Hold(f"before {word}", nth), Hold(f"after {word}", nth), Hold(f"lost {word}"))
    worker = world.worker("A", hold=holds)
    worker.until_held()
    token = drawn(worker)
    before = world.entries(token, *CALLS[word])
    pair.freeze_receiver()
    world.fault("the standby hears nothing more")
    worker.go()
    pid = waiting_for_the_standby(world)
    ends = world.rng.random() < 0.5
    world.postgres_failed = ends
    world.rows(f"select pg_{'terminate' if ends else 'cancel'}_backend(%s)", [pid])
    world.fault(f"the {word} of A is {'ended' if ends else 'cancelled'} while it waits for the standby")
    held = worker.until_held()
    assert held.facts["point"] == f"{'lost' if ends else 'after'} {word}", held
    assert world.entries(token, *CALLS[word]) > before
    if ends:
        world.hit(f"{word}'s reply lost, committed")
    pair.wake_receiver()
    worker.go()
    worker.join()


def waiting_for_the_standby(world: World) -> int:
    """The session that waits until its commit is on the standby."""
    query = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
    until(lambda: world.rows(query), within=10)
    ((pid,),) = world.rows(query)
    return int(pid)
