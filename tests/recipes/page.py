"""The programs on a page of the docs, written out as files, so that what is tested is what a reader copies."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
FILE = re.compile(r"^```\w+ (?P<name>[\w.-]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> set[str]:
    """Write every block whose fence names a file into the folder; the names."""
    names = set()
    for block in FILE.finditer((DOCS / page).read_text()):
        name = block["name"]
        assert name not in names, f"{page} has {name} twice"
        (folder / name).write_text(block["text"])
        names.add(name)
    assert names, f"{page} has no file"
    return names
