"""Roles: points at sql/schema/0001_roles.sql."""

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
