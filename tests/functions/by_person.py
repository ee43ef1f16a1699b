"""What holds for every move that a person makes: who and why, evidence, repetition, refusals, and what is recorded."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
import pytest

from ledger.client import Ledger
from ledger.records import Move
from tests.conftest import Connect
from tests.story import (
    MERCHANT,
    Connection,
    activated,
    added,
    balanced,
    in_background,
    in_state,
    is_waiting,
    journal,
    on_a_new_timeline,
    raised,
    refund,
    refused,
    unchanged,
    until,
)

WHO: dict[str, Any] = {"actor": "carol", "reason": "ticket 91"}
STATES = {"pending", "sending", "unknown", "accepted", "review", "sent", "failed", "cancelled", "returned"}
FINAL = {"sent", "failed", "cancelled", "returned"}


class MovedByPerson:
    """A function by which a person moves a refund to one state."""

    function: ClassVar[str]
    to_state: ClassVar[str]
    outcome: ClassVar[str]
    already: ClassVar[str]
    starts_from: ClassVar[frozenset[str]]
    arguments: ClassVar[dict[str, Any]] = {}
    evidence: ClassVar[dict[str, Any]] = {"seen": "in the dashboard"}
    accounts: ClassVar[tuple[str | None, str | None]]

    def call(self, ledger: Ledger, refund_id: str = "r_1", **changed: Any) -> Move:
        arguments = self.arguments | WHO | {"evidence": self.evidence} | changed
        moved: Move = getattr(ledger, self.function)(MERCHANT, refund_id, **arguments)
        return moved

    def reach(self, state: str, ledger: Ledger, admin: Connection) -> int:
        token = activated(ledger)
        in_state(state, "r_1", token, ledger, admin)
        return token

    def usual(self, ledger: Ledger, admin: Connection) -> int:
        """A refund in the first state that the move starts from."""
        return self.reach(min(self.starts_from), ledger, admin)

    def test_it_moves_from_exactly_these_states(self, ledger: Ledger, operators: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        for state in sorted(STATES - {self.to_state}):
            in_state(state, state, token, ledger, admin)
            changes = {"gateway_ref": f"re_{state}"} if "gateway_ref" in self.arguments else {}
            if state in self.starts_from:
                assert self.call(operators, state, **changes).state == self.to_state
            else:
                with refused("LG202" if state in FINAL else "LG204", admin) as refusal:
                    self.call(operators, state, **changes)
                assert refusal.tells(function=self.function, merchant_id=MERCHANT, refund_id=state, state=state)
                assert refusal.message.endswith("nothing was changed")
                assert refusal.hint

    def test_on_a_new_timeline_nothing_is_moved(self, ledger: Ledger, operators: Ledger, admin: Connection) -> None:
        self.usual(ledger, admin)
        on_a_new_timeline(admin)
        with refused("LG106", admin) as refusal:
            self.call(operators)
        assert refusal.tells(function=self.function, merchant_id=MERCHANT, known_timeline="FFFFFFFF")
        assert refusal.message.endswith("nothing was changed")
        assert "recover_failover" in refusal.hint
        with refused("LG106", admin):
            self.call(operators, "never_added")
        with refused("LG304", admin):
            self.call(operators, actor="")

    def test_the_move_and_its_money_are_in_the_journal(
        self, ledger: Ledger, operators: Ledger, admin: Connection
    ) -> None:
        self.usual(ledger, admin)
        before = refund(admin, "r_1", "state")
        moved = self.call(operators)

        assert (moved.outcome, moved.state, moved.previous_state) == (self.outcome, self.to_state, before)
        entry = journal(admin, "r_1")[-1]
        amount = 7025 if self.accounts[0] else None
        assert (entry[0], entry[1], entry[2], *entry[5:]) == (before, self.to_state, None, *self.accounts, amount)
        assert admin.execute(
            "select actor, reason, database_user, evidence from ledger.journal order by number desc limit 1"
        ).fetchone() == ("carol", "ticket 91", "ledger_operator", self.evidence)
        assert balanced(operators)

    def test_another_refund_of_that_id_or_of_that_merchant_is_left_alone(
        self, ledger: Ledger, operators: Ledger, admin: Connection
    ) -> None:
        token = self.usual(ledger, admin)
        in_state("sending", "r_2", token, ledger, admin)
        other = activated(ledger, resource="settle:m_2")
        added(ledger, "r_1", merchant_id="m_2")
        ledger.claim_refund("m_2", "r_1", other)
        others = "select * from ledger.refund where (merchant_id, refund_id) <> ('m_1', 'r_1') order by merchant_id"
        before = admin.execute(others).fetchall()
        self.call(operators)
        assert admin.execute(others).fetchall() == before

    def test_of_two_at_once_the_second_is_told_that_it_is_done(
        self, ledger: Ledger, operators: Ledger, connect: Connect, operator_dsn: str, admin: Connection
    ) -> None:
        self.usual(ledger, admin)
        colleague = connect(operator_dsn)
        assert isinstance(operators.connection, psycopg.Connection)
        with operators.connection.transaction():
            self.call(operators)
            second = in_background(lambda: self.call(Ledger(colleague)))
            until(is_waiting(admin, colleague))
        assert second.result(5).outcome == self.already

    def test_the_same_again_is_a_no_op_that_says_so(self, ledger: Ledger, operators: Ledger, admin: Connection) -> None:
        self.usual(ledger, admin)
        self.call(operators)
        with unchanged(admin):
            again = self.call(operators)
        assert (again.outcome, again.state, again.previous_state) == (self.already, self.to_state, self.to_state)

    @pytest.mark.parametrize("missing", ["actor", "reason"])
    @pytest.mark.parametrize("value", [None, "", "  "])
    def test_it_needs_somebody_and_a_reason(
        self, ledger: Ledger, operators: Ledger, admin: Connection, missing: str, value: str | None
    ) -> None:
        self.usual(ledger, admin)
        with refused("LG304", admin) as refusal:
            self.call(operators, "r_1", **{missing: value})
        assert refusal.tells(
            function=self.function,
            reason="actor and reason are needed, as arguments or as ledger.actor and ledger.reason",
        )

    def test_actor_and_reason_may_come_from_the_transaction(
        self, ledger: Ledger, connect: Connect, operator_dsn: str, admin: Connection
    ) -> None:
        self.usual(ledger, admin)
        operator = connect(operator_dsn)
        with operator.transaction():
            operator.execute("set local ledger.actor = 'dana'")
            operator.execute("set local ledger.reason = 'INC-7'")
            self.call(Ledger(operator), actor=None, reason=None)
        assert admin.execute(
            "select actor, reason from ledger.journal order by number desc limit 1"
        ).fetchone() == ("dana", "INC-7")  # fmt: skip

    def test_an_argument_goes_before_the_setting_and_leaves_it_alone(
        self, ledger: Ledger, connect: Connect, operator_dsn: str, admin: Connection
    ) -> None:
        self.usual(ledger, admin)
        operator = connect(operator_dsn)
        with operator.transaction():
            operator.execute("set local ledger.actor = 'dana'")
            self.call(Ledger(operator))
            assert operator.execute("show ledger.actor").fetchone() == ("dana",)
        assert admin.execute("select actor from ledger.journal order by number desc limit 1").fetchone() == ("carol",)

    def test_evidence_is_an_object_of_a_reasonable_size(
        self, ledger: Ledger, operators: Ledger, admin: Connection
    ) -> None:
        self.usual(ledger, admin)
        with refused("LG304", admin) as refusal:
            self.call(operators, evidence=self.evidence | {"page": "x" * 65536})
        assert refusal.tells(reason="evidence is at most 64 KiB")

    @pytest.mark.parametrize("ids", [("", "r_1"), (None, "r_1"), (MERCHANT, None), (MERCHANT, "")])
    def test_both_ids_are_needed(self, operators: Ledger, admin: Connection, ids: tuple[Any, Any]) -> None:
        arguments = self.arguments | WHO | {"evidence": self.evidence}
        with refused("LG304", admin):
            getattr(operators, self.function)(*ids, **arguments)

    def test_a_refund_that_is_not_there_is_named(self, operators: Ledger, admin: Connection) -> None:
        with refused("LG201", admin) as refusal:
            self.call(operators, "r_2")
        assert refusal.tells(function=self.function, merchant_id=MERCHANT, refund_id="r_2")

    def test_a_worker_may_not(self, ledger: Ledger, admin: Connection) -> None:
        self.usual(ledger, admin)
        with unchanged(admin), raised("42501"):
            self.call(ledger)

    def test_a_holder_that_claims_it_afterwards_is_told(
        self, ledger: Ledger, operators: Ledger, admin: Connection
    ) -> None:
        self.usual(ledger, admin)
        self.call(operators)
        token = activated(ledger)
        if self.to_state == "pending":
            assert ledger.claim_refund(MERCHANT, "r_1", token).outcome in {"claimed", "taken_over"}
            return
        with refused("LG202" if self.to_state in FINAL else "LG204", admin):
            ledger.claim_refund(MERCHANT, "r_1", token)
