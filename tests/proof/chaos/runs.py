"""One run of a scenario with a seed, and many of them on a few stages."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.proof.chaos.crew import NotReachedError, warm_up
from tests.proof.chaos.invariants import breaches
from tests.proof.chaos.scenario import Scenario
from tests.proof.chaos.world import Stage, World, world

TRIES = 3
"""How often a run is begun when a worker doesn't come to where the scenario needs it."""


@dataclass(slots=True)
class Outcome:
    """What came of one run."""

    scenario: str
    seed: int
    breaches: list[str] = field(default_factory=list)
    faults: int = 0
    movements: int = 0
    refusals: int = 0
    recovery: float = 0.0
    seconds: float = 0.0
    codes: set[str] = field(default_factory=set)
    transitions: set[tuple[str | None, str]] = field(default_factory=set)
    legal: set[tuple[str | None, str]] = field(default_factory=set)
    hits: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)


def run(stage: Stage, scenario: Scenario, seed: int) -> Outcome:
    """Run a scenario once, on the stage or on servers of its own."""
    with ExitStack() as own:
        if scenario.settings is not None:
            stage = own.enter_context(Stage.open(stage.servers.pg, scenario.settings))
        began = time.monotonic()
        outcome = Outcome(scenario.name, seed)
        for attempt in range(1, TRIES + 1):
            outcome = Outcome(scenario.name, seed)
            try:
                _once(stage, scenario, outcome)
                break
            except NotReachedError as error:
                if attempt == TRIES:
                    outcome.breaches.append(f"not reached: {error}")
        outcome.seconds = time.monotonic() - began
        return outcome


def _once(stage: Stage, scenario: Scenario, outcome: Outcome) -> None:
    with world(stage, scenario.name, outcome.seed) as made:
        try:
            scenario.run(made)
            made.heal()
            outcome.breaches += breaches(made, scenario.without)
            _look(made, outcome)
        except NotReachedError:
            outcome.story = made.story()
            raise
        except Exception:
            outcome.breaches += [*made.breaches, f"the run itself failed: {traceback.format_exc()}"]
        outcome.story = made.story()


def _look(made: World, outcome: Outcome) -> None:
    seen = made.refusals_seen()
    outcome.faults = made.faults
    outcome.movements = len(made.movements)
    ((outcome.refusals,),) = made.rows("select count(*) from ledger.refusal")
    outcome.recovery = max(made.recoveries, default=0.0)
    outcome.codes = made.codes | set(seen.values()) | _codes(made)
    outcome.transitions = {
        (row[0], row[1]) for row in made.rows("select distinct from_state, to_state from ledger.journal")
    }
    outcome.legal = {(row[0], row[1]) for row in made.rows("select from_state, to_state from ledger.transition")}
    outcome.hits = made.hits


def _codes(made: World) -> set[str]:
    told = {said.facts["outcome"] for worker in made.workers for said in worker.calls()} - {"ok", "lost"}
    return told | {code for (code,) in made.rows("select distinct code from ledger.refusal")}


def run_all(work: Iterable[tuple[Scenario, int]], jobs: int, pg: str) -> Iterator[Outcome]:
    """Run them, `jobs` at once, each on a stage of its own, and give the outcomes as they come."""
    warm_up()
    outcomes: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
    todo: queue.SimpleQueue[tuple[Scenario, int]] = queue.SimpleQueue()
    for each in work:
        todo.put(each)
    stop = threading.Event()

    def serve() -> None:
        try:
            with Stage.open(pg) as stage:
                while not stop.is_set():
                    scenario, seed = todo.get_nowait()
                    outcomes.put(run(stage, scenario, seed))
        except queue.Empty:
            pass
        except BaseException as error:
            outcomes.put(error)
        finally:
            outcomes.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            pool.submit(serve)
        try:
            left = jobs
            while left:
                outcome = outcomes.get()
                if outcome is None:
                    left -= 1
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    yield outcome
        finally:
            stop.set()
