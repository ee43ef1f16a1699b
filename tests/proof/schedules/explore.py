"""Every schedule within bounds: depth first, each world once, with all that may follow it counted."""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.proof.schedules.invariants import broken_at_the_end, broken_by
from tests.proof.schedules.programs import Sql
from tests.proof.schedules.states import Server
from tests.proof.schedules.world import Bounds, Stage, World

sys.setrecursionlimit(10_000)


@dataclass(frozen=True)
class Violation:
    """A schedule that breaks an invariant."""

    invariant: str
    bounds: Bounds
    choices: tuple[str, ...]

    @property
    def code(self) -> str:
        """What replays it."""
        return f"{self.bounds.code}:{','.join(self.choices)}"

    def __str__(self) -> str:
        return f"{self.invariant}: {self.code}"


@dataclass
class Findings:
    """What an exploration came to."""

    bounds: Bounds
    schedules: int = 0
    worlds: int = 0
    met_again: int = 0
    longest: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)


class Exploration:
    """All schedules of one stage."""

    def __init__(self, stage: Stage, most: int = 5) -> None:
        self.stage = stage
        self.findings = Findings(stage.bounds)
        self._most = most
        self._futures: dict[World, tuple[int, int]] = {}
        self._path: list[str] = []

    def all(self) -> Findings:
        """Take every choice in every world."""
        began = time.monotonic()
        self.findings.schedules, self.findings.longest = self._after(self.stage.start())
        self.findings.worlds = len(self._futures)
        self.findings.seconds = time.monotonic() - began
        return self.findings

    def _after(self, world: World) -> tuple[int, int]:
        """How many schedules follow a world, and the length of the longest."""
        known = self._futures.get(world)
        if known is not None:
            self.findings.met_again += 1
            return known
        schedules = longest = 0
        choices = self.stage.choices(world)
        if not choices:
            self._note(broken_at_the_end(self.stage, world))
            schedules = 1
        for choice in choices:
            if len(self.findings.violations) >= self._most:
                break
            self._path.append(choice)
            turn = self.stage.take(world, choice)
            if self._note(broken_by(self.stage, turn)):
                schedules += 1
            else:
                following, length = self._after(turn.after)
                schedules, longest = schedules + following, max(longest, length + 1)
            self._path.pop()
        self._futures[world] = (schedules, longest)
        return schedules, longest

    def _note(self, broken: Iterator[str]) -> bool:
        names = list(dict.fromkeys(broken))
        self.findings.violations += [Violation(name, self.stage.bounds, tuple(self._path)) for name in names]
        return bool(names)


def shortest_violation(server: Server, bounds: Bounds, invariant: str | None = None) -> Violation | None:
    """A violation with the fewest choices, of one invariant or of any; None when there is none within the bounds."""
    stage = Stage(server, bounds)
    start = stage.start()
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    queue = deque([start])

    def path_to(world: World, *choices: str) -> tuple[str, ...]:
        found = list(choices)
        while (step := came_from[world]) is not None:
            world, choice = step
            found.insert(0, choice)
        return tuple(found)

    def wanted(broken: Iterator[str]) -> list[str]:
        return [name for name in broken if invariant in (None, name)]

    while queue:
        world = queue.popleft()
        choices = stage.choices(world)
        if not choices:
            for name in wanted(broken_at_the_end(stage, world)):
                return Violation(name, bounds, path_to(world))
        for choice in choices:
            turn = stage.take(world, choice)
            for name in wanted(broken_by(stage, turn)):
                return Violation(name, bounds, path_to(world, choice))
            if turn.after not in came_from:
                came_from[turn.after] = (world, choice)
                queue.append(turn.after)
    return None


def find_violation(conninfo: str, bounds: Bounds) -> Violation | None:
    """The shortest schedule that breaks an invariant with the functions of that database, as a superuser.

    None when every schedule within the bounds is as it should be.
    """
    server = Server(conninfo)
    try:
        return shortest_violation(server, bounds)
    finally:
        server.close()


def walk_again(stage: Stage, dice: random.Random) -> str | None:
    """Choose a schedule by dice, and make it on the server from beginning to end, with no state put back in between.

    What went otherwise than it did when states were put back; None when nothing did.
    """
    world, turns = stage.start(), []
    while choices := stage.choices(world):
        turns.append(stage.take(world, dice.choice(choices)))
        world = turns[-1].after
    taken = ",".join(turn.choice for turn in turns)
    stage.start()
    for turn in turns:
        if not isinstance(turn.step, Sql):
            continue
        effect = stage.server.make(turn.step.role, turn.step.call)
        expected = stage.server.state(turn.after.state)
        if effect.after is not expected or repr(effect.answer) != repr(turn.outcome):
            return f"{stage.bounds.code}:{taken}: at {turn.choice}, {turn.step.call.name}: {effect.answer}"
    return None
