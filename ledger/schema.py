"""Where the SQL is, and how it gets into a database: revisions by Alembic, the text from sql/."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.errors import LedgerError

if TYPE_CHECKING:
    from alembic.config import Config

PACKAGE = Path(__file__).parent

# A wheel carries sql/ and migrations/ inside the package; a checkout keeps them beside it.
HOME = PACKAGE if (PACKAGE / "sql").is_dir() else PACKAGE.parent
SQL = HOME / "sql"
MIGRATIONS = HOME / "migrations"

VERSION_TABLE = "schema_version"
VERSION_SCHEMA = "ledger"

PARTS = ("roles", "schema", "functions")


class SchemaBehind(LedgerError):
    """The schema is missing, or not at the revision that this release needs."""


def upgrade(dsn: str, revision: str = "head") -> None:
    """Bring a database to a revision. Two at once: one waits for the other."""
    from alembic import command

    command.upgrade(_config(dsn=dsn), revision)


def downgrade(dsn: str, revision: str, *, discard: bool = False) -> None:
    """Take a database back to a revision; `base` takes the schema away.

    `discard` says that refunds and their journal may be dropped. Without it a ledger that holds any is left alone.
    """
    from alembic import command

    command.downgrade(_config(dsn=dsn, discard=discard), revision)


def offline_sql(revisions: str = "head", *, down: bool = False, part: str | None = None) -> str:
    """The SQL that an upgrade (or a downgrade, `FROM:TO`) would run, without a connection, for one transaction.

    `part` is one of PARTS: the roles, which belong to the cluster; all but them; or the functions, grants and guard
    triggers alone, to mend a schema that is at head. Without it, everything.
    """
    if part == "roles":
        passed = (path for revision in _passed(revisions) for path in revision_files(revision))
        return _texts(path for path in passed if _makes_roles(path))
    if part == "functions":
        return beginning(head()) + _texts(replaced_files())

    from alembic import command

    out = io.StringIO()
    run = command.downgrade if down else command.upgrade
    run(_config(output=out, part=part), revisions, sql=True)
    return out.getvalue()


def beginning(revision: str | None) -> str:
    """What a text begins with that is made for a schema at this revision."""
    begin = (SQL / "schema" / "begin.sql").read_text(encoding="utf-8")
    header, blank, rest = begin.partition("\n\n")
    return f"{header}{blank}set local ledger.from_revision = '{revision or 'base'}';\n{rest}\n"


def revisions() -> list[str]:
    """The revisions in order, by the names of their files. Asking Alembic would take half a second."""
    return sorted(path.stem for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def head() -> str:
    """The revision that this release needs."""
    return revisions()[-1]


def current(connection: Any) -> str | None:
    """The revision a database is at; None without the schema. `connection` is a psycopg connection."""
    there = connection.execute("select to_regclass('ledger.schema_version')").fetchone()
    if there is None or there[0] is None:
        return None
    row = connection.execute("select version_num from ledger.schema_version").fetchone()
    return None if row is None else str(row[0])


def check(connection: Any) -> None:
    """Raise SchemaBehind unless the database is at the revision that this release needs."""
    found, needed = current(connection), head()
    if found != needed:
        raise SchemaBehind(
            f"schema ledger is {'missing' if found is None else f'at {found}'}, this release needs {needed}",
            {"found": found, "needed": needed},
            "Run `ledger db upgrade`, or give your DBA the output of `ledger db sql`",
        )


def function_files() -> list[Path]:
    """Guards, then functions."""
    return sorted((SQL / "guards").glob("*.sql")) + sorted((SQL / "functions").glob("*.sql"))


def replaced_files() -> list[Path]:
    """What is replaced at the end of every upgrade to head: functions, grants, guard triggers."""
    schema = SQL / "schema"
    return [schema / "functions_begin.sql", *function_files(), schema / "grants.sql", schema / "functions_end.sql"]


def callable_by(role: str) -> list[str]:
    """The functions that sql/schema/grants.sql lets a role call, by name and arguments."""
    text = re.sub(r"--[^\n]*", "", (SQL / "schema" / "grants.sql").read_text(encoding="utf-8"))
    grants = re.findall(r"grant execute on function\s+(.*?)\s+to\s+([\w,\s]+);", text, re.DOTALL)
    given = [functions for functions, roles in grants if role in re.findall(r"\w+", roles)]
    return sorted(name for functions in given for name in re.findall(r"ledger\.(\w+\(.*?\))", functions))


def revision_files(revision: str) -> list[Path]:
    """A revision's own files, which share its number, in order: its roles, then the rest."""
    number = revision.partition("_")[0]
    return [path for path in sorted((SQL / "schema").glob(f"{number}_*.sql")) if path.suffixes == [".sql"]]


def step(revision: str, part: str | None = None) -> list[Path]:
    """The files that a revision runs on the way up; without those that make roles where `part` is `schema`."""
    files = [path for path in revision_files(revision) if part != "schema" or not _makes_roles(path)]
    return [*files, *replaced_files()] if revision == head() else files


def _makes_roles(path: Path) -> bool:
    return path.stem.endswith("_roles")


def _passed(revisions_: str) -> list[str]:
    """The revisions that are run on the way from the first to the second of FROM:TO."""
    start, _, end = revisions_.rpartition(":")
    names = ["base", *revisions()]
    ends = [names.index(head() if name == "head" else name) for name in (start or "base", end)]
    return names[ends[0] + 1 : ends[1] + 1]


def _texts(paths: Iterable[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _config(**attributes: Any) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes.update(attributes)
    if "output" in attributes:
        config.output_buffer = attributes["output"]
    return config
