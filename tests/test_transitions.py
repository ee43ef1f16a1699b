"""The table `transition` against what the calls under a token really do, and what each of them says in each state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.errors import Refused
from ledger.records import Claim, Move
from tests.story import ALICE, BOB, MERCHANT, activated, as_ledger_fn, in_state

Connection = psycopg.Connection[Any]
Call = Callable[[Ledger, str, int], Claim | Move]

STATES = ["pending", "sending", "sent", "failed", "unknown", "accepted", "review", "cancelled", "returned"]
ROWS = ["pending", "released", *STATES[1:]]

CALLS: dict[str, Call] = {
    "claim": lambda ledger, refund_id, token: ledger.claim_refund(MERCHANT, refund_id, token),
    "confirm": lambda ledger, refund_id, token: ledger.confirm_refund(MERCHANT, refund_id, token, f"re_{refund_id}"),
    "fail": lambda ledger, refund_id, token: ledger.fail_refund(MERCHANT, refund_id, token, "card closed"),
    "release": lambda ledger, refund_id, token: ledger.release_refund(MERCHANT, refund_id, token, "not sent"),
    "unknown": lambda ledger, refund_id, token: ledger.mark_unknown(MERCHANT, refund_id, token, "timeout"),
    "accept": lambda ledger, refund_id, token: ledger.accept_refund(MERCHANT, refund_id, token, f"re_{refund_id}"),
}

# The complete answers. `released` is pending again, under the token that released it; references are the recorded ones.
UNDER_ITS_OWN_ACTIVE_TOKEN = """
             claim       confirm            fail            release           unknown          accept
pending      claimed     LG203              LG203           LG203             LG203            LG203
released     claimed     LG203              LG203           already_released  LG203            LG203
sending      reclaimed   confirmed          failed          released          unknown          accepted
unknown      LG204       LG203              LG203           already_unknown   already_unknown  LG203
accepted     LG204       confirmed          failed          LG203             unknown          already_accepted
review       LG204       review             LG203           LG203             LG203            LG203
sent         LG202       already_confirmed  LG202           LG202             LG202            LG202
failed       LG202       LG202              already_failed  LG202             LG202            LG202
cancelled    LG202       LG202              LG202           LG202             LG202            LG202
returned     LG202       LG202              LG202           LG202             LG202            LG202
"""
UNDER_ANOTHER_ACTIVE_TOKEN = """
             claim       confirm            fail            release           unknown          accept
pending      claimed     LG203              LG203           LG203             LG203            LG203
released     claimed     LG203              LG203           LG203             LG203            LG203
sending      taken_over  LG203              LG203           LG203             LG203            LG203
unknown      taken_over  LG203              LG203           LG203             LG203            LG203
accepted     LG204       confirmed          failed          LG203             unknown          LG203
review       LG204       LG203              LG203           LG203             LG203            LG203
sent         LG202       already_confirmed  LG202           LG202             LG202            LG202
failed       LG202       LG202              LG202           LG202             LG202            LG202
cancelled    LG202       LG202              LG202           LG202             LG202            LG202
returned     LG202       LG202              LG202           LG202             LG202            LG202
"""
UNDER_ITS_OWN_TOKEN_AFTER_A_NEWER_ONE = """
             claim       confirm            fail            release           unknown          accept
pending      LG101       LG101              LG101           LG101             LG101            LG101
released     LG101       LG101              LG101           already_released  LG101            LG101
sending      LG101       LG101              LG101           LG101             LG101            LG101
unknown      LG101       LG101              LG101           already_unknown   already_unknown  LG101
accepted     LG101       LG101              LG101           LG101             LG101            already_accepted
review       LG101       review             LG101           LG101             LG101            LG101
sent         LG101       already_confirmed  LG101           LG101             LG101            LG101
failed       LG101       LG101              already_failed  LG101             LG101            LG101
cancelled    LG101       LG101              LG101           LG101             LG101            LG101
returned     LG101       LG101              LG101           LG101             LG101            LG101
"""


def parsed(table: str) -> dict[tuple[str, str], str]:
    head, *lines = table.strip("\n").splitlines()
    return {
        (line.split()[0], call): answer
        for line in lines
        for call, answer in zip(head.split(), line.split()[1:], strict=True)
    }


def shown(answers: dict[tuple[str, str], str]) -> str:
    """The same as text, so that what differs can be read."""
    return "\n".join(" ".join([row, *(answers[row, call] for call in CALLS)]) for row in ROWS)


def answer(connection: Connection, call: Call, refund_id: str, token: int) -> tuple[str, str | None]:
    """The outcome or the code of a call, and the state that it led to. It leaves nothing behind."""
    with connection.transaction(force_rollback=True):
        try:
            with connection.transaction():
                made = call(Ledger(connection), refund_id, token)
        except Refused as refusal:
            return refusal.code, None
        if isinstance(made, Move):
            return made.outcome, made.state
        return made.outcome, "review" if made.outcome == "review" else "sending"


def in_every_state(ledger: Ledger, admin: Connection) -> int:
    token = activated(ledger, ALICE)
    for row in ROWS:
        in_state(row, f"r_{row}", token, ledger, admin)
    return token


@pytest.mark.parametrize(
    ("table", "brings_own", "newer_is_active"),
    [
        (UNDER_ITS_OWN_ACTIVE_TOKEN, True, False),
        (UNDER_ANOTHER_ACTIVE_TOKEN, False, True),
        (UNDER_ITS_OWN_TOKEN_AFTER_A_NEWER_ONE, True, True),
    ],
    ids=["own", "other", "superseded"],
)
def test_every_call_in_every_state_answers_as_the_table_says(
    table: str, brings_own: bool, newer_is_active: bool, ledger: Ledger, connection: Connection, admin: Connection
) -> None:
    own = in_every_state(ledger, admin)
    newer = activated(ledger, BOB) if newer_is_active else own
    token = own if brings_own else newer
    answers = {
        (row, name): answer(connection, call, f"r_{row}", token)[0] for row in ROWS for name, call in CALLS.items()
    }
    assert shown(answers) == shown(parsed(table))


def test_the_moves_that_happen_are_the_moves_that_are_listed(
    ledger: Ledger, connection: Connection, admin: Connection
) -> None:
    disagreeing: Call = lambda ledger, refund_id, token: ledger.confirm_refund(  # noqa: E731
        MERCHANT, refund_id, token, f"re_{refund_id}", {"currency": "USD"}
    )
    settling = {**CALLS, "disagree": disagreeing}
    claim = settling.pop("claim")
    own = in_every_state(ledger, admin)

    def reached(call: Call, row: str, token: int) -> set[tuple[str, str]]:
        outcome, state = answer(connection, call, f"r_{row}", token)
        came_from = "pending" if row == "released" else row
        # A review that is only told again, and what was recorded before, are no moves.
        if state is None or outcome.startswith("already") or came_from == state == "review":
            return set()
        return {(came_from, state)}

    by_claim: set[tuple[str, str]] = set()
    by_own: set[tuple[str, str]] = set()
    by_any: set[tuple[str, str]] = set()

    def look(token: int, into: set[tuple[str, str]]) -> None:
        for row in ROWS:
            by_claim.update(reached(claim, row, token))
            for call in settling.values():
                into.update(reached(call, row, token))

    look(own, by_own)
    newer = activated(ledger, BOB)
    look(newer, by_any)
    # Where the attempts are used up, a claim leads elsewhere; where it was sent before, a release does.
    as_ledger_fn(admin, "update ledger.fence set max_attempts = 1")
    for row in ROWS:
        by_claim |= reached(claim, row, newer)
    as_ledger_fn(admin, "update ledger.refund set fence = %s, maybe_sent = true where state = 'sending'", [newer])
    by_own |= reached(settling["release"], "sending", newer)

    def listed(by: str) -> set[tuple[str, str]]:
        return set(
            admin.execute(
                f"select from_state, to_state from ledger.transition where {by} and from_state is not null".encode()
            ).fetchall()
        )

    assert by_claim == listed("on_claim")
    assert by_own - listed("active_token") == listed("own_token")
    assert by_any == listed("active_token")


def test_no_pair_of_states_beyond_the_listed_ones_can_be_written(
    ledger: Ledger, connection: Connection, admin: Connection
) -> None:
    token = in_every_state(ledger, admin)
    legal = set(admin.execute("select from_state, to_state from ledger.transition").fetchall())
    for row in STATES:
        for to_state in STATES:
            code = None
            try:
                with admin.transaction(force_rollback=True):
                    admin.execute("set local role ledger_fn")
                    admin.execute(
                        "select ledger.move_refund("
                        "jsonb_build_object('function', 'test', 'merchant_id', 'm_1', 'token', %s::bigint), "
                        "r, %s, 'moved', 're', 'why', null) from ledger.refund as r where refund_id = %s",
                        [token, to_state, "r_released" if row == "pending" else f"r_{row}"],
                    )
            except psycopg.Error as error:
                code = error.sqlstate
            assert (code is None) == ((row, to_state) in legal), (row, to_state, code)
            assert code in {None, "LG204"}


def test_every_state_is_reached_and_only_final_ones_are_left_by_no_token(admin: Connection) -> None:
    reached = {to for (to,) in admin.execute("select distinct to_state from ledger.transition").fetchall()}
    left = {
        state
        for (state,) in admin.execute(
            "select distinct from_state from ledger.transition where on_claim or own_token or active_token"
        ).fetchall()
    }
    assert reached == set(STATES)
    assert left == {"pending", "sending", "unknown", "accepted"}
    assert "sent" not in {
        state
        for (state,) in admin.execute(
            "select from_state from ledger.transition where to_state <> 'returned'"
        ).fetchall()
    }


def test_money_moves_only_between_the_accounts_that_the_states_stand_for(admin: Connection) -> None:
    account = {
        None: "merchant_available", "sent": "gateway_clearing",
        "failed": "merchant_available", "cancelled": "merchant_available", "returned": "merchant_available",
    }  # fmt: skip
    for from_state, to_state, debit, credit in admin.execute(
        "select from_state, to_state, debit, credit from ledger.transition"
    ).fetchall():
        before = account.get(from_state, "refund_reserved")
        after = account.get(to_state, "refund_reserved")
        assert (debit, credit) == ((None, None) if before == after else (before, after)), (from_state, to_state)
