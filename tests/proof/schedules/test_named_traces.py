"""The schedules that broke earlier designs, by name: what each comes to now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.errors import StaleToken
from tests.proof.schedules.programs import MERCHANT, Sql
from tests.proof.schedules.replay import parse, replay
from tests.proof.schedules.waits import ACTIVATE, COMMITTED, HELD, Meeting, Race, Ring, one


class Trace:
    """A schedule, call by call, and the invariants that it broke."""

    def __init__(self, dsn: str, code: str) -> None:
        self.turns, self.broken = replay(dsn, *parse(code))

    def of(self, process: str, *names: str) -> list[str]:
        """What came of a process's calls of these functions."""
        return [
            _told(turn.outcome)
            for turn in self.turns
            if turn.process == process and isinstance(turn.step, Sql) and turn.step.call.name in names
        ]


def _told(outcome: object) -> str:
    if isinstance(outcome, StaleToken):
        return f"LG101 {outcome.reason}"
    if isinstance(outcome, Exception):
        return type(outcome).__name__
    assert isinstance(outcome, tuple)
    return str(getattr(outcome[0], "outcome", outcome[0]))


def test_token_after_lease_lets_a_worker_that_lost_its_lease_outrank_the_holder(admin_dsn: str) -> None:
    trace = Trace(admin_dsn, "lease-first+one/1:a,b,X,b,b,a,a,b")
    assert trace.of("a", "draw_token", "activate_token") == ["2", "None"]
    assert trace.of("b", "claim_refund") == ["LG101 superseded"]
    assert trace.broken == ["holder stays"]


def test_token_before_lease_leaves_the_worker_that_lost_its_lease_with_a_void_number(admin_dsn: str) -> None:
    trace = Trace(admin_dsn, "one+one/1:a,a,b,X,b,b,a,a,a,b,b,b,b,b")
    assert trace.of("a", "draw_token", "activate_token") == ["1", "LG101 voided", "3"]
    assert trace.of("b", "claim_refund", "confirm_refund") == ["claimed", "confirmed"]
    assert trace.broken == []


def test_an_activation_without_a_barrier_lets_an_older_lease_fence_out_the_holder(admin_dsn: str) -> None:
    trace = Trace(admin_dsn, "an activation voids only its own number@one+one/1:a,b,b,X,a,a,b,a")
    assert trace.of("a", "activate_token", "claim_refund") == ["None", "LG101 superseded"]
    assert trace.broken == ["holder stays"]


def test_an_activation_voids_every_number_drawn_up_to_then_higher_ones_too(admin_dsn: str) -> None:
    trace = Trace(admin_dsn, "one+one/1:a,b,b,X,a,a,b,a,b,b,a,a,a,a")
    assert trace.of("b", "draw_token", "activate_token") == ["2", "LG101 voided", "3"]
    assert trace.of("a", "claim_refund", "confirm_refund") == ["claimed", "confirmed"]
    assert trace.broken == []


def test_a_release_after_a_takeover_leads_to_unknown_and_the_next_one_asks(admin_dsn: str) -> None:
    """a's request is still on its way when b, which took over, gives the refund back untried."""
    trace = Trace(admin_dsn, "one+one/1:a,a,a,a,a,a~,b,X,b,b,b,b.,b,b,a,a,d,z,z,z,z,z,z,z,z")
    assert trace.of("b", "claim_refund", "release_refund") == ["taken_over", "unknown"]
    assert trace.of("a", "mark_unknown") == ["LG101 superseded"]
    assert trace.of("z", "claim_refund", "confirm_refund") == ["taken_over", "confirmed"]
    assert trace.broken == []
    assert len(trace.turns[-1].after.gateway.movements) == 1


def test_a_confirm_that_is_repeated_after_a_takeover_is_recognised(admin_dsn: str) -> None:
    trace = Trace(admin_dsn, "one+one/1:a,a,a,a,a,a,a!,b,X,b,b,b,a,a,b")
    assert trace.of("b", "claim_refund") == ["RefundFinished"]
    assert trace.of("a", "confirm_refund") == ["confirmed", "already_confirmed"]
    assert trace.broken == []


ORPHAN = one("claim_refunds", MERCHANT, 1, 1)


@pytest.fixture
def ring(admin_dsn: str) -> Iterator[Ring]:
    ring = Ring(admin_dsn)
    yield ring
    ring.close()


def test_two_transactions_under_one_token_both_run(ring: Ring) -> None:
    """Which is why a transaction whose commit was in doubt is repeated under a new token."""
    race = Race("repeated under its own token", HELD, [[ORPHAN], [ORPHAN]])
    run = ring.run(Meeting(race, (COMMITTED,) * 2, ("commit",) * 2), (0, 1), (0, 1, 1, 0))
    assert not run.waited
    assert {row["refund_id"]: row["state"] for row in run.state.rows["refund"]} == {"r_1": "sending", "r_2": "sending"}


def test_under_a_new_token_the_second_waits_and_sees_what_the_first_did(ring: Ring) -> None:
    race = Race("repeated under a new token", HELD, [[ORPHAN], [ACTIVATE, one("claim_refunds", MERCHANT, 2, 1)]])
    run = ring.run(Meeting(race, (COMMITTED,) * 2, ("commit",) * 2), (0, 1), (0, 1, 0, 1))
    assert run.waited
    assert "outcome='taken_over'" in run.outcomes[1][1]
    assert run.state.refunds["r_1"]["fence"] == 2
    assert run.state.refunds["r_2"]["state"] == "pending"
