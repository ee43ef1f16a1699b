"""Roles, and whose the schema is: points at sql/schema/0001_roles.sql and 0001_schema.sql."""

from __future__ import annotations

from ledger.revision import down, up

revision = "0001_roles"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    up(revision)


def downgrade() -> None:
    down(revision)
