"""What a lease's course asks of the outside world, one step at a time.

A course is a generator: it yields steps and gets their results. The blocking leases and the asyncio ones run
the same course and differ only in how they take a step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ledger.lease.advisory import JobSession

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sql:
    """Call the ledger, and commit: in a short session of its own, or `on` the session that holds the lock."""

    call: Callable[[Any], Any]
    on: JobSession | None = None


@dataclass(frozen=True, slots=True)
class Do:
    """A blocking call. A short one is finished even when the caller is cancelled meanwhile."""

    call: Callable[[], Any]
    short: bool = True


@dataclass(frozen=True, slots=True)
class Open:
    """Open a session that will hold the lock."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close it."""

    session: JobSession


Step: TypeAlias = Sql | Do | Open | Close
Course: TypeAlias = Generator[Step, Any, T]


def run(course: Generator[S, Any, T], take: Callable[[S], Any]) -> T:
    """Run a course to its end, blocking."""
    try:
        step = next(course)
        while True:
            try:
                result = take(step)
            except BaseException as error:
                step = course.throw(error)
            else:
                step = course.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(course: Generator[S, Any, T], take: Callable[[S], Awaitable[Any]]) -> T:
    """Run a course to its end on an event loop."""
    try:
        step = next(course)
        while True:
            try:
                result = await take(step)
            except BaseException as error:
                step = course.throw(error)
            else:
                step = course.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
