"""What must hold after every step, whatever was called. Each rule raises AssertionError that says what broke it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.proof.properties.world import OF_POSTGRES, Answer, Session, State, World

FINAL = {"sent", "failed", "cancelled", "returned"}
RESERVED, CLEARING, AVAILABLE = "refund_reserved", "gateway_clearing", "merchant_available"
Entry = Mapping[str, Any]


def holds(world: World, session: Session, before: State, answer: Answer, after: State) -> None:
    """All rules but verify's, which is asked at the end."""
    nothing_else_is_raised(world, answer)
    if answer.code is not None:
        a_refusal_changes_nothing_and_is_counted(answer, before, after)
    elif session.is_inside:
        nobody_sees_what_is_not_committed(before, after)
    if after.digest == before.digest:
        return
    fences_never_fall(before, after)
    entries_follow_each_other(after)
    the_journal_grows_legally(world, before, after)
    the_journal_says_what_the_rows_say(after)
    money_is_where_the_states_say(world, after)


def nothing_else_is_raised(world: World, answer: Answer) -> None:
    documented = answer.code is None or answer.code.startswith("LG") or answer.code in OF_POSTGRES
    assert documented, f"an undocumented error, {answer.code}: {answer.message}"


def a_refusal_changes_nothing_and_is_counted(answer: Answer, before: State, after: State) -> None:
    assert after.digest == before.digest, f"refused with {answer.code}, and yet something changed"
    if answer.code and answer.code.startswith("LG"):
        assert after.refusals > before.refusals, f"{answer.code} was not counted"


def nobody_sees_what_is_not_committed(before: State, after: State) -> None:
    assert after.digest == before.digest, "an open transaction is seen by others"


def fences_never_fall(before: State, after: State) -> None:
    for resource, (active, barrier) in before.fences.items():
        now = after.fences.get(resource, (0, 0))
        assert min(now[0] - active, now[1] - barrier) >= 0, (
            f"the fence of {resource} fell from {active, barrier} to {now}"
        )


def entries_follow_each_other(after: State) -> None:
    last: dict[tuple[str, str], Entry] = {}
    for entry in after.journal:
        refund = entry["merchant_id"], entry["refund_id"]
        previous = last.get(refund)
        assert entry["number"] == (previous["number"] + 1 if previous else 1), f"a gap before {entry}"
        assert entry["from_state"] == (previous["to_state"] if previous else None), (
            f"{entry} does not follow {previous}"
        )
        if previous:
            assert entry["maybe_sent"] >= previous["maybe_sent"], f"{entry} forgets that it may have been sent"
        last[refund] = entry


def the_journal_grows_legally(world: World, before: State, after: State) -> None:
    known = {(entry["merchant_id"], entry["refund_id"], entry["number"]): entry for entry in before.journal}
    archived = {(merchant_id, refund_id) for merchant_id, refund_id, _ in known} - {*after.refunds}
    kept = {(entry["merchant_id"], entry["refund_id"], entry["number"]) for entry in after.journal}
    for key, entry in known.items():
        assert key in kept or key[:2] in archived, f"{entry} is gone"
    for merchant_id, refund_id in archived:
        assert before.refunds[merchant_id, refund_id]["state"] in FINAL, f"{refund_id} was archived while it was open"
    for entry in after.journal:
        if (entry["merchant_id"], entry["refund_id"], entry["number"]) not in known:
            _is_legal(world, entry, after)


def _is_legal(world: World, entry: Entry, after: State) -> None:
    move = entry["from_state"], entry["to_state"]
    if move[0] == move[1] and entry["actor"] is not None:
        return  # a recovery marks a refund and leaves its state
    legal = TRANSITIONS.get(move)
    assert legal, f"{move} is no legal transition: {entry}"
    assert (entry["debit"], entry["credit"]) == (legal["debit"], legal["credit"]), f"the wrong accounts: {entry}"
    if entry["token"] is None:
        assert legal["person"], f"{move} without a token: {entry}"
    else:
        active = after.fences.get(f"settle:{entry['merchant_id']}", (0, 0))[0]
        assert legal["on_claim"] or legal["own_token"] or legal["active_token"], f"{move} under a token: {entry}"
        assert entry["token"] == active, f"written under {entry['token']} while {active} is active: {entry}"
    if move[0] == "sending" and move[1] in {"unknown", "accepted", "review"}:
        assert entry["maybe_sent"], f"{move} of one that is out, and isn't marked: {entry}"
    if move in {("sending", "pending"), ("pending", "cancelled"), ("review", "cancelled")}:
        assert not entry["maybe_sent"], f"{move} of one that may have been sent: {entry}"


def the_journal_says_what_the_rows_say(after: State) -> None:
    last = {(entry["merchant_id"], entry["refund_id"]): entry for entry in after.journal}
    assert last.keys() == after.refunds.keys(), "refunds without a journal, or a journal without its refund"
    for refund, row in after.refunds.items():
        entry = last[refund]
        told = (entry["number"], entry["to_state"], entry["maybe_sent"], entry["attempts"])
        assert told == (row["journal_number"], row["state"], row["maybe_sent"], row["attempts"]), (
            f"{entry} is not {row}"
        )
        assert (row["settled_at"] is not None) == (row["state"] in FINAL), f"settled_at of {row}"
        assert row["state"] != "sent" or row["gateway_ref"], f"sent without a reference: {row}"
        assert row["state"] != "sending" or row["fence"] > 0, f"sending without a token: {row}"


def money_is_where_the_states_say(world: World, after: State) -> None:
    booked: defaultdict[tuple[str, str], int] = defaultdict(int)
    for entry in after.journal:
        if entry["amount_minor"] is not None:
            booked[entry["merchant_id"], entry["debit"]] -= entry["amount_minor"]
            booked[entry["merchant_id"], entry["credit"]] += entry["amount_minor"]
    expected: defaultdict[tuple[str, str], int] = defaultdict(int)
    for (merchant_id, _), row in after.refunds.items():
        account = {"sent": CLEARING, "failed": AVAILABLE, "cancelled": AVAILABLE, "returned": AVAILABLE}
        expected[merchant_id, AVAILABLE] -= row["amount_minor"]
        expected[merchant_id, account.get(row["state"], RESERVED)] += row["amount_minor"]
    assert {key: sum_ for key, sum_ in booked.items() if sum_} == {key: sum_ for key, sum_ in expected.items() if sum_}


def a_first_claim_is_of_what_nobody_sent(session: Session, answer: Answer, before: State) -> None:
    """`claimed` tells a worker to send without asking. Only what is committed is looked at."""
    for row in answer.rows:
        was = before.refunds.get((row["merchant_id"], row["refund_id"]))
        if row["outcome"] == "claimed" and was is not None and not session.is_inside:
            assert (was["state"], was["maybe_sent"]) == ("pending", False), f"claimed, and it was {was}"


def only_inside_a_transaction(session: Session) -> None:
    """Outside of one no token can have been presented."""
    assert session.is_inside, "a protected table was written without a token"


def verify_finds_nothing(world: World) -> None:
    found = world.find("select * from ledger.verify()")
    assert not found, f"verify: {found}"


TRANSITIONS: dict[tuple[str | None, str], Entry] = {}


def learn_transitions(world: World) -> None:
    """The legal moves are those of the table; it is the same in every database of a template."""
    if not TRANSITIONS:
        TRANSITIONS.update(
            {(row["from_state"], row["to_state"]): row for row in world.find("select * from ledger.transition")}
        )
