"""What a schema consists of, in words that every major version of Postgres says alike.

The release's own is manifest.json, made from the catalogue of a fresh install: `make manifest`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from psycopg import Connection

Objects: TypeAlias = dict[str, dict[str, Any]]

FILE = Path(__file__).with_name("manifest.json")
QUERY = Path(__file__).with_name("catalogue.sql")


def found(connection: Connection[Any]) -> Objects:
    """The schema of a database, by object: `function ledger.draw_token(text)` and what makes it what it is."""
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog")  # so that every name is written out
        return dict(connection.execute(QUERY.read_bytes()).fetchall())


def released() -> Objects:
    """The schema as this release makes it."""
    objects: Objects = json.loads(FILE.read_text(encoding="utf-8"))
    return objects


def written(objects: Objects) -> str:
    """A manifest as its file has it: a line for each fact, in one order."""
    return json.dumps(objects, indent=1, sort_keys=True) + "\n"
