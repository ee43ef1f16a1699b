"""What reads the SQL besides people: squawk, pgspot, sqlfluff. `python -m tests.dba.linters` has them read it all."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from ledger import schema

CHECKOUT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

# pgspot knows record variables, but none of a type that the script makes.
OWN_TYPE = re.compile(r"^(    \w+) ledger\.\w+(?= :=|;)", re.MULTILINE)


def squawk(text: str) -> str:
    """Locks and rewrites that would stop others. Empty when nothing was found."""
    return _findings("squawk", "--reporter", "gcc", text=text)


def pgspot(text: str) -> str:
    """Names that could be somebody else's. Empty when nothing was found.

    PS002, CREATE OR REPLACE in a schema that the script doesn't make, is for scripts that meet a schema of
    somebody else's; home.sql refuses that, and only ledger_owner may create in ours.
    """
    return _findings("pgspot", "--ignore", "PS002", text=OWN_TYPE.sub(r"\1 record", text))


def sqlfluff(*paths: Path) -> str:
    """Style, and whether it parses. Empty when nothing was found."""
    return _run("sqlfluff", "lint", "--disable-progress-bar", "--nocolor", "--processes", "2", *paths)


def revisions() -> Iterator[tuple[str, str]]:
    """Each revision's name and its text, by itself."""
    names = ["base", *schema.revisions()]
    for start, end in pairwise(names):
        yield end, schema.offline_sql(f"{start}:{end}")


def without_bound_bodies(text: str) -> str:
    """A revision without the functions that pgspot can't read: their bodies are bound when they are created."""
    for path in schema.function_files():
        function = path.read_text()
        if "as $$" not in function:
            text = text.replace(function.rstrip().removesuffix(";"), "")
    return text


def read_all() -> Iterator[str]:
    """What the three find in everything that ships."""
    for name, text in revisions():
        yield from (f"{name}: {found}" for found in (squawk(text), pgspot(without_bound_bodies(text))) if found)
    if found := pgspot(schema.offline_sql("head:base", down=True)):
        yield f"head:base: {found}"
    if found := sqlfluff(CHECKOUT / "sql"):
        yield found


def _findings(linter: str, *options: str, text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "revision.sql"
        file.write_text(text)
        return _run(linter, *options, file)


def _run(linter: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [BIN / linter, *arguments], cwd=CHECKOUT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False,
    )  # fmt: skip
    return done.stdout if done.returncode else ""


if __name__ == "__main__":
    sys.exit("\n".join(read_all()) or None)
