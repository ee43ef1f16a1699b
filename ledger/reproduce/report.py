"""A matrix as data: for programs, and for whoever adds up what was checked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ledger.reproduce.expected import Counts
from ledger.reproduce.matrix import Cell, Matrix
from ledger.reproduce.run import Story
from ledger.reproduce.words import FAULTS, GUARANTEES, PROTECTIONS

FAILS = Counts()


def facts(matrix: Matrix) -> dict[str, Any]:
    """Everything. `controls` are the cells that must fail, and those of them that did as expected."""
    must_fail = [cell for cell in matrix.cells if cell.wanted != FAILS]
    return {
        "part": "matrix",
        "checked": {
            "cells": len(matrix.cells),
            "runs": sum(len(cell.stories) for cell in matrix.cells),
            "refunds": sum(cell.refunds for cell in matrix.cells),
            "movements": sum(cell.movements for cell in matrix.cells),
        },
        "controls": {
            "expected": len(must_fail),
            "found": sum(cell.counts == cell.wanted for cell in must_fail),
        },
        "seconds": round(matrix.seconds, 1),
        "failed": matrix.failed,
        "skipped": [f"{fault}: {reason}" for fault, reason in matrix.skipped.items()],
        "protections": [
            {"name": name, "what": what, "guarantees": GUARANTEES[name]} for name, what in PROTECTIONS.items()
        ],
        "faults": [{"name": name, "what": what} for name, what in FAULTS.items()],
        "cells": [_cell(cell) for cell in matrix.cells],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "protection": cell.protection,
        "fault": cell.fault,
        "as_expected": not cell.problems,
        "refunds": cell.refunds,
        "movements": cell.movements,
        **asdict(cell.counts),
        "expected": asdict(cell.wanted),
        "repeated": cell.repeated,
        "runs": [_run(story, cell.expected[story.moment].reason) for story in cell.stories],
    }


def _run(story: Story, reason: str) -> dict[str, Any]:
    return {
        "moment": story.moment,
        "reason": reason,
        **asdict(story.counts),
        "refunds": [
            {"refund_id": found.refund_id, "moved": found.moved, "named": found.named} for found in story.found
        ],
        "timeline": [{"at": round(line.at, 3), "who": line.who, "text": line.text} for line in story.lines],
    }
