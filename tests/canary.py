"""A password that the whole suite gives, and that must appear in nothing it prints, logs or stores.

The test servers trust whoever reaches them, so it opens nothing; but it travels wherever a real one would.
"""

from __future__ import annotations

from typing import Any

import psycopg

CANARY = "canary-4711-pw"


def given(dsn: str) -> str:
    """The DSN with the password."""
    return f"{dsn}&password={CANARY}"


def kept_in(admin_dsn: str) -> list[str]:
    """The ledger's tables in which it is written down."""
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        tables: list[tuple[Any]] = admin.execute(
            "select c.oid::regclass::text from pg_class as c"
            " where c.relnamespace = to_regnamespace('ledger') and c.relkind = 'r'"
        ).fetchall()
        return [
            name
            for (name,) in tables
            if admin.execute(f"select true from {name} as t where t::text like %s limit 1", [f"%{CANARY}%"]).fetchone()  # type: ignore[arg-type]
        ]
