"""The main stories of the ledger, each on connections of whoever tells it: through a pooler, in a restored database.

Each has a merchant of its own, so that many can be told in one database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledger.client import Ledger
from tests.story import ALICE, BOB, Connection, activated, raised

WHO: dict[str, Any] = {"actor": "carol", "reason": "a story"}


@dataclass(frozen=True, slots=True)
class Cast:
    """Two workers and an operator, in autocommit."""

    merchant: str
    worker: Ledger
    rival: Ledger
    operator: Ledger

    @property
    def resource(self) -> str:
        """What guards the merchant's refunds."""
        return f"settle:{self.merchant}"

    def added(self, *refund_ids: str) -> None:
        """Refunds of 70.25 EUR each, pending."""
        self.worker.add_refunds(self.merchant, refund_ids, [7025] * len(refund_ids), ["EUR"] * len(refund_ids))

    def states(self) -> dict[str, str]:
        """The merchant's refunds."""
        rows = over(self.operator).execute(
            "select refund_id, state from ledger.refund where merchant_id = %s", [self.merchant]
        )
        return dict(rows.fetchall())


def over(ledger: Ledger) -> Connection:
    assert not hasattr(ledger.connection, "getconn")
    return ledger.connection  # type: ignore[return-value]


def a_refund_is_added_claimed_and_confirmed_once(cast: Cast) -> None:
    for outcome in ("added", "already"):
        assert cast.worker.add_refund(cast.merchant, "r_1", 7025, "EUR").outcome == outcome
    token = activated(cast.worker, resource=cast.resource)
    for outcome in ("claimed", "reclaimed"):
        assert cast.worker.claim_refund(cast.merchant, "r_1", token).outcome == outcome
    for outcome in ("confirmed", "already_confirmed"):
        assert cast.worker.confirm_refund(cast.merchant, "r_1", token, f"{cast.merchant}/re_1").outcome == outcome


def a_stale_token_changes_nothing(cast: Cast) -> None:
    cast.added("r_1", "r_2")
    stale = activated(cast.worker, ALICE, cast.resource)
    cast.worker.claim_refund(cast.merchant, "r_1", stale)
    activated(cast.rival, BOB, cast.resource)

    for refund_id in ("r_1", "r_2"):
        with raised("LG101") as refusal:
            cast.worker.claim_refund(cast.merchant, refund_id, stale)
        assert refusal.tells(reason="superseded", token=stale, active_holder=BOB)
    with raised("LG101"):
        cast.worker.confirm_refund(cast.merchant, "r_1", stale, "re_1")
    assert cast.states() == {"r_1": "sending", "r_2": "pending"}


def who_takes_over_is_told_that_a_request_may_be_out(cast: Cast) -> None:
    cast.added("r_1")
    first = activated(cast.worker, ALICE, cast.resource)
    cast.worker.claim_refund(cast.merchant, "r_1", first)
    second = activated(cast.rival, BOB, cast.resource)

    claim = cast.rival.claim_refund(cast.merchant, "r_1", second)

    assert (claim.outcome, claim.previous_state, claim.previous_token) == ("taken_over", "sending", first)
    assert cast.rival.release_refund(cast.merchant, "r_1", second, "it said no").state == "unknown"


def a_number_that_nobody_drew_is_refused(cast: Cast) -> None:
    cast.added("r_1")
    for token in (9 * 10**18, 0):
        with raised("LG102"):
            cast.worker.claim_refund(cast.merchant, "r_1", token)
    drawn = cast.worker.draw_token(cast.resource)
    with raised("LG105"):
        cast.worker.claim_refund(cast.merchant, "r_1", drawn)


def many_refunds_go_in_sets(cast: Cast) -> None:
    ids = [f"r_{n:03}" for n in range(200)]
    cast.added(*ids)
    token = activated(cast.worker, resource=cast.resource)
    after = ""
    for _ in range(4):
        claims = cast.worker.claim_refunds(cast.merchant, token, 50, after)
        after = claims[-1].refund_id
        mine = [claim.refund_id for claim in claims]
        cast.worker.confirm_refunds(cast.merchant, token, mine, [f"{cast.merchant}/re_{name}" for name in mine])
    assert set(cast.states().values()) == {"sent"}
    assert cast.worker.count_open(cast.merchant, token) == []


def every_answer_of_a_gateway_is_recorded(cast: Cast) -> None:
    cast.added("accepted", "failed", "released", "unknown")
    token = activated(cast.worker, resource=cast.resource)
    cast.worker.claim_refunds(cast.merchant, token, 10)
    cast.worker.accept_refund(cast.merchant, "accepted", token, f"{cast.merchant}/re_1")
    cast.worker.fail_refund(cast.merchant, "failed", token, "card closed")
    cast.worker.release_refund(cast.merchant, "released", token, "not sent")
    cast.worker.mark_unknown(cast.merchant, "unknown", token, "timeout")
    assert cast.states() == {
        "accepted": "accepted", "failed": "failed", "released": "pending", "unknown": "unknown"
    }  # fmt: skip


def a_person_decides(cast: Cast) -> None:
    cast.added("r_1", "r_2")
    cast.operator.cancel_refund(cast.merchant, "r_1", **WHO)
    cast.operator.review_refund(cast.merchant, "r_2", **WHO)
    with raised("LG202"):
        cast.operator.review_refund(cast.merchant, "r_1", **WHO)
    assert cast.states() == {"r_1": "cancelled", "r_2": "review"}


def a_paused_merchant_begins_nothing(cast: Cast) -> None:
    cast.operator.pause(cast.resource, **WHO)
    with raised("LG107"):
        cast.worker.draw_token(cast.resource)
    cast.operator.resume(cast.resource, **WHO)
    assert activated(cast.worker, resource=cast.resource)


def a_job_runs_under_its_lock_once(cast: Cast) -> None:
    job = f"job:{cast.merchant}"
    with over(cast.worker).transaction():
        token = cast.worker.lock_job(job, ALICE)
        with raised("LG104"), over(cast.rival).transaction():
            over(cast.rival).execute("set local lock_timeout = '50ms'")
            cast.rival.lock_job(job, BOB)
    with over(cast.rival).transaction():
        assert cast.rival.lock_job(job, BOB) > token


def an_activation_waits_for_writes_in_flight(cast: Cast) -> None:
    cast.added("r_1")
    token = activated(cast.worker, ALICE, cast.resource)
    newer = cast.rival.draw_token(cast.resource)
    with over(cast.worker).transaction():
        cast.worker.claim_refund(cast.merchant, "r_1", token)
        with raised("55P03"), over(cast.rival).transaction():
            over(cast.rival).execute("set local lock_timeout = '50ms'")
            cast.rival.activate_token(cast.resource, newer, BOB)
    cast.rival.activate_token(cast.resource, newer, BOB)
    assert cast.states() == {"r_1": "sending"}


def a_refusal_stays_on_record(cast: Cast) -> None:
    recording = Ledger(cast.worker.connection, refusals=cast.rival.connection)
    with raised("LG201"):
        recording.claim_refund(cast.merchant, "none", activated(cast.worker, resource=cast.resource))
    rows = over(cast.operator).execute("select code from ledger.refusal where merchant_id = %s", [cast.merchant])
    assert rows.fetchall() == [("LG201",)]


STORIES: list[Callable[[Cast], None]] = [
    a_refund_is_added_claimed_and_confirmed_once,
    a_stale_token_changes_nothing,
    who_takes_over_is_told_that_a_request_may_be_out,
    a_number_that_nobody_drew_is_refused,
    many_refunds_go_in_sets,
    every_answer_of_a_gateway_is_recorded,
    a_person_decides,
    a_paused_merchant_begins_nothing,
    a_job_runs_under_its_lock_once,
    an_activation_waits_for_writes_in_flight,
    a_refusal_stays_on_record,
]
