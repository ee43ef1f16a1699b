"""What must have happened at least once in a whole run: what never happens was not tested.

Every SQLSTATE of docs/errors.md, every move of the table `ledger.transition`, and every branch of an answer that is
lost: the caller doesn't know, and it was carried out or it wasn't.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

ERRORS = Path(__file__).parents[3] / "docs" / "errors.md"

BRANCHES = (
    "claim's reply lost, committed",
    "claim's reply lost, not committed",
    "confirm's reply lost, committed",
    "confirm's reply lost, not committed",
    "activation's reply lost, committed",
    "activation's reply lost, not committed",
    "gateway's reply lost, moved",
    "gateway's reply lost, not moved",
    "gateway's request arrives after its sender's death",
)


def codes() -> set[str]:
    """Every SQLSTATE that the page of errors has a section for."""
    return set(re.findall(r"^### ([0-9A-Z]{5})\b", ERRORS.read_text(), re.MULTILINE))


def missing(
    seen: Collection[str],
    moves: Collection[tuple[str | None, str]],
    legal: Collection[tuple[str | None, str]],
    hits: Collection[str],
) -> list[str]:
    """What never happened."""
    never = [f"no call was refused with {code}" for code in sorted(codes() - set(seen))]
    never += [f"no refund went from {before} to {after}" for before, after in sorted(set(legal) - set(moves), key=str)]
    never += [f"never: {branch}" for branch in BRANCHES if branch not in hits]
    unknown = set(hits) - set(BRANCHES)
    return never + [f"{hit!r} isn't on the list of what must happen" for hit in sorted(unknown)]
