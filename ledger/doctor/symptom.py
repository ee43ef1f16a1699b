"""What a check yields: how bad it is, what is so, and what mends it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Level: TypeAlias = Literal["fault", "note"]


class Symptom(NamedTuple):
    """One thing that a check found."""

    level: Level
    finding: str
    mend: str


def fault(finding: str, mend: str) -> Symptom:
    """Something that has to be mended."""
    return Symptom("fault", finding, mend)


def note(finding: str, mend: str) -> Symptom:
    """Something to know; it may be meant so."""
    return Symptom("note", finding, mend)
