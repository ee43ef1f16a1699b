"""Each constraint refuses, whoever writes, what its name says can't be."""

from __future__ import annotations

import re
from typing import Any

import psycopg

from ledger.client import Ledger
from tests.story import activated, in_state, without_guards
from tests.test_house_rules import CHECKOUT

Connection = psycopg.Connection[Any]

# By constraint: the table, and a statement that breaks it. r_1 is sent and r_2 pending.
COPY = "insert into ledger.{0} select (jsonb_populate_record(t, '{1}')).* from ledger.{0} as t limit 1"
BROKEN = {
    "state_is_known": ("refund", "update ledger.refund set state = 'sold'"),
    "amount_is_positive": ("refund", "update ledger.refund set amount_minor = 0"),
    "refund_pkey": ("refund", COPY.format("refund", '{"idempotency_key": "another"}')),
    "idempotency_key_is_used_once": ("refund", COPY.format("refund", '{"refund_id": "r_3"}')),
    "sent_has_gateway_ref": ("refund", "update ledger.refund set gateway_ref = null where state = 'sent'"),
    "journal_pkey": ("journal", "update ledger.journal set number = 1"),
    "money_moves_whole": ("journal", "update ledger.journal set debit = null where number = 1"),
    "archived_refund_pkey": ("archived_refund", COPY.format("archived_refund", '{"idempotency_key": "another"}')),
    "archived_key_is_used_once": ("archived_refund", COPY.format("archived_refund", '{"refund_id": "r_8"}')),
    "archived_journal_pkey": ("archived_journal", COPY.format("archived_journal", "{}")),
    "carried_balance_pkey": ("carried_balance", COPY.format("carried_balance", "{}")),
    "currency_is_an_iso_4217_code": ("currency", "insert into ledger.currency values ('eur', 2)"),
    "exponent_is_small": ("currency", "insert into ledger.currency values ('QQQ', 5)"),
    "transition_is_named_once": ("transition", "insert into ledger.transition (to_state) values ('pending')"),
    "money_moves_between_two_accounts": ("transition", "update ledger.transition set debit = null"),
    "failover_is_hold_or_lift": ("server", "update ledger.server set failover = 'guess'"),
    "server_is_one_row": ("server", COPY.format("server", '{"single": false}')),
    "kind_has_a_name": ("kind", "insert into ledger.kind (kind) values ('set:tle')"),
    "lock_is_redis_or_advisory": ("kind", "update ledger.kind set lock = 'file'"),
    "mode_is_known": ("kind", "update ledger.kind set mode = 'loose'"),
    "limits_are_positive": ("kind", "update ledger.kind set max_attempts = 0"),
    "limits_fit_a_setting": ("kind", "update ledger.kind set lease_ttl = '25 days'"),
    "idle_limit_is_within_the_lease": ("kind", "update ledger.kind set idle_limit = lease_ttl + interval '1 ms'"),
    "active_is_a_token": ("fence", "update ledger.fence set active = 0"),
    "barrier_is_not_below_active": ("fence", "update ledger.fence set barrier = active - 1"),
    "event_is_known": ("event", "update ledger.event set event = 'guessed'"),
    "refusal_is_recorded_once": (
        "refusal", "insert into ledger.refusal (number, code) values (1, 'LG101'), (1, 'LG101')"
    ),
    "code_is_a_sqlstate": ("refusal", "insert into ledger.refusal (code) values ('LG1011')"),
    "one_resource_or_one_a_row": (
        "protected_table",
        "insert into ledger.protected_table (relation, kind, stamp) values ('ledger.refund', 'settle', false)",
    ),
    "work_pkey": (
        "work", "insert into ledger.work (resource, work_id) values ('job:a', 'w'), ('job:a', 'w')"
    ),
    "state_of_work_is_known": (
        "work", "insert into ledger.work (resource, work_id, state) values ('job:a', 'w', 'sold')"
    ),
}  # fmt: skip


def test_every_named_constraint_has_its_case() -> None:
    schema = (CHECKOUT / "sql/schema/0002_ledger.sql").read_text(encoding="utf-8")
    assert set(re.findall(r"constraint (\w+)", re.sub(r"--[^\n]*", "", schema))) == set(BROKEN)


def test_every_constraint_refuses_what_breaks_it(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    in_state("sent", "r_1", token, ledger, admin)
    in_state("pending", "r_2", token, ledger, admin)
    with without_guards(admin, "archived_refund", "archived_journal", "carried_balance"):
        admin.execute("insert into ledger.archived_refund select * from ledger.refund where refund_id = 'r_1'")
        admin.execute("insert into ledger.archived_journal select * from ledger.journal where refund_id = 'r_1'")
        admin.execute("insert into ledger.carried_balance values ('m_1', 'EUR', 'gateway_clearing', 7025)")
    let_through = []
    for constraint, (table, statement) in BROKEN.items():
        with admin.transaction(force_rollback=True):
            admin.execute(f"alter table ledger.{table} disable trigger user".encode())
            try:
                admin.execute(statement.encode())
                let_through.append(constraint)
            except psycopg.IntegrityError as error:
                if error.diag.constraint_name != constraint:
                    let_through.append(f"{constraint}, but for {error.diag.constraint_name}")
    assert let_through == []
