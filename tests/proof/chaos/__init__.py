"""Real faults, many seeds: real workers, servers and a gateway, something breaks, and the invariants hold.

    python -m tests.proof.chaos --list                        what there is
    python -m tests.proof.chaos --seeds 25                    all of it, 25 seeds each
    python -m tests.proof.chaos --scenario NAME --seed 7      one run again, as a failure says
    python -m tests.proof.chaos --controls                    and then guards taken away: the invariants must break

One run is one scenario with one seed, in a database of its own, with six to twelve refunds and leases of half a
second. Workers are processes that call `ledger.settle`; they tell what they do, and stay at a point of the protocol
when they are asked to, so nothing waits on the clock. The gateway's own log, the journal and the catalogue are the
judges (`invariants.py`).

To add a scenario, add a file to `scenarios/`:

    from tests.proof.chaos.scenario import scenario
    from tests.proof.chaos.world import World

    @scenario("worker-killed", "A worker is killed at a point of the protocol")
    def worker_killed(world: World) -> None:
        worker = world.worker("A", hold=world.point())      # draws come from world.rng alone
        worker.until_held()
        worker.kill()
        world.fault("killed A")

What the function leaves is then healed, a fresh worker ends all refunds (I7), held requests are delivered, and every
invariant is checked. A scenario names those that can't hold (`without`), a reason not to run on this machine
(`needs`), and servers of its own where it destroys them or sets them otherwise (`settings`). What must have happened
at least once in a whole run is listed in `sometimes.py`; `world.hit(...)` says that it did. A worker that must be
other than it is, as one whose clock is wrong, gets `changes`: functions that the worker calls before it begins.
"""
