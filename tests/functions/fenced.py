"""How the fence refuses a call under a token of settle:m_1: the same for every function that takes one."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

from ledger.client import Ledger
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    UNDRAWN,
    activated,
    added,
    as_ledger_fn,
    drawn,
    on_a_new_timeline,
    refused,
)

Connection = psycopg.Connection[Any]


class Fenced:
    """To inherit: says what the function is, and calls it for r_1, which is claimed under the token."""

    function = ""

    def prepare(self, ledger: Ledger, token: int) -> None:
        added(ledger, "r_1")
        ledger.claim_refund(MERCHANT, "r_1", token)

    def call(self, ledger: Ledger, token: int) -> object:
        raise NotImplementedError

    def test_on_a_new_timeline_nothing_passes(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        on_a_new_timeline(admin)
        with refused("LG106", admin) as refusal:
            self.call(ledger, token)
        assert refusal.tells(function=self.function, resource=RESOURCE, token=token, known_timeline="FFFFFFFF")
        assert refusal.message == (
            f"{self.function} of settle:m_1 refused: this server was promoted or restored, "
            "and tokens handed out before are unknown here; nothing was changed"
        )
        assert "recover_failover" in refusal.hint

    @pytest.mark.parametrize("token", [None, 0, -1, UNDRAWN, 2**63 - 1])
    def test_a_number_that_nobody_drew_is_refused(self, token: int | None, ledger: Ledger, admin: Connection) -> None:
        self.prepare(ledger, activated(ledger))
        with refused("LG102", admin) as refusal:
            self.call(ledger, cast("int", token))
        assert refusal.tells(function=self.function, merchant_id=MERCHANT, token=token)
        assert f"token {'null' if token is None else token} was never drawn for it" in refusal.message
        assert "ledger.draw_token(resource)" in refusal.hint

    def test_a_number_drawn_for_another_merchant_is_not_drawn_for_this_one(
        self, ledger: Ledger, admin: Connection
    ) -> None:
        self.prepare(ledger, activated(ledger))
        other = drawn(ledger, "settle:m_2")
        with refused("LG102", admin) as refusal:
            self.call(ledger, other)
        assert refusal.tells(token=other, resource=RESOURCE, active_holder=ALICE)

    def test_a_drawn_token_is_refused_until_it_is_activated(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        newer = drawn(ledger)
        with refused("LG105", admin) as refusal:
            self.call(ledger, newer)
        assert refusal.tells(function=self.function, resource=RESOURCE, token=newer, active=token, active_holder=ALICE)
        assert f"token {newer} is drawn but not activated; nothing was changed" in refusal.message
        assert "ledger.activate_token(resource, token, holder)" in refusal.hint

    def test_a_superseded_token_is_refused_and_told_who_took_over(
        self, ledger: Ledger, rivals: Ledger, admin: Connection
    ) -> None:
        old = activated(ledger)
        self.prepare(ledger, old)
        new = activated(rivals, BOB)
        with refused("LG101", admin) as refusal:
            self.call(ledger, old)
        assert refusal.tells(
            function=self.function, merchant_id=MERCHANT, resource=RESOURCE, reason="superseded", token=old,
            holder=ALICE, active=new, active_holder=BOB, barrier=new,
        )  # fmt: skip
        since = admin.execute("select to_jsonb(activated_at) #>> '{}' from ledger.fence").fetchall()
        assert since == [(refusal.detail["active_since"],)]
        assert f"token {old} is superseded; {new} is active, held by {BOB} since" in refusal.message
        assert refusal.message.endswith("nothing was changed")
        assert refusal.hint == "Stop this batch: another holder has taken over. Draw a new token to try again."

    def test_a_token_that_an_activation_passed_by_is_void(self, ledger: Ledger, admin: Connection) -> None:
        overtaken = drawn(ledger)
        active = activated(ledger)
        self.prepare(ledger, active)
        with refused("LG101", admin) as refusal:
            self.call(ledger, overtaken)
        assert refusal.tells(reason="voided", token=overtaken, active=active, holder=None)
        assert f"token {overtaken} is void" in refusal.message

    def test_a_higher_token_that_an_activation_passed_by_is_void_too(self, ledger: Ledger, admin: Connection) -> None:
        active = drawn(ledger)
        higher = drawn(ledger)
        ledger.activate_token(RESOURCE, active, ALICE)
        self.prepare(ledger, active)
        with refused("LG101", admin) as refusal:
            self.call(ledger, higher)
        assert refusal.tells(reason="voided", token=higher, active=active, barrier=higher)

    @pytest.mark.parametrize("token", [None, UNDRAWN])
    def test_a_number_that_nobody_drew_is_none_whatever_the_snapshot(
        self, token: int | None, ledger: Ledger, connection: Connection, admin: Connection
    ) -> None:
        self.prepare(ledger, activated(ledger))
        connection.execute("set default_transaction_isolation = 'repeatable read'")
        with refused("LG102", admin):
            self.call(ledger, cast("int", token))

    def test_a_void_token_is_none_that_was_superseded(self, ledger: Ledger, admin: Connection) -> None:
        """Whatever else is told of it."""
        void = drawn(ledger)
        self.prepare(ledger, activated(ledger))
        as_ledger_fn(
            admin,
            "insert into ledger.event (event, resource, token, holder) values ('session_ended', 'settle:m_1', %s, 'x')",
            [void],
        )
        with refused("LG101", admin) as refusal:
            self.call(ledger, void)
        assert refusal.tells(reason="voided", token=void)

    def test_a_new_timeline_is_told_before_the_token_is_judged(self, ledger: Ledger, admin: Connection) -> None:
        self.prepare(ledger, activated(ledger))
        on_a_new_timeline(admin)
        with refused("LG106", admin):
            self.call(ledger, UNDRAWN)


class FencedRow(Fenced):
    """The same, for the functions that name one refund."""

    def test_a_row_ahead_of_its_fence_is_refused(self, ledger: Ledger, admin: Connection) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        as_ledger_fn(admin, "update ledger.refund set fence = fence + 1000")
        ahead = admin.execute("select fence from ledger.refund").fetchall()[0][0]
        with refused("LG101", admin) as refusal:
            self.call(ledger, token)
        assert refusal.tells(
            reason="row", token=token, active=token, active_holder=ALICE, row_token=ahead, refund_id="r_1"
        )
        assert refusal.detail["active_since"] is not None
        assert "behind the row, which carries a newer one" in refusal.message
        assert "ledger.verify()" in refusal.hint

    def test_another_refund_of_that_id_or_of_that_merchant_is_left_alone(
        self, ledger: Ledger, admin: Connection
    ) -> None:
        token = activated(ledger)
        self.prepare(ledger, token)
        added(ledger, "r_2", amount_minor=58)
        added(ledger, "r_1", merchant_id="m_0", amount_minor=58)
        if admin.execute("select from ledger.refund where state = 'sending'").fetchall():
            ledger.claim_refund(MERCHANT, "r_2", token)
            ledger.claim_refund("m_0", "r_1", activated(ledger, BOB, "settle:m_0"))
            as_ledger_fn(admin, "update ledger.refund set fence = %s", [token])
        others = """
            select r, array(
                select j from ledger.journal as j
                where j.merchant_id = r.merchant_id and j.refund_id = r.refund_id order by j.number
            )
            from ledger.refund as r
            where (r.merchant_id, r.refund_id) <> ('m_1', 'r_1')
            order by r.merchant_id, r.refund_id
        """
        before = admin.execute(others).fetchall()
        answer: Any = self.call(ledger, token)
        assert (answer.merchant_id, answer.refund_id, answer.amount_minor) == (MERCHANT, "r_1", 7025)
        assert admin.execute(others).fetchall() == before
