"""What people run today: tables with the ledger's columns and indexes, without fence, guard or functions."""

from __future__ import annotations

import psycopg

TABLES = """
create schema plain;
create table plain.refund (like ledger.refund including all) with (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
create table plain.journal (like ledger.journal including all);
grant usage on schema plain to ledger_worker;
grant select, insert, update on all tables in schema plain to ledger_worker;
"""

FILL = """
insert into plain.refund (
    merchant_id, refund_id, amount_minor, added_at, changed_at, currency, idempotency_key, payment_ref
)
select %(merchant_id)s, i.id, 7025, now(), now(), 'EUR', %(merchant_id)s || '/' || i.id, 'pay_' || i.id
from unnest(%(ids)s::text[]) as i (id)
"""

CLAIM = """
update plain.refund
set state = 'sending', fence = %(token)s, attempts = attempts + 1, changed_at = now()
where merchant_id = %(merchant_id)s and refund_id = %(refund_id)s
"""

CONFIRM = """
update plain.refund
set state = 'sent', gateway_ref = %(gateway_ref)s, changed_at = now(), settled_at = now()
where merchant_id = %(merchant_id)s and refund_id = %(refund_id)s
"""

JOURNAL_CLAIM = """
insert into plain.journal (merchant_id, refund_id, number, attempts, at, token, maybe_sent, from_state, to_state)
values (%(merchant_id)s, %(refund_id)s, 2, 1, now(), %(token)s, false, 'pending', 'sending')
"""

JOURNAL_CONFIRM = """
insert into plain.journal (
    merchant_id, refund_id, number, attempts, at, token, amount_minor, maybe_sent, from_state, to_state, currency,
    debit, credit, gateway_ref
)
values (
    %(merchant_id)s, %(refund_id)s, 3, 1, now(), %(token)s, 7025, false, 'sending', 'sent', 'EUR',
    'refund_reserved', 'gateway_clearing', %(gateway_ref)s
)
"""


def create(admin_dsn: str) -> None:
    """Make the tables."""
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute(TABLES)


def load(connection: psycopg.Connection, merchant_id: str, refund_ids: list[str]) -> None:
    """Add refunds, pending."""
    connection.execute(FILL, {"merchant_id": merchant_id, "ids": refund_ids})


class Plain:
    """A worker that updates by primary key, and is done."""

    def __init__(self, connection: psycopg.Connection, merchant_id: str, token: int) -> None:
        self._cursor = connection.cursor()
        self._merchant_id = merchant_id
        self._token = token

    def claim(self, refund_id: str) -> None:
        """To sending."""
        self._cursor.execute(CLAIM, self._names(refund_id), prepare=True)

    def confirm(self, refund_id: str) -> None:
        """To sent."""
        self._cursor.execute(CONFIRM, self._names(refund_id), prepare=True)

    def _names(self, refund_id: str) -> dict[str, object]:
        return {
            "merchant_id": self._merchant_id, "refund_id": refund_id, "token": self._token,
            "gateway_ref": f"re_{refund_id}",
        }  # fmt: skip


class Journaled(Plain):
    """A worker that writes its own journal: BEGIN, UPDATE, INSERT, COMMIT."""

    def claim(self, refund_id: str) -> None:
        """To sending, with an entry."""
        self._in_transaction(CLAIM, JOURNAL_CLAIM, refund_id)

    def confirm(self, refund_id: str) -> None:
        """To sent, with an entry."""
        self._in_transaction(CONFIRM, JOURNAL_CONFIRM, refund_id)

    def _in_transaction(self, update: str, insert: str, refund_id: str) -> None:
        names = self._names(refund_id)
        self._cursor.execute("begin", prepare=True)
        self._cursor.execute(update, names, prepare=True)
        self._cursor.execute(insert, names, prepare=True)
        self._cursor.execute("commit", prepare=True)
