"""${message}: points at sql/schema/${up_revision}.sql."""

from __future__ import annotations

from ledger.revision import down, up

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    up(revision)


def downgrade() -> None:
    down(revision)
