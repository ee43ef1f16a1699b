from __future__ import annotations

from datetime import timedelta
from typing import Any, LiteralString, cast

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Claim
from tests.functions.fenced import FencedRow
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
    long_ways,
    on_a_new_timeline,
    raised,
    refund,
    refused,
    unchanged,
)

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    return activated(ledger)


def allow(operators: Ledger, max_attempts: int) -> None:
    operators.set_kind("settle", max_attempts=max_attempts, actor="carol", reason="a test")


def first_claimed(admin: Connection, refund_id: str, ago: timedelta) -> None:
    as_ledger_fn(admin, "update ledger.refund set first_claimed_at = now() - %s where refund_id = %s", [ago, refund_id])


# What it does


def test_a_pending_refund_is_claimed_with_all_that_the_gateway_needs(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", "pay_1", "acme", "key_1")
    claim = ledger.claim_refund(MERCHANT, "r_1", token)
    assert claim == Claim(
        MERCHANT, "r_1", 7025, "EUR", "pay_1", "acme", "key_1", 1, "claimed", None, "pending", None,
        refund(admin, "r_1", "first_claimed_at"),
    )  # fmt: skip
    assert refund(admin, "r_1", "state", "fence", "attempts", "maybe_sent", "journal_number") == (
        "sending", token, 1, False, 2,
    )  # fmt: skip
    assert journal(admin, "r_1")[1:] == [("pending", "sending", token, 1, False, None, None, None)]


def test_the_clock_is_the_servers_and_is_read_after_the_lock(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    before = admin.execute("select clock_timestamp()").fetchall()[0][0]
    ledger.claim_refund(MERCHANT, "r_1", token)
    after = admin.execute("select clock_timestamp()").fetchall()[0][0]
    first, changed = refund(admin, "r_1", "first_claimed_at", "changed_at")
    assert before < first == changed < after


def test_the_holders_own_repetition_is_told_to_ask_the_gateway(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    first = ledger.claim_refund(MERCHANT, "r_1", token)
    again = ledger.claim_refund(MERCHANT, "r_1", token)
    assert (again.outcome, again.attempt, again.previous_state, again.previous_token) == (
        "reclaimed", 1, "sending", token,
    )  # fmt: skip
    assert again.first_claimed_at == first.first_claimed_at
    assert refund(admin, "r_1", "state", "attempts", "maybe_sent") == ("sending", 1, True)
    assert journal(admin, "r_1")[2:] == [("sending", "sending", token, 1, True, None, None, None)]


def test_from_then_on_a_repetition_changes_nothing(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    ledger.claim_refund(MERCHANT, "r_1", token)
    with unchanged(admin):
        assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "reclaimed"


@pytest.mark.parametrize("state", ["sending", "unknown"])
def test_what_an_older_token_left_is_taken_over(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_1", token, ledger, admin)
    first_at = refund(admin, "r_1", "first_claimed_at")
    newer = activated(ledger, BOB)
    claim = ledger.claim_refund(MERCHANT, "r_1", newer)
    assert (claim.outcome, claim.attempt, claim.previous_state, claim.previous_token, claim.first_claimed_at) == (
        "taken_over", 2, state, token, first_at,
    )  # fmt: skip
    assert refund(admin, "r_1", "state", "fence", "attempts", "maybe_sent") == ("sending", newer, 2, True)
    assert journal(admin, "r_1")[-1] == (state, "sending", newer, 2, True, None, None, None)


def test_a_released_refund_is_claimed_as_if_for_the_first_time(ledger: Ledger, token: int, admin: Connection) -> None:
    in_state("released", "r_1", token, ledger, admin)
    before = refund(admin, "r_1", "first_claimed_at")
    claim = ledger.claim_refund(MERCHANT, "r_1", token)
    assert (claim.outcome, claim.attempt, claim.previous_state, claim.previous_token) == (
        "claimed", 2, "pending", token,
    )  # fmt: skip
    assert claim.first_claimed_at is not None
    assert claim.first_claimed_at > before
    assert refund(admin, "r_1", "maybe_sent") is False


def test_a_pending_refund_that_may_have_been_sent_counts_as_taken_over(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("released", "r_1", token, ledger, admin)
    as_ledger_fn(admin, "update ledger.refund set maybe_sent = true")
    claim = ledger.claim_refund(MERCHANT, "r_1", token)
    assert (claim.outcome, claim.previous_state) == ("taken_over", "pending")
    assert refund(admin, "r_1", "maybe_sent") is True


@pytest.mark.parametrize("state", ["pending", "released"])
def test_what_nobody_can_have_sent_is_claimed_the_short_way(
    state: str, ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state(state, "r_1", token, ledger, admin)
    claim: LiteralString = "select ledger.claim_refund('m_1', 'r_1', %s)"
    assert long_ways(admin, claim, token) == set()
    assert refund(admin, "r_1", "state") == "sending"
    assert long_ways(admin, claim, token) == {"claim_or_refuse"}


def test_a_pause_of_another_merchant_costs_no_claim_the_long_way(
    ledger: Ledger, operators: Ledger, token: int, admin: Connection
) -> None:
    operators.pause("settle:m_2", actor="carol", reason="a test")
    added(ledger, "r_1")
    assert long_ways(admin, "select ledger.claim_refund('m_1', 'r_1', %s)", token) == set()
    assert refund(admin, "r_1", "state") == "sending"


def test_a_pause_that_ends_between_two_looks_at_it_leaves_an_ordinary_claim(
    ledger: Ledger, operators: Ledger, token: int, admin: Connection
) -> None:
    """The gate has seen it; who would refuse no longer does."""
    added(ledger, "r_1")
    operators.pause("settle", actor="carol", reason="a test")
    admin.execute(
        "create or replace function ledger.check_paused(call jsonb, resource text) returns void "
        "language plpgsql as 'begin end'"
    )
    claim = ledger.claim_refund(MERCHANT, "r_1", token)
    assert (claim.outcome, claim.attempt) == ("claimed", 1)
    assert claim.first_claimed_at == refund(admin, "r_1", "first_claimed_at")
    assert refund(admin, "r_1", "claimed_xid") is not None
    assert journal(admin, "r_1")[-1] == ("pending", "sending", token, 1, False, None, None, None)


def test_attempts_used_up_lead_to_review_and_not_to_an_error(
    ledger: Ledger, operators: Ledger, token: int, admin: Connection
) -> None:
    allow(operators, 1)
    in_state("unknown", "r_1", token, ledger, admin)
    newer = activated(ledger, BOB)
    claim = ledger.claim_refund(MERCHANT, "r_1", newer)
    assert (claim.outcome, claim.reason, claim.attempt, claim.previous_state) == (
        "review", "attempts_used_up", 1, "unknown",
    )  # fmt: skip
    assert refund(admin, "r_1", "state", "fence", "attempts", "settled_at") == ("review", newer, 1, None)
    assert journal(admin, "r_1")[-1] == ("unknown", "review", newer, 1, True, None, None, None)
    assert admin.execute("select reason from ledger.journal where to_state = 'review'").fetchall() == [
        ("attempts_used_up",)
    ]


def test_a_pending_refund_whose_attempts_are_used_up_goes_to_review_too(
    ledger: Ledger, operators: Ledger, token: int, admin: Connection
) -> None:
    allow(operators, 1)
    in_state("released", "r_1", token, ledger, admin)
    assert ledger.claim_refund(MERCHANT, "r_1", token).reason == "attempts_used_up"


def test_attempts_count_claims_and_takeovers_but_not_repetitions(
    ledger: Ledger, operators: Ledger, token: int, admin: Connection
) -> None:
    allow(operators, 2)
    added(ledger, "r_1")
    outcomes = [ledger.claim_refund(MERCHANT, "r_1", token).outcome for _ in range(4)]
    newer = activated(ledger, BOB)
    outcomes += [ledger.claim_refund(MERCHANT, "r_1", newer).outcome for _ in range(2)]
    newest = activated(ledger)
    outcomes.append(ledger.claim_refund(MERCHANT, "r_1", newest).outcome)
    assert outcomes == ["claimed", "reclaimed", "reclaimed", "reclaimed", "taken_over", "reclaimed", "review"]
    assert refund(admin, "r_1", "attempts", "maybe_sent") == (2, True)


def test_a_takeover_takes_the_refund_that_is_named_and_no_other(ledger: Ledger, token: int, admin: Connection) -> None:
    ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", "pay_1", "acme", "key_1")
    added(ledger, "r_2", amount_minor=58)
    added(ledger, "r_1", merchant_id="m_0", amount_minor=58)
    for refund_id in ("r_1", "r_2"):
        ledger.claim_refund(MERCHANT, refund_id, token)
    ledger.claim_refund("m_0", "r_1", activated(ledger, resource="settle:m_0"))
    as_ledger_fn(admin, "update ledger.refund set fence = %s", [token])
    others = "select r from ledger.refund as r where amount_minor = 58 order by merchant_id"
    before = admin.execute(others).fetchall()
    claim = ledger.claim_refund(MERCHANT, "r_1", activated(ledger, BOB))
    assert (claim.outcome, claim.merchant_id, claim.refund_id, claim.amount_minor) == (
        "taken_over", MERCHANT, "r_1", 7025,
    )  # fmt: skip
    assert (claim.currency, claim.payment_ref, claim.gateway, claim.idempotency_key) == (
        "EUR", "pay_1", "acme", "key_1",
    )  # fmt: skip
    assert admin.execute(others).fetchall() == before


@pytest.mark.parametrize(
    ("ago", "outcome"), [(timedelta(hours=22, minutes=59), "taken_over"), (timedelta(hours=23), "review")]
)
def test_what_may_be_out_longer_than_the_key_window_goes_to_review(
    ago: timedelta, outcome: str, ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("sending", "r_1", token, ledger, admin)
    first_claimed(admin, "r_1", ago)
    claim = ledger.claim_refund(MERCHANT, "r_1", activated(ledger, BOB))
    assert (claim.outcome, claim.reason) == (outcome, "key_window_over" if outcome == "review" else None)


def test_the_holders_own_repetition_is_bound_by_the_key_window_too(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("sending", "r_1", token, ledger, admin)
    first_claimed(admin, "r_1", timedelta(hours=24))
    claim = ledger.claim_refund(MERCHANT, "r_1", token)
    assert (claim.outcome, claim.reason) == ("review", "key_window_over")


def test_a_refund_proven_not_sent_has_no_key_that_could_be_forgotten(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("released", "r_1", token, ledger, admin)
    first_claimed(admin, "r_1", timedelta(days=30))
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


def test_a_pending_refund_that_may_have_been_sent_is_bound_by_the_key_window(
    ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state("released", "r_1", token, ledger, admin)
    first_claimed(admin, "r_1", timedelta(days=30))
    as_ledger_fn(admin, "update ledger.refund set maybe_sent = true")
    claim = ledger.claim_refund(MERCHANT, "r_1", token)
    assert (claim.outcome, claim.reason, claim.previous_state) == ("review", "key_window_over", "pending")


def test_a_persons_reason_is_kept_with_the_claim(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    connection = cast("Connection", ledger.connection)
    with connection.transaction():
        connection.execute("set local ledger.actor = 'carol'; set local ledger.reason = 'by hand'")
        ledger.claim_refund(MERCHANT, "r_1", token)
    assert admin.execute("select actor, reason, database_user from ledger.journal where number = 2").fetchall() == [
        ("carol", "by hand", "ledger_worker")
    ]


def test_a_claim_that_rolls_back_was_never_made(ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    connection = cast("Connection", ledger.connection)
    with unchanged(admin), connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, "r_1", token)
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


# What it refuses


@pytest.mark.parametrize(("merchant_id", "refund_id"), [(None, "r_1"), (MERCHANT, None)])
def test_a_null_id_is_refused(merchant_id: Any, refund_id: Any, ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    with refused("LG304", admin) as refusal:
        ledger.claim_refund(merchant_id, refund_id, token)
    assert refusal.tells(
        function="claim_refund", token=token, merchant_id=merchant_id, refund_id=refund_id,
        reason="merchant_id and refund_id must not be null",
    )  # fmt: skip
    assert refusal.message.endswith("must not be null; nothing was changed")
    assert "LG304" in refusal.hint


class TestFence(FencedRow):
    function = "claim_refund"

    def prepare(self, ledger: Ledger, token: int) -> None:
        added(ledger, "r_1")

    def call(self, ledger: Ledger, token: int) -> object:
        return ledger.claim_refund(MERCHANT, "r_1", token)


@pytest.mark.parametrize("refund_id", ["r_9", "", "R_1", "r_1 ", "x" * 1000])
def test_a_refund_that_does_not_exist_is_refused(refund_id: str, ledger: Ledger, token: int, admin: Connection) -> None:
    added(ledger, "r_1")
    with refused("LG201", admin) as refusal:
        ledger.claim_refund(MERCHANT, refund_id, token)
    assert refusal.tells(function="claim_refund", merchant_id=MERCHANT, refund_id=refund_id, token=token)
    assert refusal.message == (f"claim_refund of m_1 {refund_id} refused: there is no such refund; nothing was changed")
    assert refusal.hint.startswith("Check both ids: the merchant comes first.")


@pytest.mark.parametrize("state", ["sent", "failed", "cancelled", "returned"])
def test_a_finished_refund_is_never_claimed_again(state: str, ledger: Ledger, token: int, admin: Connection) -> None:
    in_state(state, "r_1", token, ledger, admin)
    with refused("LG202", admin) as refusal:
        ledger.claim_refund(MERCHANT, "r_1", token)
    assert refusal.tells(
        refund_id="r_1", token=token, state=state, row_token=token, gateway_ref=refund(admin, "r_1", "gateway_ref")
    )
    assert refusal.message.startswith(f"claim_refund of m_1 r_1 refused: the refund is {state} since ")
    assert refusal.hint == "Skip this refund. Another try is a new refund id."


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ("accepted", "The gateway has it. Record its final word with confirm, fail or mark_unknown."),
        ("review", "Skip this refund; a person decides."),
        (
            "unknown",
            "This token recorded the outcome as unknown. Draw and activate a new token, then claim it again.",
        ),
    ],
)
def test_a_refund_that_is_no_claimers_is_refused_with_the_legal_moves(
    state: str, hint: str, ledger: Ledger, token: int, admin: Connection
) -> None:
    in_state(state, "r_1", token, ledger, admin)
    with refused("LG204", admin) as refusal:
        ledger.claim_refund(MERCHANT, "r_1", token)
    listed = admin.execute(
        "select to_state from ledger.transition where from_state = %s and to_state <> 'cancelled' order by 1", [state]
    ).fetchall()  # each of them may have been sent
    assert refusal.tells(refund_id="r_1", state=state, token=token, row_token=token)
    assert [move["to"] for move in refusal.detail["legal"]] == [to for (to,) in listed]
    assert f"a refund that is {state} can't make that move by this call; moves from there: " in refusal.message
    assert refusal.hint == hint


def test_the_legal_moves_say_by_whom(ledger: Ledger, token: int, admin: Connection) -> None:
    in_state("accepted", "r_1", token, ledger, admin)
    with refused("LG204", admin) as refusal:
        ledger.claim_refund(MERCHANT, "r_1", token)
    assert refusal.detail["legal"] == [
        {"to": "failed", "by": ["active token", "person"]},
        {"to": "review", "by": ["active token", "person"]},
        {"to": "sent", "by": ["active token", "person"]},
        {"to": "unknown", "by": ["active token"]},
    ]


# Which refusal comes first


@pytest.mark.parametrize(("merchant_id", "refund_id"), [(None, "r_1"), (MERCHANT, None)])
def test_a_null_id_is_told_before_the_new_timeline(
    merchant_id: str | None, refund_id: str | None, ledger: Ledger, token: int, admin: Connection
) -> None:
    on_a_new_timeline(admin)
    with refused("LG304", admin):
        ledger.claim_refund(cast("str", merchant_id), cast("str", refund_id), token)


def test_the_token_is_judged_before_the_refund_is_looked_for(ledger: Ledger, token: int, admin: Connection) -> None:
    activated(ledger, BOB)
    with refused("LG101", admin):
        ledger.claim_refund(MERCHANT, "r_9", token)
    with refused("LG102", admin):
        ledger.claim_refund(MERCHANT, "r_9", UNDRAWN)


def test_a_newer_token_on_the_row_is_told_before_its_final_state(ledger: Ledger, token: int, admin: Connection) -> None:
    in_state("sent", "r_1", token, ledger, admin)
    as_ledger_fn(admin, "update ledger.refund set fence = fence + 1000")
    with refused("LG101", admin) as refusal:
        ledger.claim_refund(MERCHANT, "r_1", token)
    assert refusal.detail["reason"] == "row"


def test_each_refusal_has_a_number_of_its_own(ledger: Ledger, token: int, admin: Connection) -> None:
    numbers = []
    for _ in range(2):
        with refused("LG201", admin) as refusal:
            ledger.claim_refund(MERCHANT, "r_9", token)
        numbers.append(refusal.detail["refusal"])
    assert numbers[1] == numbers[0] + 1


def test_the_holder_that_is_named_is_who_activated_the_token(ledger: Ledger, token: int, admin: Connection) -> None:
    """Whatever else is told of that token, or of that number elsewhere."""
    as_ledger_fn(
        admin,
        "insert into ledger.event (event, resource, token, holder) "
        "values ('session_ended', 'settle:m_1', %(token)s, 'x/1/y'), ('activated', 'settle:m_2', %(token)s, 'x/1/y')",
        {"token": token},
    )
    activated(ledger, BOB)
    with raised("LG101") as refusal:
        ledger.claim_refund(MERCHANT, "r_1", token)
    assert refusal.tells(holder=ALICE)


@pytest.mark.parametrize(("seconds", "outcome"), [(-1, "taken_over"), (0, "key_window_over"), (1, "key_window_over")])
def test_the_key_window_is_over_at_its_very_end(seconds: int, outcome: str, admin: Connection) -> None:
    (told,) = admin.execute(
        "select ledger.claim_outcome('sending', 1, false, 1, t, 2, 5, '1 hour', t + interval '1 hour' + %s) "
        "from (select now()) as clock (t)",
        [timedelta(seconds=seconds)],
    ).fetchall()
    assert told == (outcome,)
