"""Two workers, one fault, one protection: see a double send happen, and which protection prevents what."""

from __future__ import annotations

from ledger.reproduce.expected import Counts, Expected, expected
from ledger.reproduce.matrix import Cell, Matrix, run
from ledger.reproduce.place import Place, embedded, yours
from ledger.reproduce.words import FAULTS, GUARANTEES, PROTECTIONS

__all__ = [
    "FAULTS",
    "GUARANTEES",
    "PROTECTIONS",
    "Cell",
    "Counts",
    "Expected",
    "Matrix",
    "Place",
    "embedded",
    "expected",
    "run",
    "yours",
]
