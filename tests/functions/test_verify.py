from __future__ import annotations

from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Finding
from tests.story import BOB, MERCHANT, TABLES, activated, as_ledger_fn, drawn, in_state, unchanged

Connection = psycopg.Connection[Any]
Damage = Callable[..., None]

# A refund's story: pending, sending (voided < first), unknown, sending again under the second token, sent.
SENT = "r_sent"


@pytest.fixture
def tokens(ledger: Ledger, admin: Connection) -> dict[str, int]:
    """A sound ledger to damage: r_sent went the long way, one refund rests in every other state."""
    voided = drawn(ledger)
    first = activated(ledger)
    in_state("unknown", SENT, first, ledger, admin)
    for state in ("pending", "sending", "accepted", "review", "failed", "cancelled", "returned"):
        in_state(state, f"r_{state}", first, ledger, admin)
    ledger.add_refund("m_2", "r_1", 5, "JPY")
    second = activated(ledger, BOB)
    ledger.claim_refund(MERCHANT, SENT, second)
    ledger.confirm_refund(MERCHANT, SENT, second, f"re_{SENT}")
    assert ledger.verify() == []
    return {"voided": voided, "first": first, "second": second}


@pytest.fixture
def damage(admin: Connection) -> Damage:
    """Write past the functions and past the triggers, as nobody should."""

    def write(statement: LiteralString, arguments: Any = None) -> None:
        with admin.transaction():
            tables = ("refund", "journal", "fence")
            for table in tables:
                admin.execute(f"alter table ledger.{table} disable trigger user".encode())
            assert admin.execute(statement, arguments).rowcount > 0
            for table in tables:
                admin.execute(f"alter table ledger.{table} enable always trigger {table}_is_guarded".encode())
            for table in ("refund", "journal"):
                admin.execute(f"alter table ledger.{table} enable always trigger {table}_is_archived".encode())

    return write


def found(findings: list[Finding]) -> list[tuple[str, str | None]]:
    return sorted((finding.check, finding.refund_id) for finding in findings)


def test_a_sound_ledger_has_nothing_to_tell(ledger: Ledger, tokens: dict[str, int], admin: Connection) -> None:
    with unchanged(admin):
        assert ledger.verify() == []
        assert ledger.verify(MERCHANT) == []
        assert ledger.verify("m_9") == []


def test_an_empty_ledger_has_nothing_to_tell(ledger: Ledger) -> None:
    assert ledger.verify() == []


@pytest.mark.parametrize("role", ["operator_dsn", "reader_dsn"])
def test_readers_and_operators_may_verify(role: str, connect: Any, request: pytest.FixtureRequest) -> None:
    assert Ledger(connect(request.getfixturevalue(role))).verify() == []


# journal_is_whole


def test_a_missing_entry_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("delete from ledger.journal where refund_id = 'r_sent' and number = 3")
    (finding,) = ledger.verify()
    assert finding == Finding(
        "journal_is_whole", MERCHANT, SENT, None, "entry 4 follows entry 2: from unknown after sending", {"number": 4}
    )


def test_an_entry_that_does_not_follow_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("update ledger.journal set from_state = 'sending' where refund_id = 'r_sent' and number = 4")
    assert found(ledger.verify()) == [("journal_is_whole", SENT)]


def test_a_missing_first_entry_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("delete from ledger.journal where refund_id = 'r_failed' and number = 1")
    assert {check for check, _ in found(ledger.verify())} == {
        "journal_is_whole", "row_is_journaled", "balance_is_conserved"
    }  # fmt: skip


# journal_is_legal


def test_a_move_that_is_not_listed_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("update ledger.journal set to_state = 'accepted' where refund_id = 'r_sent' and number = 3")
    damage("update ledger.journal set from_state = 'accepted' where refund_id = 'r_sent' and number = 4")
    (finding,) = ledger.verify()
    assert (finding.check, finding.refund_id, finding.detail) == ("journal_is_legal", SENT, {"number": 4})
    assert finding.finding.startswith("entry 4: accepted to sending")


@pytest.mark.parametrize(
    ("change", "accounts"),
    [
        ("credit = 'merchant_available'", {"gateway_clearing", "merchant_available"}),
        ("debit = 'merchant_available'", {"refund_reserved", "merchant_available"}),
    ],
)
def test_money_between_other_accounts_is_found(
    change: str, accounts: set[str], ledger: Ledger, tokens: dict[str, int], damage: Any
) -> None:
    damage(f"update ledger.journal set {change} where refund_id = 'r_sent' and number = 5".encode())
    findings = ledger.verify()
    assert set(found(findings)) == {("balance_is_conserved", None), ("journal_is_legal", SENT)}
    assert {f.detail["account"] for f in findings if f.check == "balance_is_conserved"} == accounts


@pytest.mark.parametrize("column", ["amount_minor = 7026", "currency = 'USD'"])
def test_money_that_is_not_the_refunds_is_found(
    column: str, ledger: Ledger, tokens: dict[str, int], damage: Any
) -> None:
    damage(f"update ledger.journal set {column} where refund_id = 'r_sent' and number = 5".encode())
    assert set(found(ledger.verify())) == {("balance_is_conserved", None), ("journal_is_legal", SENT)}


def test_money_that_did_not_move_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage(
        "update ledger.journal set debit = null, credit = null, amount_minor = null, currency = null "
        "where refund_id = 'r_sent' and number = 5"
    )
    assert set(found(ledger.verify())) == {("balance_is_conserved", None), ("journal_is_legal", SENT)}


# journal_is_fenced


def test_an_entry_under_a_token_that_was_never_active_is_found(
    ledger: Ledger, tokens: dict[str, int], damage: Damage
) -> None:
    damage("update ledger.journal set token = %s where refund_id = 'r_sent' and number = 2", [tokens["voided"]])
    (finding,) = ledger.verify()
    assert (finding.check, finding.merchant_id, finding.refund_id, finding.resource, finding.detail) == (
        "journal_is_fenced", MERCHANT, SENT, "settle:m_1", {"number": 2, "token": tokens["voided"]},
    )  # fmt: skip
    assert finding.finding.endswith("never activated")


def test_tokens_that_fall_are_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("update ledger.journal set token = %s where refund_id = 'r_sent' and number = 5", [tokens["first"]])
    (finding,) = ledger.verify()
    assert (finding.check, finding.refund_id) == ("journal_is_fenced", SENT)
    assert finding.finding == f"entry 5: token {tokens['first']} after {tokens['second']}, activated"


# row_is_journaled


@pytest.mark.parametrize(
    "change",
    [
        "amount_minor = 7026",
        "fence = fence - 1",
        "added_at = added_at - interval '1 second'",
        "first_claimed_at = first_claimed_at - interval '1 second'",
        "changed_at = changed_at + interval '1 second'",
        "settled_at = settled_at + interval '1 second'",
        "attempts = 0",
        "journal_number = journal_number + 1",
        "maybe_sent = not maybe_sent",
        "currency = 'USD'",
        "idempotency_key = 'forged'",
        "payment_ref = 'forged'",
        "gateway = 'forged'",
        "gateway_ref = 'forged'",
    ],
)
def test_a_row_that_its_journal_does_not_make_is_found(
    change: str, ledger: Ledger, tokens: dict[str, int], damage: Any
) -> None:
    damage(f"update ledger.refund set {change} where refund_id = 'r_sent'".encode())
    findings = [f for f in ledger.verify() if f.check not in {"balance_is_conserved", "journal_is_legal"}]
    assert found(findings) == [("row_is_journaled", SENT)]
    column = change.split(" = ", maxsplit=1)[0]
    detail = findings[0].detail
    assert [name for name in detail["row"] if detail["row"][name] != detail["journal"][name]] == [column]


def test_a_row_in_another_state_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("update ledger.refund set state = 'pending' where refund_id = 'r_sending'")
    (finding,) = ledger.verify()
    assert (finding.check, finding.refund_id) == ("row_is_journaled", "r_sending")
    assert finding.finding == (
        f"the row is pending under token {tokens['first']}, its journal says sending under {tokens['first']}"
    )


def test_a_refund_without_a_journal_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("delete from ledger.journal where refund_id = 'r_failed'")
    assert found(ledger.verify()) == [("row_is_journaled", "r_failed")]


# entry_has_a_refund


def test_entries_without_a_refund_are_found_once(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("delete from ledger.refund where refund_id = 'r_failed'")
    (finding,) = ledger.verify()
    assert (finding.check, finding.merchant_id, finding.refund_id) == ("entry_has_a_refund", MERCHANT, "r_failed")


def test_money_of_a_refund_that_is_gone_is_missed_too(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("delete from ledger.refund where refund_id = 'r_sent'")
    assert set(found(ledger.verify())) == {("entry_has_a_refund", SENT), ("balance_is_conserved", None)}


# fence_is_ahead


def test_a_fence_behind_its_rows_is_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("update ledger.fence set active = %s where resource = 'settle:m_1'", [tokens["first"]])
    (finding,) = ledger.verify()
    assert (finding.check, finding.refund_id, finding.resource, finding.detail) == (
        "fence_is_ahead", SENT, "settle:m_1", {"row_token": tokens["second"], "active": tokens["first"]},
    )  # fmt: skip


def test_rows_whose_fence_is_gone_are_found(ledger: Ledger, tokens: dict[str, int], damage: Damage) -> None:
    damage("delete from ledger.fence")
    findings = ledger.verify()
    assert {finding.check for finding in findings} == {"fence_is_ahead"}
    assert "r_pending" not in {finding.refund_id for finding in findings}


def test_a_sequence_behind_a_barrier_is_found(ledger: Ledger, tokens: dict[str, int], admin: Connection) -> None:
    admin.execute("select setval('ledger.token_seq', 1)")
    (finding,) = ledger.verify()
    assert (finding.check, finding.refund_id, finding.resource, finding.detail) == (
        "fence_is_ahead", None, "settle:m_1", {"barrier": tokens["second"], "last_drawn": 1},
    )  # fmt: skip


# balance_is_conserved


def test_a_balance_that_does_not_match_its_refunds_is_found(
    ledger: Ledger, tokens: dict[str, int], damage: Damage
) -> None:
    damage("update ledger.refund set amount_minor = 8 where merchant_id = 'm_2'")
    findings = [finding for finding in ledger.verify() if finding.check == "balance_is_conserved"]
    assert sorted((f.merchant_id, f.detail["currency"], f.detail["account"], f.finding) for f in findings) == [
        ("m_2", "JPY", "merchant_available", "JPY merchant_available: the journal has -5, the refunds -8"),
        ("m_2", "JPY", "refund_reserved", "JPY refund_reserved: the journal has 5, the refunds 8"),
    ]


# gateway_ref_is_single


def test_one_reference_on_two_refunds_is_found(ledger: Ledger, tokens: dict[str, int]) -> None:
    ledger.add_refund(MERCHANT, "r_twin", 1, "EUR")
    ledger.claim_refund(MERCHANT, "r_twin", tokens["second"])
    ledger.confirm_refund(MERCHANT, "r_twin", tokens["second"], f"re_{SENT}")
    (finding,) = ledger.verify()
    assert (finding.check, finding.merchant_id, finding.finding) == (
        "gateway_ref_is_single", MERCHANT, "gateway reference re_r_sent is on 2 refunds",
    )  # fmt: skip
    assert sorted(finding.detail["refunds"]) == ["m_1/r_sent", "m_1/r_twin"]


def test_one_reference_at_two_gateways_is_no_finding(ledger: Ledger, tokens: dict[str, int]) -> None:
    ledger.add_refund(MERCHANT, "r_twin", 1, "EUR", gateway="other")
    ledger.claim_refund(MERCHANT, "r_twin", tokens["second"])
    ledger.confirm_refund(MERCHANT, "r_twin", tokens["second"], f"re_{SENT}")
    assert ledger.verify() == []


# trigger_is_on


@pytest.mark.parametrize("table", TABLES)
def test_a_disabled_guard_is_found(table: str, ledger: Ledger, admin: Connection) -> None:
    admin.execute(f"alter table ledger.{table} disable trigger {table}_is_guarded".encode())
    (finding,) = ledger.verify()
    assert (finding.check, finding.resource, finding.finding, finding.detail) == (
        "trigger_is_on", f"ledger.{table}", "its guard is enabled as D, not A (always)",
        {"table": table, "trigger": f"{table}_is_guarded", "enabled": "D"},
    )  # fmt: skip


def test_a_guard_that_a_restore_left_as_an_ordinary_one_is_found(ledger: Ledger, admin: Connection) -> None:
    admin.execute("alter table ledger.refund enable trigger refund_is_guarded")
    (finding,) = ledger.verify()
    assert (finding.check, finding.finding) == ("trigger_is_on", "its guard is enabled as O, not A (always)")


def test_a_missing_guard_is_found(ledger: Ledger, admin: Connection) -> None:
    admin.execute("drop trigger journal_is_guarded on ledger.journal")
    (finding,) = ledger.verify()
    assert (finding.check, finding.resource, finding.finding) == (
        "trigger_is_on", "ledger.journal", "its guard is missing"
    )  # fmt: skip


def test_every_table_has_its_guard(admin: Connection) -> None:
    tables = admin.execute(
        "select relname from pg_class where relnamespace = 'ledger'::regnamespace and relkind = 'r' "
        "and relname <> 'schema_version'"
    ).fetchall()
    assert {name for (name,) in tables} == set(TABLES)


# One merchant alone


def test_another_merchants_damage_is_not_told(
    ledger: Ledger, tokens: dict[str, int], damage: Damage, admin: Connection
) -> None:
    damage("update ledger.refund set attempts = 7 where merchant_id = 'm_1'")
    damage("delete from ledger.journal where merchant_id = 'm_1' and number = 1")
    damage("update ledger.fence set active = 1, barrier = 1 where resource = 'settle:m_1'")
    assert ledger.verify("m_2") == []
    assert {finding.merchant_id for finding in ledger.verify()} == {MERCHANT}


def test_a_merchants_own_damage_is(ledger: Ledger, tokens: dict[str, int], admin: Connection) -> None:
    as_ledger_fn(admin, "update ledger.refund set attempts = 7 where refund_id = 'r_sent'")
    assert found(ledger.verify(MERCHANT)) == [("row_is_journaled", SENT)]
