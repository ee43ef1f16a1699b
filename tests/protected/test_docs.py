"""docs/protected-tables.md names the test behind each promise."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (CHECKOUT / "docs/protected-tables.md").read_text()))
    tests = "\n".join(path.read_text() for path in (CHECKOUT / "tests").rglob("test_*.py"))
    written = set(re.findall(r"def (test_\w+)", tests))
    assert named - written == set()
    assert len(named) > 20
