"""What a revision does: run its files. A revision is a pointer; the text is in sql/."""

from __future__ import annotations

from pathlib import Path

from alembic import context, op
from sqlalchemy import TextClause, text

from ledger import schema


def up(revision: str) -> None:
    """Run a revision's files, and, where it is the newest, replace all guards and functions."""
    for path in schema.step(revision, context.config.attributes.get("part")):
        op.execute(statement(path))


def down(revision: str) -> None:
    """Run the file that takes a revision back."""
    op.execute(statement(schema.SQL / "schema" / f"{revision}.down.sql"))


def statement(path: Path) -> TextClause:
    """A file of SQL as Alembic takes it.

    Unescaped, `:name` in a function body would be read as a parameter: an error online, NULL offline.
    """
    return escaped(path.read_text(encoding="utf-8"))


def escaped(sql: str) -> TextClause:
    """SQL as Alembic takes it, which adds the last semicolon by itself."""
    return text(sql.rstrip().removesuffix(";").replace(":", r"\:"))
