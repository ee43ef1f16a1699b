"""Workers whose clocks are wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import Orders
from tests.proof.chaos.world import World

HOUR = 3600.0


@scenario("clocks-wrong", "The clocks of two workers are an hour off, or jump by an hour at every look; one is frozen")
def clocks_wrong(world: World) -> None:
    world.limit(lock=world.rng.choice(["redis", "advisory"]))
    world.refunds()
    clocks = world.rng.sample([an_hour_ahead, an_hour_behind, jumping], 2)
    a = world.worker("A", hold=world.point(), changes=(clocks[0],))
    a.until_held()
    world.fault(f"A's clock: {clocks[0].__name__}; that of who comes next: {clocks[1].__name__}")
    if world.rng.random() < 0.5:
        a.freeze()
        world.fault("A is frozen")
        world.recover(changes=(clocks[1],))
        a.wake()
    else:
        b = world.worker("B", wait=10.0, changes=(clocks[1],))
        a.go()
        a.join()
        b.join()


def an_hour_ahead(_: Orders) -> None:
    """Every time of day is an hour late."""
    set_clock(itertools.repeat(HOUR))


def an_hour_behind(_: Orders) -> None:
    """Every time of day is an hour early."""
    set_clock(itertools.repeat(-HOUR))


def jumping(_: Orders) -> None:
    """Two looks at the clock are an hour apart."""
    set_clock(itertools.cycle([0.0, HOUR, -HOUR]))


def set_clock(offsets: Iterator[float]) -> None:
    """Have this process see the time of day with these offsets. Its monotonic clock stays: nobody sets that one."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + next(offsets)
    time.time_ns = lambda: nanoseconds() + int(next(offsets)) * 10**9
