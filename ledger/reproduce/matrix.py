"""Many runs at once, cell by cell: what was expected, what came, and whether that is the same."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from ledger.client import Ledger
from ledger.reproduce.expected import Counts, Expected, expected
from ledger.reproduce.place import Place
from ledger.reproduce.process import Clock, Disturbed
from ledger.reproduce.run import Line, Run, Story
from ledger.reproduce.words import MOMENTS, SHOWN_MOMENTS
from ledger.sandbox import Behaviour, Movements, SandboxProcess, read_movements

AT_ONCE = 4
TTLS = (1.0, 2.0, 4.0)
"""Seconds. A run that this machine was too slow for is repeated with the next."""


@dataclass(slots=True)
class Cell:
    """A protection under a fault: a story for each moment of the fault, and what is wrong with them."""

    protection: str
    fault: str
    stories: list[Story] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    repeated: int = 0

    @property
    def expected(self) -> dict[str, Expected]:
        """What each run must come to, by its moment."""
        return {moment: expected(self.protection, self.fault, moment) for moment in MOMENTS[self.fault]}

    @property
    def wanted(self) -> Counts:
        """What must come, over all runs."""
        return sum((each.counts for each in self.expected.values()), Counts())

    @property
    def counts(self) -> Counts:
        """What came, over all runs."""
        return sum((story.counts for story in self.stories), Counts())

    @property
    def refunds(self) -> int:
        """What there was to send."""
        return sum(len(story.found) for story in self.stories)

    @property
    def movements(self) -> int:
        """What the gateway counted."""
        return sum(len(found.moved) for story in self.stories for found in story.found)

    def judge(self) -> None:
        """Compare each story with what was expected of it."""
        for story in self.stories:
            wanted = self.expected[story.moment].counts
            if story.counts != wanted:
                when = SHOWN_MOMENTS[story.moment]
                self.problems.append(f"{when}: expected {wanted}; came {story.counts}")


@dataclass(slots=True)
class Matrix:
    """All cells, what couldn't be had here, and what `verify` found in the ledger afterwards."""

    cells: list[Cell]
    skipped: dict[str, str]
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """What isn't as expected, each with the way to see it again."""
        return [
            f"{cell.protection} under {cell.fault}: {problem}."
            f" Replay: ledger reproduce --protection {cell.protection} --fault {cell.fault}"
            for cell in self.cells
            for problem in cell.problems
        ] + [f"verify: {finding}" for finding in self.findings]

    def cell(self, protection: str, fault: str) -> Cell | None:
        """A cell, if it was asked for."""
        return next((each for each in self.cells if (each.protection, each.fault) == (protection, fault)), None)


def run(
    place: Place,
    protections: Sequence[str],
    faults: Sequence[str],
    *,
    at_once: int = AT_ONCE,
    tell: Callable[[Story, Line], None] = lambda story, line: None,
    done: Callable[[Cell], None] = lambda cell: None,
) -> Matrix:
    """Every protection under every fault. `tell` hears each line of each timeline, `done` each finished cell."""
    began = time.monotonic()
    skipped = {fault: reason for fault in faults if (reason := place.lacks(fault)) is not None}
    cells = [Cell(protection, fault) for protection in protections for fault in faults if fault not in skipped]
    clock = Clock()
    with _gateways() as gateways, _threads(at_once, clock) as threads:
        tasks = {
            threads.submit(_tell_one, place, gateways, clock, cell, moment, tell): cell
            for cell in cells
            for moment in MOMENTS[cell.fault]
        }
        _gather(tasks, done)
    _check_log(cells, gateways)
    return Matrix(cells, skipped, _verify(place), time.monotonic() - began)


def _gather(tasks: dict[Future[None], Cell], done: Callable[[Cell], None]) -> None:
    pending = set(tasks)
    while pending:
        finished, pending = wait(pending, return_when=FIRST_COMPLETED)
        for task in finished:
            task.result()
            cell = tasks[task]
            if not any(tasks[other] is cell for other in pending):
                cell.stories.sort(key=lambda story: MOMENTS[story.fault].index(story.moment))
                cell.judge()
                done(cell)


def _tell_one(
    place: Place,
    gateways: Gateways,
    clock: Clock,
    cell: Cell,
    moment: str,
    tell: Callable[[Story, Line], None],
) -> None:
    """One run, repeated with a longer TTL where this machine was too slow for it."""
    url, why = gateways.url(cell.protection), ""
    for ttl in TTLS:
        story = Story(cell.protection, cell.fault, moment, f"reproduce-{secrets.token_hex(4)}")
        try:
            Run(place, url, clock, story, ttl, tell).perform()
        except Disturbed as disturbed:
            cell.repeated += 1
            why = str(disturbed)
        except RuntimeError as error:
            cell.problems.append(f"{SHOWN_MOMENTS[moment]}: {error}")
            return
        else:
            cell.stories.append(story)
            return
    cell.problems.append(f"{SHOWN_MOMENTS[moment]}: {why}, {len(TTLS)} times; the last TTL was {TTLS[-1]:g} s")


class Gateways:
    """Two sandbox gateways, one without idempotency keys and one with, and their logs."""

    def __init__(self, folder: Path) -> None:
        self.without_keys = SandboxProcess(folder / "without-keys.log", behaviour=Behaviour(keys=False))
        self.with_keys = SandboxProcess(folder / "with-keys.log")
        self.logged: list[Movements] = []

    def url(self, protection: str) -> str:
        """Where a protection's workers send to."""
        return (self.with_keys if protection == "fence+key" else self.without_keys).url


@contextmanager
def _gateways() -> Iterator[Gateways]:
    with ExitStack() as stack:
        gateways = Gateways(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-reproduce-"))))
        both = gateways.without_keys, gateways.with_keys
        with ExitStack() as running:
            for gateway in both:
                running.enter_context(gateway)
            yield gateways
        gateways.logged = [read_movements(gateway.log) for gateway in both]


@contextmanager
def _threads(at_once: int, clock: Clock) -> Iterator[ThreadPoolExecutor]:
    threads = ThreadPoolExecutor(at_once, "reproduce")
    try:
        yield threads
    finally:
        clock.stopping.set()
        threads.shutdown(cancel_futures=True)


def _check_log(cells: Sequence[Cell], gateways: Gateways) -> None:
    """What the gateways' logs say once they have ended is what was counted while they ran."""
    for cell in cells:
        for story in cell.stories:
            for found in story.found:
                logged = [
                    movement.ref
                    for movements in gateways.logged
                    for movement in movements.of(story.merchant_id, found.refund_id)
                ]
                if logged != found.moved:
                    cell.problems.append(f"{found.refund_id} moved {len(found.moved)}x, and {len(logged)}x by the log")


def _verify(place: Place) -> list[str]:
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        return [f"{one.check}: {one.finding}" for one in Ledger(connection).verify()]
