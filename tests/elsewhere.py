"""The same tests from elsewhere: through a pooler (`--pooler`), and in a ledger restored from a dump (`--restored`).

The superuser and the migrating role go straight to the server: they look, break things and mend them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import dev, schema
from tests.dba.dump import dump, restore

# psycopg prepares what it has sent five times, unless told otherwise.
POOLERS: dict[str, dict[str, Any]] = {"default": {}, "unprepared": {"prepare_threshold": None}}


def add_options(parser: pytest.Parser) -> None:
    """The options, for the suite's conftest."""
    parser.addoption("--pooler", choices=POOLERS, help="go through PgBouncer, with psycopg's defaults or unprepared")
    parser.addoption("--restored", action="store_true", help="test a ledger that was dumped in another cluster")


def restore_from_elsewhere(servers: dev.Servers, database: str) -> None:
    """Make the ledger in another cluster, and restore it here as the migrating role, who is no superuser."""
    with dev.temporary(servers.pg) as others, tempfile.TemporaryDirectory() as folder:
        others.prepare()
        schema.upgrade(others.dsn())
        restore(servers, servers.dsn(dbname=database), dump(others, others.dsn(), Path(folder) / "ledger.dump"))
    with psycopg.connect(servers.dsn("ledger_operator", database)) as operator:
        operator.execute("select ledger.recover_failover(true, 'carol', 'restored; the old one is out of use')")
