"""What holds for every function that settles one claimed refund: its repetition, its arguments, its refusals."""

from __future__ import annotations

import json
from typing import Any, cast

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Move
from tests.functions.fenced import FencedRow
from tests.story import (
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


class Settles(FencedRow):
    """To inherit: the function, the text it takes (a reason or a reference), and the outcome of its repetition."""

    text = ""
    repeated = ""
    state = ""

    def call(self, ledger: Ledger, token: int) -> Move:
        return self.settle(ledger, "r_1", token)

    def settle(self, ledger: Ledger, refund_id: str, token: int, merchant_id: str = MERCHANT) -> Move:
        text = self.text.replace("r_1", str(refund_id))
        move: Move = getattr(ledger, self.function)(merchant_id, refund_id, token, text)
        return move

    def with_evidence(self, connection: Connection, token: int, evidence: str) -> None:
        connection.execute(
            f"select * from ledger.{self.function}('m_1', 'r_1', %s, %s, %s::jsonb)".encode(),
            [token, self.text, evidence],
        )

    # What it does

    def test_its_own_repetition_changes_nothing_and_says_so(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        first = self.call(ledger, token)
        with unchanged(admin):
            again = self.call(ledger, token)
        assert (again.outcome, again.state, again.previous_state) == (self.repeated, first.state, first.state)
        assert (again.token, again.gateway_ref, again.changed_at) == (token, first.gateway_ref, first.changed_at)

    def test_its_own_repetition_is_recognised_after_a_newer_token(
        self, ledger: Ledger, rivals: Ledger, admin: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        self.call(ledger, token)
        activated(rivals, BOB)
        added(ledger, "r_1", merchant_id="m_0")  # whose row would come first
        added(ledger, "r_0")
        with unchanged(admin):
            assert self.call(ledger, token).outcome == self.repeated

    def test_a_lease_that_is_over_does_not_matter_while_the_token_is_active(
        self, ledger: Ledger, admin: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        as_ledger_fn(admin, "update ledger.fence set activated_at = now() - interval '1 day'")
        assert self.call(ledger, token).state == self.state

    def test_the_evidence_is_kept_with_the_entry(
        self, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        self.with_evidence(connection, token, '{"http": 200, "body": {"id": "x"}, "none": null}')
        kept = admin.execute("select to_state, evidence from ledger.journal order by number desc limit 1").fetchall()
        assert kept == [(self.state, {"http": 200, "body": {"id": "x"}, "none": None})]

    def test_evidence_may_have_64_kib(self, ledger: Ledger, connection: Connection, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        self.with_evidence(connection, token, json.dumps({"a": "x" * (65536 - len('{"a": ""}'))}))
        assert refund(admin, "r_1", "state") == self.state

    def test_what_rolls_back_was_never_recorded(
        self, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        with unchanged(admin), connection.transaction(force_rollback=True):
            self.call(ledger, token)
        assert self.call(ledger, token).outcome != self.repeated

    # What it refuses

    @pytest.mark.parametrize(("merchant_id", "refund_id"), [(None, "r_1"), ("", "r_1"), ("m_1", None), ("m_1", "")])
    def test_a_missing_id_is_refused(self, merchant_id: Any, refund_id: Any, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        with refused("LG304", admin) as refusal:
            self.settle(ledger, refund_id, token, merchant_id)
        assert refusal.tells(
            function=self.function, merchant_id=merchant_id, refund_id=refund_id, token=token,
            reason="merchant_id and refund_id must be given",
        )  # fmt: skip
        assert refusal.message.endswith("refused: merchant_id and refund_id must be given; nothing was changed")
        assert refusal.hint == "Mend the call. docs/errors.md, LG304, lists the bounds."

    @pytest.mark.parametrize("evidence", ["[]", '["amount_minor"]', '"text"', "1", "true", "null"])
    def test_evidence_that_is_no_object_is_refused(
        self, evidence: str, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        with refused("LG304", admin) as refusal:
            self.with_evidence(connection, token, evidence)
        assert refusal.tells(function=self.function, refund_id="r_1", reason="evidence is a JSON object")

    def test_evidence_beyond_64_kib_is_refused(self, ledger: Ledger, connection: Connection, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        most = "x" * (65536 - len(json.dumps({"a": ""})))
        with refused("LG304", admin) as refusal:
            self.with_evidence(connection, token, json.dumps({"a": most + "x"}))
        assert refusal.detail["reason"] == "evidence is at most 64 KiB"
        self.with_evidence(connection, token, json.dumps({"a": most}))

    def test_token_zero_of_a_refund_never_claimed_is_no_repetition(self, ledger: Ledger, admin: Connection) -> None:
        activated(ledger)
        added(ledger, "r_1")
        with refused("LG102", admin):
            self.call(ledger, 0)

    @pytest.mark.parametrize("refund_id", ["r_9", "R_1", "r_1 ", "x" * 150])
    def test_a_refund_that_does_not_exist_is_refused(self, refund_id: str, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        with refused("LG201", admin) as refusal:
            self.settle(ledger, refund_id, token)
        assert refusal.tells(function=self.function, merchant_id=MERCHANT, refund_id=refund_id, token=token)
        assert refusal.message == (
            f"{self.function} of m_1 {refund_id} refused: there is no such refund; nothing was changed"
        )
        assert refusal.hint.startswith("Check both ids: the merchant comes first.")

    def test_a_refund_that_is_finished_otherwise_is_refused(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        for state in sorted({"sent", "failed", "cancelled", "returned"} - {self.state}):
            refund_id = f"r_{state}"
            in_state(state, refund_id, token, ledger, admin)
            with refused("LG202", admin) as refusal:
                self.settle(ledger, refund_id, token)
            assert refusal.tells(function=self.function, refund_id=refund_id, token=token, state=state, row_token=token)
            assert refusal.message.startswith(
                f"{self.function} of m_1 {refund_id} refused: the refund is {state} since "
            )
            assert refusal.hint == "Skip this refund. Another try is a new refund id."

    @pytest.mark.parametrize("state", ["pending", "sending", "unknown", "review"])
    def test_a_refund_that_this_token_has_not_claimed_is_refused(
        self, state: str, ledger: Ledger, admin: Connection
    ) -> None:
        old = activated(ledger)
        in_state(state, "r_1", old, ledger, admin)
        row_token = refund(admin, "r_1", "fence")
        token = activated(ledger, BOB)
        with refused("LG203", admin) as refusal:
            self.call(ledger, token)
        assert refusal.tells(
            function=self.function, refund_id="r_1", token=token, reason="not_claimed", state=state, row_token=row_token
        )
        assert refusal.message == (
            f"{self.function} of m_1 r_1 refused: the refund is {state} under token {row_token}, "
            f"not claimed under {token}; nothing was changed"
        )
        assert refusal.hint == "Skip this refund, or claim it first with ledger.claim_refund(...)."

    # Which refusal comes first

    def test_a_bad_argument_is_told_before_the_new_timeline(
        self, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        self.prepare(ledger, activated(ledger))
        on_a_new_timeline(admin)
        with refused("LG304", admin):
            self.with_evidence(connection, UNDRAWN, "[]")

    @pytest.mark.parametrize(("merchant_id", "refund_id"), [(None, "r_1"), ("", "r_1"), ("m_1", None), ("m_1", "")])
    def test_a_missing_id_is_told_before_the_new_timeline(
        self, merchant_id: Any, refund_id: Any, ledger: Ledger, admin: Connection
    ) -> None:
        token = activated(ledger)
        on_a_new_timeline(admin)
        with refused("LG304", admin):
            self.settle(ledger, refund_id, token, merchant_id)

    def test_a_new_timeline_is_told_before_a_repetition_is_recognised(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        self.call(ledger, token)
        on_a_new_timeline(admin)
        with refused("LG106", admin):
            self.call(ledger, token)

    def test_the_token_is_judged_before_the_refund_is_looked_for(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        activated(ledger, BOB)
        for number, code in [(token, "LG101"), (UNDRAWN, "LG102"), (cast("int", None), "LG102")]:
            with refused(code, admin):
                self.settle(ledger, "r_9", number)

    def test_a_newer_token_on_the_row_is_told_before_its_state(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        in_state("cancelled", "r_1", token, ledger, admin)
        as_ledger_fn(admin, "update ledger.refund set fence = fence + 1000")
        with refused("LG101", admin) as refusal:
            self.call(ledger, token)
        assert refusal.detail["reason"] == "row"


class NeedsReason(Settles):
    """The same, for those that take a reason."""

    @pytest.mark.parametrize("reason", [None, "", "  "])
    def test_a_missing_reason_is_refused(self, reason: Any, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        with refused("LG304", admin) as refusal:
            getattr(ledger, self.function)(MERCHANT, "r_1", token, reason)
        assert refusal.tells(function=self.function, refund_id="r_1", reason="a reason is needed")

    def test_the_reason_is_kept_with_the_entry(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        assert self.call(ledger, token).reason == self.text
        kept = admin.execute("select to_state, reason from ledger.journal order by number desc limit 1").fetchall()
        assert kept == [(self.state, self.text)]


class NeedsRef(Settles):
    """The same, for those that take the gateway's reference."""

    @pytest.mark.parametrize("gateway_ref", [None, "", " ", "x" * 256, "a\nb", "a\x1f"])
    def test_a_malformed_reference_is_refused(self, gateway_ref: Any, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        with refused("LG304", admin) as refusal:
            getattr(ledger, self.function)(MERCHANT, "r_1", token, gateway_ref)
        assert refusal.tells(
            function=self.function, refund_id="r_1", gateway_ref=gateway_ref,
            reason="a gateway reference is printable, 1 to 255 characters",
        )  # fmt: skip

    @pytest.mark.parametrize("gateway_ref", ["x", "x" * 255, "re 1/ü"])
    def test_a_reference_up_to_its_bounds_is_kept(self, gateway_ref: str, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        getattr(ledger, self.function)(MERCHANT, "r_1", token, gateway_ref)
        assert refund(admin, "r_1", "gateway_ref") == gateway_ref
        kept = admin.execute("select gateway_ref from ledger.journal order by number desc limit 1").fetchall()
        assert kept == [(gateway_ref,)]

    @pytest.mark.parametrize("state", ["sent", "accepted", "returned"])
    @pytest.mark.parametrize("who", ["own", "other"])
    def test_another_reference_than_the_recorded_one_is_refused(
        self, who: str, state: str, ledger: Ledger, admin: Connection
    ) -> None:
        own = activated(ledger)
        in_state(state, "r_1", own, ledger, admin)
        token = own if who == "own" else activated(ledger, BOB)
        with refused("LG303", admin) as refusal:
            getattr(ledger, self.function)(MERCHANT, "r_1", token, "re_other")
        assert refusal.tells(
            function=self.function, refund_id="r_1", token=token, gateway_ref="re_other",
            recorded_gateway_ref="re_r_1", state=state, row_token=own,
        )  # fmt: skip
        assert refusal.message == (
            f"{self.function} of m_1 r_1 refused: it is recorded as {state} under gateway reference re_r_1, "
            "not re_other; nothing was changed"
        )
        assert refusal.hint.startswith("Two references may mean two movements of money.")

    def test_what_was_accepted_once_keeps_its_reference_through_a_takeover(
        self, ledger: Ledger, admin: Connection
    ) -> None:
        own = activated(ledger)
        in_state("accepted", "r_1", own, ledger, admin)
        ledger.mark_unknown(MERCHANT, "r_1", own, "no final word")
        token = activated(ledger, BOB)
        assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "taken_over"
        with refused("LG303", admin) as refusal:
            getattr(ledger, self.function)(MERCHANT, "r_1", token, "re_other")
        assert refusal.tells(state="sending", recorded_gateway_ref="re_r_1", gateway_ref="re_other")
        assert getattr(ledger, self.function)(MERCHANT, "r_1", token, "re_r_1").state == self.state

    def test_a_conflict_is_told_before_the_claim_is_looked_at(self, ledger: Ledger, admin: Connection) -> None:
        own = activated(ledger)
        in_state("accepted", "r_1", own, ledger, admin)
        ledger.mark_unknown(MERCHANT, "r_1", own, "no final word")
        ledger.claim_refund(MERCHANT, "r_1", activated(ledger, BOB))
        token = activated(ledger)
        with refused("LG303", admin):
            getattr(ledger, self.function)(MERCHANT, "r_1", token, "re_other")
        with refused("LG203", admin):
            getattr(ledger, self.function)(MERCHANT, "r_1", token, "re_r_1")

    def test_a_reference_that_came_with_a_takeover_is_no_repetition_for_a_stale_token(
        self, ledger: Ledger, admin: Connection
    ) -> None:
        own = activated(ledger)
        in_state("accepted", "r_1", own, ledger, admin)
        ledger.mark_unknown(MERCHANT, "r_1", own, "no final word")
        token = activated(ledger, BOB)
        ledger.claim_refund(MERCHANT, "r_1", token)
        activated(ledger)
        with refused("LG101", admin):
            getattr(ledger, self.function)(MERCHANT, "r_1", token, "re_r_1")

    def test_another_reference_is_no_repetition_for_a_stale_token(
        self, ledger: Ledger, rivals: Ledger, admin: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        self.call(ledger, token)
        activated(rivals, BOB)
        with refused("LG101", admin):
            getattr(ledger, self.function)(MERCHANT, "r_1", token, "re_other")


class NeedsCommittedClaim(Settles):
    """The same, for those that record what a gateway said: the claim must have been durable before."""

    def test_a_claim_of_this_same_transaction_is_refused(
        self, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        token = activated(ledger)
        added(ledger, "r_1")
        with refused("LG203", admin) as refusal, connection.transaction():
            ledger.claim_refund(MERCHANT, "r_1", token)
            self.call(ledger, token)
        assert refusal.tells(
            function=self.function, refund_id="r_1", token=token, reason="claim_not_committed",
            state="sending", row_token=token,
        )  # fmt: skip
        assert "its claim is part of this same transaction" in refusal.message
        assert refusal.message.endswith("nothing was changed")
        assert refusal.hint == "Commit the claim, call the gateway, then confirm in a transaction of its own."

    def test_a_savepoint_does_not_make_the_claim_durable(
        self, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        token = activated(ledger)
        added(ledger, "r_1")
        with refused("LG203", admin) as refusal, connection.transaction():
            with connection.transaction():
                ledger.claim_refund(MERCHANT, "r_1", token)
            with connection.transaction():
                self.call(ledger, token)
        assert refusal.detail["reason"] == "claim_not_committed"

    def test_repeating_the_claim_does_not_make_it_durable(
        self, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        token = activated(ledger)
        added(ledger, "r_1")
        with refused("LG203", admin) as refusal, connection.transaction():
            ledger.claim_refund(MERCHANT, "r_1", token)
            ledger.claim_refund(MERCHANT, "r_1", token)
            self.call(ledger, token)
        assert refusal.detail["reason"] == "claim_not_committed"

    def test_a_committed_claim_may_be_repeated_in_the_same_transaction(
        self, ledger: Ledger, connection: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        with connection.transaction():
            assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "reclaimed"
            assert self.call(ledger, token).state == self.state

    def test_a_takeover_may_share_the_transaction_for_its_first_claim_was_durable(
        self, ledger: Ledger, connection: Connection
    ) -> None:
        self.prepare(ledger, activated(ledger))
        token = activated(ledger, BOB)
        with connection.transaction():
            assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "taken_over"
            assert self.call(ledger, token).state == self.state


def last_entry(admin: Connection, refund_id: str = "r_1") -> tuple[Any, ...]:
    """The newest journal entry."""
    return journal(admin, refund_id)[-1]
