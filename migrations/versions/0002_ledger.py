"""Tables: points at sql/schema/0002_ledger.sql."""

from __future__ import annotations

from ledger.revision import down, up

revision = "0002_ledger"
down_revision = "0001_roles"
branch_labels = None
depends_on = None


def upgrade() -> None:
    up(revision)


def downgrade() -> None:
    down(revision)
