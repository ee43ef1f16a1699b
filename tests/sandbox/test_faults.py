"""The faults that can be planned: what the worker sees, and what moved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ledger.gateway import Accepted, Declined, Nothing, Sent, Unknown
from ledger.sandbox import Fault, SandboxControl, SandboxError, SandboxGateway, SandboxProcess


def test_a_dropped_reply_leaves_the_outcome_unknown_though_the_money_moved(worker, control, refund, key):
    control.plan(key, Fault.DROP_REPLY)
    assert isinstance(worker.refund(refund, 33, 5.0), Unknown)
    (moved,) = control.movements(key=key)
    assert worker.find(key, 5.0) == worker.refund(refund, 33, 5.0) == Sent(moved.ref, 7025, "EUR")


def test_a_reply_dropped_on_a_reused_connection_is_not_asked_for_again(worker, control, new_refund):
    before, refund = new_refund(), new_refund()
    worker.refund(before, 33, 5.0)
    control.plan(refund.idempotency_key, Fault.DROP_REPLY)
    assert isinstance(worker.refund(refund, 33, 5.0), Unknown)
    assert control.calls(refund.idempotency_key).refunds == 1


def test_a_refusal_is_remembered_under_its_key(worker, control, refund, key):
    control.plan(key, Fault.DECLINE)
    refused = worker.refund(refund, 33, 5.0)
    assert refused == Declined(refused.reason, remembered=True)
    assert worker.refund(refund, 34, 5.0) == worker.find(key, 5.0) == refused
    assert len(control.movements(key=key)) == 0


def test_a_refusal_that_is_not_remembered_lets_the_next_request_through(worker, control, refund, key):
    control.plan(key, Fault.DECLINE_FORGOTTEN)
    refused = worker.refund(refund, 33, 5.0)
    assert refused == Declined(refused.reason, remembered=False)
    assert worker.find(key, 5.0) == Nothing()
    assert isinstance(worker.refund(refund, 33, 5.0), Sent)


def test_a_500_comes_before_any_movement(worker, control, refund, key):
    control.plan(key, Fault.ERROR)
    failed = worker.refund(refund, 33, 5.0)
    assert isinstance(failed, Unknown)
    assert "500" in failed.reason
    assert worker.find(key, 5.0) == Nothing()
    assert len(control.movements(key=key)) == 0
    assert isinstance(worker.refund(refund, 33, 5.0), Sent)


def test_an_accepted_request_moves_money_when_it_is_completed(worker, control, refund, key):
    control.plan(key, Fault.ACCEPT)
    accepted = worker.refund(refund, 33, 5.0)
    assert accepted == Accepted(accepted.ref) == worker.refund(refund, 33, 5.0) == worker.find(key, 5.0)
    assert len(control.movements(key=key)) == 0
    sent = control.complete(key)
    assert sent == Sent(accepted.ref, 7025, "EUR") == worker.find(key, 5.0) == worker.refund(refund, 33, 5.0)
    assert [moved.ref for moved in control.movements(key=key)] == [accepted.ref]


def test_an_accepted_request_may_end_in_a_refusal(worker, control, refund, key):
    control.plan(key, Fault.ACCEPT)
    worker.refund(refund, 33, 5.0)
    refused = control.complete(key, "declined")
    assert refused == Declined(refused.reason, remembered=True) == worker.find(key, 5.0)
    assert len(control.movements(key=key)) == 0


def test_only_an_accepted_request_can_be_completed(worker, control, refund, key):
    worker.refund(refund, 33, 5.0)
    with pytest.raises(SandboxError, match="waits for its final word"):
        control.complete(key)
    assert len(control.movements(key=key)) == 1


def test_a_held_request_has_moved_nothing_until_it_is_released(worker, control, refund, key):
    control.plan(key, Fault.HOLD)
    with ThreadPoolExecutor() as threads:
        held = threads.submit(worker.refund, refund, 33, 5.0)
        control.wait_until_held(key)
        assert worker.find(key, 5.0) == Nothing()
        assert control.release(key) == 1
        assert isinstance(held.result(), Sent)
    assert len(control.movements(key=key)) == 1


def test_another_request_under_the_key_overtakes_a_held_one(worker, control, refund, key):
    control.plan(key, Fault.HOLD)
    with ThreadPoolExecutor() as threads:
        held = threads.submit(worker.refund, refund, 33, 5.0)
        control.wait_until_held(key)
        sent = worker.refund(refund, 34, 5.0)
        control.release(key)
        assert held.result() == sent
    assert [moved.token for moved in control.movements(key=key)] == [34]


def test_a_held_request_whose_sender_gave_up_still_moves_money(worker, control, refund, key):
    control.plan(key, Fault.HOLD)
    assert isinstance(worker.refund(refund, 33, 0.05), Unknown)
    control.wait_until_held(key)
    assert worker.find(key, 5.0) == Nothing()
    control.release(key)
    while worker.find(key, 5.0) == Nothing():
        pass
    assert len(control.movements(key=key)) == 1


def test_releasing_what_is_not_held_lets_nothing_go(control, key):
    assert control.release(key) == 0


def test_waiting_for_a_hold_that_does_not_come_ends(control, key):
    with pytest.raises(TimeoutError, match="0 requests are held"):
        control.wait_until_held(key, timeout=0.01)


def test_faults_meet_requests_in_the_order_planned_and_each_its_own_key(worker, control, new_refund):
    refund, other = new_refund(), new_refund()
    control.plan(refund.idempotency_key, Fault.ERROR, times=2)
    control.plan(refund.idempotency_key, Fault.DECLINE_FORGOTTEN)
    assert isinstance(worker.refund(other, 33, 5.0), Sent)
    kinds = [type(worker.refund(refund, 33, 5.0)) for _ in range(4)]
    assert kinds == [Unknown, Unknown, Declined, Sent]


def test_faults_can_be_planned_at_the_start(tmp_path, refund, key):
    process = SandboxProcess(tmp_path / "log", faults=[("a=b", Fault.ERROR), (key, Fault.DROP_REPLY)])
    with process, SandboxGateway(process.url) as worker, SandboxControl(process.url) as control:
        assert isinstance(worker.refund(refund, 33, 5.0), Unknown)
        assert isinstance(worker.refund(refund.but(idempotency_key="a=b"), 33, 5.0), Unknown)
        assert [moved.key for moved in control.movements()] == [key]


@pytest.mark.parametrize(("fault", "times"), [("nonsense", 1), (Fault.ERROR, 0), (Fault.ERROR, -1)])
def test_a_plan_that_makes_no_sense_is_refused(control, key, fault, times):
    with pytest.raises(SandboxError, match="was expected; nothing was changed"):
        control.plan(key, fault, times)
