"""Where the SQL that the parts of the proof break is found."""

from __future__ import annotations

from pathlib import Path

from ledger import schema


def file_of(function: str) -> Path:
    """The file of a function or a guard."""
    return next(path for path in schema.function_files() if path.stem == function)
