"""Where the SQL is, and how it gets into a database: revisions by Alembic, the text from sql/."""

from __future__ import annotations

import io
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


def offline_sql(revisions: str = "head", *, down: bool = False) -> str:
    """The SQL that an upgrade (or a downgrade, `FROM:TO`) would run, without a connection."""
    from alembic import command

    out = io.StringIO()
    run = command.downgrade if down else command.upgrade
    run(_config(output=out), revisions, sql=True)
    return out.getvalue()


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
    """Guards, then functions, as they are replaced at the end of every upgrade to head."""
    return sorted((SQL / "guards").glob("*.sql")) + sorted((SQL / "functions").glob("*.sql"))


def step(revision: str) -> list[Path]:
    """The files that a revision runs on the way up."""
    files = [SQL / "schema" / f"{revision}.sql"]
    if revision == head():
        schema = SQL / "schema"
        files += [
            schema / "functions_begin.sql",
            *function_files(),
            schema / "grants.sql",
            schema / "functions_end.sql",
        ]
    return files


def _config(**attributes: Any) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes.update(attributes)
    if "output" in attributes:
        config.output_buffer = attributes["output"]
    return config
