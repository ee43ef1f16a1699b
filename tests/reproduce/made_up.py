"""A matrix as it must come out, without servers."""

from __future__ import annotations

from ledger.reproduce import FAULTS, PROTECTIONS, Cell, Counts, Matrix, expected
from ledger.reproduce.run import Found, Line, Story
from ledger.reproduce.words import MOMENTS, REFUNDS


def matrix() -> Matrix:
    """Every cell, with counts as expected."""
    return Matrix([cell(protection, fault) for protection in PROTECTIONS for fault in FAULTS], {}, seconds=70.0)


def cell(protection: str, fault: str) -> Cell:
    """A cell with counts as expected."""
    return Cell(protection, fault, [_story(protection, fault, moment) for moment in MOMENTS[fault]])


def _story(protection: str, fault: str, moment: str) -> Story:
    counts = expected(protection, fault, moment).counts
    found = [_found(refund_id, number, counts) for number, refund_id in enumerate(REFUNDS)]
    return Story(protection, fault, moment, "m_1", [Line(0.5, "A", "calls <the> gateway")], found)


def _found(refund_id: str, number: int, counts: Counts) -> Found:
    moved = ["sb_1", "sb_2"] if number < counts.sent_twice else ["sb_1"]
    named = moved[:1] if number < counts.wrong else moved
    return Found(refund_id, moved, named, number < counts.written_over)
