from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import RowOutcome
from tests.functions.fenced import Fenced
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    UNDRAWN,
    activated,
    added,
    as_ledger_fn,
    in_state,
    journal,
    on_a_new_timeline,
    refund,
    refused,
    unchanged,
)

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    return activated(ledger)


def claimed(ledger: Ledger, token: int, *refund_ids: str) -> None:
    added(ledger, *refund_ids)
    for refund_id in refund_ids:
        ledger.claim_refund(MERCHANT, refund_id, token)


def outcomes(rows: list[RowOutcome]) -> list[tuple[str, str, str | None, str | None]]:
    return [(row.refund_id, row.outcome, row.reason, row.state) for row in rows]


# What it does


def test_rows_come_back_in_the_order_given(ledger: Ledger, token: int, admin: Connection) -> None:
    claimed(ledger, token, "r_1", "r_2", "r_3")
    assert ledger.confirm_refunds(MERCHANT, token, ["r_3", "r_1", "r_2"], ["re_3", "re_1", "re_2"]) == [
        RowOutcome(1, "r_3", "confirmed", None, "sent", 7025, "EUR", "re_3"),
        RowOutcome(2, "r_1", "confirmed", None, "sent", 7025, "EUR", "re_1"),
        RowOutcome(3, "r_2", "confirmed", None, "sent", 7025, "EUR", "re_2"),
    ]
    assert refund(admin, "r_2", "state", "fence", "gateway_ref") == ("sent", token, "re_2")
    assert journal(admin, "r_2")[-1] == (
        "sending", "sent", token, 1, False, "refund_reserved", "gateway_clearing", 7025,
    )  # fmt: skip


def test_what_is_written_is_what_the_single_call_writes(ledger: Ledger, token: int, admin: Connection) -> None:
    claimed(ledger, token, "r_1", "r_2")
    ledger.confirm_refund(MERCHANT, "r_1", token, "re")
    ledger.confirm_refunds(MERCHANT, token, ["r_2"], ["re"])
    refunds = admin.execute(
        "select to_jsonb(r) - '{refund_id,idempotency_key,added_at,changed_at,first_claimed_at,claimed_xid,settled_at}'"
        "::text[], settled_at = changed_at from ledger.refund as r"
    ).fetchall()
    entries = admin.execute(
        "select to_jsonb(j) - '{refund_id,at}'::text[] from ledger.journal as j where number = 3"
    ).fetchall()
    assert refunds[0] == refunds[1]
    assert entries[0] == entries[1]


def test_an_accepted_refund_is_confirmed_by_whoever_holds_the_active_token(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("accepted", "r_1", token, ledger, admin)
    newer = activated(ledger, BOB)
    assert outcomes(ledger.confirm_refunds(MERCHANT, newer, ["r_1"], ["re_r_1"])) == [
        ("r_1", "confirmed", None, "sent")
    ]
    assert journal(admin, "r_1")[-1] == (
        "accepted", "sent", newer, 1, True, "refund_reserved", "gateway_clearing", 7025,
    )  # fmt: skip


def test_every_row_has_an_outcome_or_a_code_of_its_own(ledger: Ledger, token: int, admin: Connection) -> None:
    states = ["pending", "sending", "unknown", "accepted", "review", "sent", "failed", "cancelled", "returned"]
    for state in states:
        in_state(state, f"r_{state}", token, ledger, admin)
    rows = ledger.confirm_refunds(
        MERCHANT, token, [*(f"r_{state}" for state in states), "r_9"], [*(f"re_r_{state}" for state in states), "re"]
    )
    assert outcomes(rows) == [
        ("r_pending", "LG203", "not_claimed", "pending"),
        ("r_sending", "confirmed", None, "sent"),
        ("r_unknown", "LG203", "not_claimed", "unknown"),
        ("r_accepted", "confirmed", None, "sent"),
        ("r_review", "LG203", "not_claimed", "review"),
        ("r_sent", "already_confirmed", None, "sent"),
        ("r_failed", "LG202", None, "failed"),
        ("r_cancelled", "LG202", None, "cancelled"),
        ("r_returned", "LG202", None, "returned"),
        ("r_9", "LG201", None, None),
    ]


@pytest.mark.parametrize("state", ["accepted", "sent", "returned"])
def test_another_reference_is_a_conflict(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_1", token, ledger, admin)
    with_ref = refund(admin, "r_1", "gateway_ref", "state", "journal_number")
    (row,) = ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_other"])
    assert (row.outcome, row.state, row.gateway_ref) == ("LG303", state, "re_r_1")
    assert refund(admin, "r_1", "gateway_ref", "state", "journal_number") == with_ref


def test_what_was_accepted_once_keeps_its_reference_through_a_takeover(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("accepted", "r_1", token, ledger, admin)
    ledger.mark_unknown(MERCHANT, "r_1", token, "no final word")
    newer = activated(ledger, BOB)
    ledger.claim_refund(MERCHANT, "r_1", newer)
    rows = ledger.confirm_refunds(MERCHANT, newer, ["r_1", "r_1"], ["re_other", "re_r_1"])
    assert [row.outcome for row in rows] == ["LG303", "confirmed"]


def test_a_claim_of_this_same_transaction_is_not_confirmed(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    claimed(ledger, token, "r_1")
    added(ledger, "r_2")
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_2", token)
        rows = ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_2"], ["re_1", "re_2"])
    assert outcomes(rows) == [
        ("r_1", "confirmed", None, "sent"),
        ("r_2", "LG203", "claim_not_committed", "sending"),
    ]
    assert refund(admin, "r_2", "state") == "sending"


def test_a_row_claimed_under_another_token_is_not_confirmed(ledger: Ledger, token: int) -> None:
    claimed(ledger, token, "r_1")
    newer = activated(ledger, BOB)
    assert outcomes(ledger.confirm_refunds(MERCHANT, newer, ["r_1"], ["re_1"])) == [
        ("r_1", "LG203", "not_claimed", "sending")
    ]


def test_a_row_ahead_of_its_fence_is_not_confirmed(ledger: Ledger, token: int, admin: Connection) -> None:
    claimed(ledger, token, "r_1", "r_2")
    as_ledger_fn(admin, "update ledger.refund set fence = fence + 1000 where refund_id = 'r_1'")
    rows = ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_2"], ["re_1", "re_2"])
    assert outcomes(rows) == [("r_1", "LG101", "row", "sending"), ("r_2", "confirmed", None, "sent")]


def test_a_refund_twice_in_one_call_is_confirmed_once(ledger: Ledger, token: int, admin: Connection) -> None:
    claimed(ledger, token, "r_1")
    rows = ledger.confirm_refunds(MERCHANT, token, ["r_1"] * 3, ["re_1", "re_1", "re_2"])
    assert [(row.outcome, row.state, row.gateway_ref) for row in rows] == [
        ("confirmed", "sent", "re_1"),
        ("already_confirmed", "sent", "re_1"),
        ("LG303", "sent", "re_1"),
    ]
    assert len(journal(admin, "r_1")) == 3


def test_a_refused_refund_twice_in_one_call_is_refused_twice(ledger: Ledger, token: int) -> None:
    added(ledger, "r_1")
    rows = ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_1", "r_9", "r_9"], ["re_1", "re_1", "re_1", "re_1"])
    assert [row.outcome for row in rows] == ["LG203", "LG203", "LG201", "LG201"]


def test_a_refused_row_leaves_a_record(ledger: Ledger, token: int, admin: Connection) -> None:
    claimed(ledger, token, "r_1")
    long = "r" * 400  # its record keeps 300 characters of it, and DETAIL all
    ledger.confirm_refunds(MERCHANT, token, ["r_1", long], ["re_1", "re_9"])
    assert admin.execute(
        "select code, function, kind, resource, merchant_id, refund_id, token, message, detail ->> 'position', "
        "detail ->> 'refund_id' from ledger.refusal"
    ).fetchall() == [
        (
            "LG201", "confirm_refunds", "settle", "settle:m_1", MERCHANT, "r" * 300, token,
            "row 2 of confirm_refunds", "2", long,
        )
    ]  # fmt: skip


def test_repeating_it_changes_nothing(ledger: Ledger, token: int, admin: Connection) -> None:
    claimed(ledger, token, "r_1", "r_2")
    ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_2"], ["re_1", "re_2"])
    with unchanged(admin):
        rows = ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_2"], ["re_1", "re_2"])
    assert outcomes(rows) == [("r_1", "already_confirmed", None, "sent"), ("r_2", "already_confirmed", None, "sent")]


def test_repeating_it_is_recognised_after_a_newer_token(
    ledger: Ledger, rivals: Ledger, token: int, admin: Connection
) -> None:
    claimed(ledger, token, "r_1", "r_2")
    ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_2"], ["re_1", "re_2"])
    activated(rivals, BOB)
    with unchanged(admin):
        rows = ledger.confirm_refunds(MERCHANT, token, ["r_2", "r_1"], ["re_2", "re_1"])
    assert [row.outcome for row in rows] == ["already_confirmed", "already_confirmed"]


def test_a_persons_reason_is_kept_with_the_confirm(
    ledger: Ledger, connection: Connection, token: int, admin: Connection
) -> None:
    claimed(ledger, token, "r_1")
    with connection.transaction():
        connection.execute("set local ledger.reason = 'ticket 91'")
        ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])
    assert admin.execute("select reason from ledger.journal where to_state = 'sent'").fetchall() == [("ticket 91",)]


def test_it_waits_for_no_row_that_is_not_its_own(
    ledger: Ledger, rivals: Ledger, rival: Connection, token: int, connection: Connection
) -> None:
    """Neither for the merchant's others, nor for another merchant's of the same id."""
    claimed(ledger, token, "r_1", "r_2")
    other = activated(ledger, BOB, "settle:m_2")
    added(ledger, "r_1", merchant_id="m_2")
    with rival.transaction():
        rivals.claim_refund("m_2", "r_1", other)
        rivals.confirm_refund(MERCHANT, "r_2", token, "re_2")
        connection.execute("set lock_timeout = '1s'")
        assert outcomes(ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])) == [
            ("r_1", "confirmed", None, "sent")
        ]


def test_no_rows_are_nothing_to_do(ledger: Ledger, token: int, admin: Connection) -> None:
    with unchanged(admin):
        assert ledger.confirm_refunds(MERCHANT, token, [], []) == []


def test_a_thousand_rows_are_one_call(ledger: Ledger, token: int, admin: Connection) -> None:
    ids = [f"r_{n:04}" for n in range(1000)]
    ledger.add_refunds(MERCHANT, ids, [1] * 1000, ["EUR"] * 1000)
    ledger.claim_refunds(MERCHANT, token, 1000)
    rows = ledger.confirm_refunds(MERCHANT, token, ids, [f"re_{n}" for n in range(1000)])
    assert {row.outcome for row in rows} == {"confirmed"}
    assert [row.refund_id for row in rows] == ids
    assert admin.execute("select balance_minor from ledger.balance where account = 'gateway_clearing'").fetchall() == [
        (1000,)
    ]


# What it refuses


@pytest.mark.parametrize(
    ("refund_ids", "gateway_refs", "reason"),
    [
        (None, ["re"], "an array is null"),
        (["r_1"], None, "an array is null"),
        (["r_1"], ["re", "re"], "the arrays are of unequal length: 1, 2"),
        (["r_1", "r_2"], ["re"], "the arrays are of unequal length: 2, 1"),
        (["r_1"], [], "the arrays are of unequal length: 1, 0"),
        (["r"] * 1001, ["re"] * 1001, "1001 rows are too many; at most 1000 a call"),
        ([None], ["re"], "every refund id and every gateway reference must be given and printable"),
        ([""], ["re"], "every refund id and every gateway reference must be given and printable"),
        (["r_1"], [None], "every refund id and every gateway reference must be given and printable"),
        (["r_1"], [""], "every refund id and every gateway reference must be given and printable"),
        (["r_1"], [" "], "every refund id and every gateway reference must be given and printable"),
        (["r_1"], ["a\nb"], "every refund id and every gateway reference must be given and printable"),
        (["r_1"], ["x" * 256], "every refund id and every gateway reference must be given and printable"),
    ],
)
def test_malformed_arrays_are_refused(
    refund_ids: Any, gateway_refs: Any, reason: str,
    ledger: Ledger, connection: Connection, token: int, admin: Connection,
) -> None:  # fmt: skip
    claimed(ledger, token, "r_1")
    with refused("LG304", admin) as refusal:
        connection.execute(
            "select * from ledger.confirm_refunds('m_1', %s, %s::text[], %s::text[])", [token, refund_ids, gateway_refs]
        )
    assert refusal.tells(function="confirm_refunds", merchant_id=MERCHANT, token=token, reason=reason)
    assert refusal.message == f"confirm_refunds of m_1 refused: {reason}; nothing was changed"
    assert refusal.hint == "Mend the call. docs/errors.md, LG304, lists the bounds."


@pytest.mark.parametrize("merchant_id", [None, ""])
def test_a_missing_merchant_is_refused(merchant_id: Any, ledger: Ledger, token: int, admin: Connection) -> None:
    with refused("LG304", admin) as refusal:
        ledger.confirm_refunds(merchant_id, token, ["r_1"], ["re_1"])
    assert refusal.detail["reason"] == "merchant_id must be given"


class TestFence(Fenced):
    function = "confirm_refunds"

    def prepare(self, ledger: Ledger, token: int) -> None:
        claimed(ledger, token, "r_1")

    def call(self, ledger: Ledger, token: int) -> object:
        return ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])


def test_a_stale_call_lists_what_is_recorded_and_keeps_the_references_of_the_rest(
    ledger: Ledger, rivals: Ledger, token: int, admin: Connection
) -> None:
    claimed(ledger, token, "r_1", "r_2", "r_3")
    ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_3"], ["re_1", "re_3"])
    newer = activated(rivals, BOB)
    with refused("LG101", admin) as refusal:
        ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_2", "r_3"], ["re_1", "re_2", "re_3"])
    assert refusal.tells(
        reason="superseded", token=token, active=newer, holder=ALICE, active_holder=BOB,
        recorded=["r_1", "r_3"], unrecorded={"r_2": "re_2"},
    )  # fmt: skip
    assert refund(admin, "r_2", "state") == "sending"


@pytest.mark.parametrize(("refund_id", "ref"), [("r_1", "re_other"), ("r_9", "re_1"), ("r_2", "re_2")])
def test_a_stale_token_passes_only_with_what_it_recorded_itself(
    refund_id: str, ref: str, ledger: Ledger, rivals: Ledger, token: int, admin: Connection
) -> None:
    claimed(ledger, token, "r_1", "r_2")
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    newer = activated(rivals, BOB)
    rivals.claim_refund(MERCHANT, "r_2", newer)
    rivals.confirm_refund(MERCHANT, "r_2", newer, "re_2")
    with refused("LG101", admin) as refusal:
        ledger.confirm_refunds(MERCHANT, token, [refund_id], [ref])
    assert refusal.tells(recorded=[], unrecorded={refund_id: ref})


def test_what_an_older_token_recorded_is_not_a_stale_ones_own(ledger: Ledger, token: int, admin: Connection) -> None:
    claimed(ledger, token, "r_1")
    ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])
    stale = activated(ledger, BOB)
    activated(ledger, ALICE)
    with refused("LG101", admin) as refusal:
        ledger.confirm_refunds(MERCHANT, stale, ["r_1"], ["re_1"])
    assert refusal.tells(recorded=[], unrecorded={"r_1": "re_1"})


def test_what_a_stale_token_saw_accepted_is_not_recorded_as_sent(ledger: Ledger, token: int, admin: Connection) -> None:
    in_state("accepted", "r_1", token, ledger, admin)
    activated(ledger, BOB)
    with refused("LG101", admin) as refusal:
        ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_r_1"])
    assert refusal.tells(recorded=[], unrecorded={"r_1": "re_r_1"})


def test_a_stale_token_is_refused_even_with_no_rows(ledger: Ledger, token: int, admin: Connection) -> None:
    activated(ledger, BOB)
    with refused("LG101", admin):
        ledger.confirm_refunds(MERCHANT, token, [], [])


# Which refusal comes first


def test_a_bad_argument_is_told_before_the_new_timeline(ledger: Ledger, token: int, admin: Connection) -> None:
    on_a_new_timeline(admin)
    with refused("LG304", admin):
        ledger.confirm_refunds(MERCHANT, UNDRAWN, ["r_1"], [])


def test_a_new_timeline_is_told_before_a_repetition_is_recognised(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    claimed(ledger, token, "r_1")
    ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])
    on_a_new_timeline(admin)
    with refused("LG106", admin):
        ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])


def test_a_row_tells_the_newer_token_before_the_conflict_and_the_conflict_before_the_final_state(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("returned", "r_1", token, ledger, admin)
    in_state("returned", "r_2", token, ledger, admin)
    as_ledger_fn(admin, "update ledger.refund set fence = fence + 1000 where refund_id = 'r_1'")
    rows = ledger.confirm_refunds(MERCHANT, token, ["r_1", "r_2"], ["re_other", "re_other"])
    assert [row.outcome for row in rows] == ["LG101", "LG303"]
