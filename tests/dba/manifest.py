"""Write the release's manifest from the catalogue of a fresh install: `make manifest`."""

from __future__ import annotations

import psycopg

from ledger import dev, schema
from ledger.doctor import manifest


def main() -> None:
    """Replace the file, which tests/dba/test_doctor.py holds against the catalogue."""
    with dev.temporary() as servers:
        servers.prepare()
        schema.upgrade(servers.dsn())
        with psycopg.connect(servers.dsn("postgres"), autocommit=True) as connection:
            manifest.FILE.write_text(manifest.written(manifest.found(connection)), encoding="utf-8")


if __name__ == "__main__":
    main()
