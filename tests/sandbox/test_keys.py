"""Idempotency keys: what they prevent, and what happens without them or when they are forgotten."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledger.gateway import Declined, Nothing, Sent
from ledger.sandbox import Behaviour, Fault, SandboxControl, SandboxGateway, SandboxProcess, read_movements
from ledger.sandbox.engine import Engine
from ledger.sandbox.log import Log
from ledger.sandbox.wire import Order


def test_a_refund_moves_its_money_and_says_how_much(worker, control, refund, key):
    sent = worker.refund(refund, 33, 5.0)
    assert sent == Sent(sent.ref, 7025, "EUR")
    (moved,) = control.movements(key=key)
    assert (moved.ref, moved.amount_minor, moved.currency, moved.token) == (sent.ref, 7025, "EUR", 33)
    assert (moved.merchant_id, moved.refund_id, moved.payment_ref) == ("m_1", refund.refund_id, "pay_1")


def test_the_same_key_again_gives_the_same_movement(worker, control, refund, key):
    first = worker.refund(refund, 33, 5.0)
    assert worker.refund(refund, 34, 5.0) == first
    assert len(control.movements(key=key)) == 1
    assert control.calls(key).tokens == (33, 34)


def test_concurrent_requests_with_one_key_move_money_once(worker, control, refund, key):
    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(lambda token: worker.refund(refund, token, 5.0), range(32)))
    assert len(set(answers)) == 1
    assert isinstance(answers[0], Sent)
    assert len(control.movements(key=key)) == 1
    assert control.calls(key).refunds == 32


def test_requests_that_race_under_one_key_wait_for_each_other(tmp_path, monkeypatch):
    sync = os.fsync

    def slow_sync(fd: int) -> None:
        time.sleep(0.02)  # what a rival would need to slip in between
        sync(fd)

    monkeypatch.setattr(os, "fsync", slow_sync)
    log = Log(tmp_path / "log")
    engine = Engine(log, Behaviour())
    engine.plan("k", Fault.HOLD, times=8)
    with ThreadPoolExecutor(8) as threads:
        order = Order("m_1", "r_1", 100, "EUR", None)
        answers = [threads.submit(engine.refund, "k", order, token) for token in range(8)]
        assert engine.held("k", count=8, timeout=5.0) == 8
        engine.release("k")
        assert len({answer.result() for answer in answers}) == 1
    log.close()
    assert len(read_movements(tmp_path / "log")) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"amount_minor": 7026},
        {"currency": "USD"},
        {"payment_ref": None},
        {"refund_id": "r_x"},
        {"merchant_id": "m"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_parameters_under_one_key_are_refused(worker, control, refund, key, change):
    sent = worker.refund(refund, 33, 5.0)
    refused = worker.refund(refund.but(**change), 33, 5.0)
    assert refused == Declined(refused.reason, remembered=False)
    assert refused.reason.startswith("key_reused")
    assert next(iter(change)) in refused.reason
    assert [moved.ref for moved in control.movements(key=key)] == [sent.ref]
    assert worker.find(key, 5.0) == sent


@pytest.mark.parametrize("key", ["m/ü ß-日本 %41+&=#?;", " both ends ", "%", "a\u0130\U0001f600"])
def test_any_printable_key_arrives_as_it_is(worker, control, refund, key):
    sent = worker.refund(refund.but(idempotency_key=key), 1, 5.0)
    assert worker.find(key, 5.0) == sent
    assert [moved.key for moved in control.movements(key=key)] == [key]


def test_find_says_nothing_about_a_key_that_was_never_used(worker, control):
    assert worker.find("m_1/never", 5.0) == Nothing()
    assert control.calls("m_1/never").finds == 1


def test_without_keys_every_request_moves_money(tmp_path, refund, key):
    process = SandboxProcess(tmp_path / "log", behaviour=Behaviour(keys=False))
    with process, SandboxGateway(process.url) as worker, SandboxControl(process.url) as control:
        assert worker.find(key, 5.0) == Nothing()
        first, second = worker.refund(refund, 1, 5.0), worker.refund(refund, 1, 5.0)
        assert first.ref != second.ref
        assert worker.find(key, 5.0) == second
        moved = control.movements()
    assert moved.keys_moved_twice == {key: 2}
    assert moved.refunds_moved_twice == {("m_1", refund.refund_id): 2}
    assert moved.sums == {"EUR": 14050}


def test_a_key_is_forgotten_when_its_window_is_over(tmp_path):
    now = [1000.0]
    log = Log(tmp_path / "log")
    engine = Engine(log, Behaviour(key_window=10.0), clock=lambda: now[0])
    order = Order("m_1", "r_1", 100, "EUR", None)
    first = engine.refund("k", order, 1)
    now[0] += 9.9
    assert engine.refund("k", order, 1) == first == engine.find("k")
    now[0] += 0.2
    assert engine.find("k") == Nothing()
    second = engine.refund("k", order, 1)
    now[0] += 9.9
    assert engine.find("k") == second != first
    assert len(engine.movements()) == 2
    log.close()


def test_the_window_of_an_accepted_request_begins_when_it_was_accepted(tmp_path):
    now = [1000.0]
    log = Log(tmp_path / "log")
    engine = Engine(log, Behaviour(key_window=10.0), clock=lambda: now[0])
    engine.plan("k", Fault.ACCEPT)
    engine.refund("k", Order("m_1", "r_1", 100, "EUR", None), 1)
    now[0] += 6.0
    sent = engine.complete("k", moved=True)
    assert engine.find("k") == sent
    now[0] += 6.0
    assert engine.find("k") == Nothing()
    log.close()


def test_the_window_goes_on_while_the_gateway_is_down(tmp_path, refund, key):
    process = SandboxProcess(tmp_path / "log", behaviour=Behaviour(key_window=0.05))
    with process, SandboxGateway(process.url) as worker:
        first = worker.refund(refund, 1, 5.0)
        process.kill()
        process.start()
        while worker.find(key, 5.0) != Nothing():
            pass
        assert worker.refund(refund, 1, 5.0) != first


def test_a_key_can_be_forgotten_at_once_and_stays_so_after_a_restart(tmp_path, refund, key):
    process = SandboxProcess(tmp_path / "log")
    with process, SandboxGateway(process.url) as worker, SandboxControl(process.url) as control:
        first = worker.refund(refund, 1, 5.0)
        control.forget(key)
        process.kill()
        process.start()
        assert worker.find(key, 5.0) == Nothing()
        second = worker.refund(refund, 1, 5.0)
        assert worker.find(key, 5.0) == second != first
        assert control.movements().keys_moved_twice == {key: 2}


def test_a_lower_token_is_refused_where_tokens_are_checked(tmp_path, refund, key):
    process = SandboxProcess(tmp_path / "log", behaviour=Behaviour(check_token=True))
    with process, SandboxGateway(process.url) as worker, SandboxControl(process.url) as control:
        sent = worker.refund(refund, 33, 5.0)
        assert worker.refund(refund, 33, 5.0) == worker.refund(refund, 34, 5.0) == sent
        process.kill()
        process.start()
        refused = worker.refund(refund, 33, 5.0)
        assert refused == Declined(refused.reason, remembered=False)
        assert refused.reason.startswith("token_behind")
        assert "33" in refused.reason
        assert "34" in refused.reason
        assert len(control.movements()) == 1


def test_a_lower_token_passes_where_tokens_are_not_checked(worker, refund):
    assert worker.refund(refund, 34, 5.0) == worker.refund(refund, 33, 5.0)
