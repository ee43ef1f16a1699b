"""The gateway as a process: how it starts, stops and starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledger.gateway import Sent, Unknown
from ledger.sandbox import (
    Behaviour,
    Fault,
    SandboxControl,
    SandboxError,
    SandboxGateway,
    SandboxProcess,
    SandboxServer,
)
from ledger.sandbox.engine import Dropped, Engine
from ledger.sandbox.log import Log
from ledger.sandbox.wire import Order


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_even_while_requests_are_held(tmp_path, refund, key, number):
    process = SandboxProcess(tmp_path / "log", faults=[(key, Fault.HOLD)])
    with process, SandboxGateway(process.url) as worker, SandboxControl(process.url) as control:
        with ThreadPoolExecutor() as threads:
            held = threads.submit(worker.refund, refund, 33, 30.0)
            control.wait_until_held(key)
            os.kill(process.pid, number)
            assert isinstance(held.result(), Unknown)
        assert process.stop() == 0
        process.start()
        assert len(control.movements()) == 0


def test_stopping_drops_held_requests_at_once(tmp_path):
    log = Log(tmp_path / "log")
    engine = Engine(log, Behaviour())
    engine.plan("k", Fault.HOLD)
    threads = ThreadPoolExecutor()
    held = threads.submit(engine.refund, "k", Order("m_1", "r_1", 100, "EUR", None), 33)
    engine.held("k", count=1, timeout=5.0)
    engine.stop()
    try:
        assert isinstance(held.exception(timeout=5.0), Dropped)
        assert engine.movements() == []
    finally:
        engine.release("k")
        threads.shutdown()
        log.close()


def test_a_signal_ends_it_while_a_slow_call_is_under_way(tmp_path, refund):
    process = SandboxProcess(tmp_path / "log", behaviour=Behaviour(latency=30.0))
    with process, SandboxGateway(process.url) as worker, SandboxControl(process.url) as control:
        threads = ThreadPoolExecutor()
        slow = threads.submit(worker.refund, refund, 33, 30.0)
        while control.calls().refunds == 0:
            pass
        assert process.stop() == 0
        assert isinstance(slow.result(), Unknown)
        threads.shutdown()


def test_it_starts_again_at_the_same_address(tmp_path, refund, key):
    with SandboxProcess(tmp_path / "log") as process, SandboxGateway(process.url) as worker:
        url = process.url
        sent = worker.refund(refund, 33, 5.0)
        process.stop()
        assert isinstance(worker.find(key, 5.0), Unknown)
        process.start()
        assert process.url == url
        assert worker.find(key, 5.0) == sent


def test_a_connection_that_a_restart_closed_is_not_used_again(tmp_path, new_refund):
    with SandboxProcess(tmp_path / "log") as process, SandboxGateway(process.url) as worker:
        worker.refund(new_refund(), 33, 5.0)
        process.stop()
        process.start()
        assert isinstance(worker.refund(new_refund(), 33, 5.0), Sent)


def test_a_port_in_use_is_said(gateway, tmp_path, capfd):
    with pytest.raises(SandboxError, match="exit code"), SandboxProcess(tmp_path / "log", port=gateway.port):
        pass
    assert f"can't listen on 127.0.0.1 port {gateway.port}" in capfd.readouterr().err


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(SandboxError, match="can't be opened"):
        SandboxServer(tmp_path / "missing" / "log")


@pytest.mark.parametrize("latency", [-1.0, float("nan"), float("inf")])
def test_a_latency_that_makes_no_sense_is_refused(latency):
    with pytest.raises(SandboxError, match="seconds from 0"):
        Behaviour(latency=latency)


@pytest.mark.parametrize("window", [0.0, -1.0, float("nan"), float("inf")])
def test_a_key_window_that_makes_no_sense_is_refused(window):
    with pytest.raises(SandboxError, match="seconds above 0"):
        Behaviour(key_window=window)


def test_it_can_be_asked_for_help():
    command = [sys.executable, "-m", "ledger.sandbox", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for option in ("--check-token", "--latency", "--no-keys", "--key-window", "--log", "--port", "--host"):
        assert option in shown


def test_it_says_where_it_listens_in_one_line(tmp_path):
    command = [sys.executable, "-m", "ledger.sandbox", "--log", str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        line = child.stdout.readline()
        child.terminate()
        rest = child.stdout.read()
    assert child.returncode == 0
    assert line.startswith("sandbox gateway listening on http://127.0.0.1:")
    assert line.endswith(f", log {tmp_path / 'log'}\n")
    assert rest == ""


def test_a_server_can_run_on_a_thread_of_the_test_itself(tmp_path, refund):
    with SandboxServer(tmp_path / "log") as server, SandboxGateway(server.url) as worker:
        assert isinstance(worker.refund(refund, 33, 5.0), Sent)


def test_starting_twice_and_stopping_what_does_not_run_are_refused(tmp_path):
    process = SandboxProcess(tmp_path / "log")
    with pytest.raises(SandboxError, match="isn't running"):
        process.stop()
    with process, pytest.raises(SandboxError, match="runs already"):
        process.start()
