"""The log: on disk before anyone is told, and all that a restarted gateway remembers."""

from __future__ import annotations

import os
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledger.gateway import Accepted, Declined, Sent
from ledger.sandbox import Fault, SandboxControl, SandboxError, SandboxGateway, SandboxProcess, read_movements
from ledger.sandbox.log import Entry, Log
from ledger.sandbox.wire import Order

MOVED = Entry("moved", 1764440000.25, "k", 33, "sb_1", order=Order("m_1", "r_1", 7025, "EUR", None))


def test_a_movement_is_in_the_log_before_it_is_told(gateway, worker, refund, key):
    sent = worker.refund(refund, 33, 5.0)
    assert [moved.ref for moved in read_movements(gateway.log).of(key=key)] == [sent.ref]


def test_what_the_log_and_the_gateway_say_is_the_same(gateway, worker, control, refund):
    worker.refund(refund, 33, 5.0)
    assert read_movements(gateway.log).items == control.movements().items


def test_a_killed_gateway_knows_its_movements_and_keys_again(tmp_path, new_refund):
    sent, declined, accepted = new_refund(), new_refund(), new_refund()
    process = SandboxProcess(tmp_path / "log")
    with process, SandboxGateway(process.url) as worker, SandboxControl(process.url) as control:
        control.plan(declined.idempotency_key, Fault.DECLINE)
        control.plan(accepted.idempotency_key, Fault.ACCEPT)
        before = [worker.refund(refund, 33, 5.0) for refund in (sent, declined, accepted)]
        assert [type(answer) for answer in before] == [Sent, Declined, Accepted]
        process.kill()
        process.start()
        assert [worker.refund(refund, 33, 5.0) for refund in (sent, declined, accepted)] == before
        assert len(control.movements()) == 1
        assert control.complete(accepted.idempotency_key) == Sent(before[2].ref, 7025, "EUR")
        process.kill()
        process.start()
        assert worker.find(accepted.idempotency_key, 5.0) == Sent(before[2].ref, 7025, "EUR")
        assert len(control.movements()) == 2


def test_a_last_line_cut_off_by_a_crash_is_taken_away_and_said(tmp_path, capfd, refund, key):
    path = tmp_path / "log"
    whole = MOVED.line()
    path.write_bytes(whole + whole[:40])
    assert (read_movements(path).torn, len(read_movements(path))) == (True, 1)
    process = SandboxProcess(path)
    with process, SandboxGateway(process.url) as worker:
        assert "the last line was cut off by a crash" in capfd.readouterr().err
        assert path.read_bytes() == whole
        worker.refund(refund, 33, 5.0)
    assert [moved.key for moved in read_movements(path)] == ["k", key]
    assert not read_movements(path).torn


@pytest.mark.parametrize(
    "content",
    [
        b"merchant_id,refund_id\n",
        b"hello",
        MOVED.line() + b"{}\n" + MOVED.line(),
        b'{"event": "moved", "at": "2025-11-29T00:00:00+00:00", "key": "k"}\n',
        b'{"event": "melted", "at": "2025-11-29T00:00:00+00:00", "key": "k"}\n',
        b"\xff\n",
    ],
)
def test_a_file_that_is_not_a_log_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    line = 2 if content.startswith(MOVED.line()) else 1
    for read in (read_movements, Log):
        with pytest.raises(SandboxError, match=f"line {line} of .* is not a line of a sandbox gateway's log"):
            read(path)
    assert path.read_bytes() == content


def test_a_log_belongs_to_one_gateway_at_a_time(gateway, capfd):
    with pytest.raises(SandboxError, match="exit code"), SandboxProcess(gateway.log):
        pass
    assert "another sandbox gateway has the log" in capfd.readouterr().err


def test_a_line_is_read_as_it_was_written(tmp_path):
    entries = [
        MOVED,
        Entry("accepted", 1764440000.5, "ü", 1, "sb_2", order=Order("m", "r", 1, "JPY", "pay")),
        Entry("declined", 1764440001.0, "k", 1, reason="no", order=Order("m", "r", 1, "JPY", "pay")),
        Entry("token", 1764440002.0, "k", 9),
        Entry("forgotten", 1764440003.0, "k"),
    ]
    log = Log(tmp_path / "log")
    for entry in entries:
        log.append(entry)
    log.close()
    again = Log(tmp_path / "log")
    assert again.entries == entries
    again.close()


def test_lines_of_many_threads_stay_whole_and_each_is_synced_before_it_counts(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (sync(fd), synced.append(os.fstat(fd).st_size)))
    log = Log(tmp_path / "log")

    def write(number: int) -> bool:
        log.append(Entry("token", 1.0, f"k{number}", number))
        position = (tmp_path / "log").read_bytes().index(f'"k{number}"'.encode())
        return any(size > position for size in synced)

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(write, range(200)))
    log.close()
    again = Log(tmp_path / "log")
    assert {entry.token for entry in again.entries} == set(range(200))
    again.close()


def test_a_full_disk_leaves_no_half_line(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    log.append(MOVED)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
    try:
        with pytest.raises(SandboxError, match="can't write its log"):
            log.append(MOVED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == MOVED.line()
    log.append(MOVED)
    assert path.read_bytes() == MOVED.line() * 2
    log.close()


def test_after_a_failed_sync_nothing_more_is_written(tmp_path, monkeypatch):
    def fail(fd: int) -> None:
        raise OSError("input/output error")

    log = Log(tmp_path / "log")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(SandboxError, match="input/output error"):
            log.append(MOVED)
    with pytest.raises(SandboxError, match="input/output error"):
        log.append(MOVED)
    log.close()


def test_movements_are_summed_by_currency_and_repeats_are_named(tmp_path):
    path = tmp_path / "log"
    lines = [
        ("k1", "r_1", 100, "EUR"),
        ("k2", "r_1", 50, "EUR"),
        ("k3", "r_2", 7, "JPY"),
        ("k3", "r_2", 7, "JPY"),
    ]
    with path.open("wb") as file:
        for number, (key, refund_id, amount, currency) in enumerate(lines):
            order = Order("m_1", refund_id, amount, currency, None)
            file.write(Entry("moved", 1.0, key, 1, f"sb_{number}", order=order).line())
        file.write(Entry("accepted", 1.0, "k4", 1, "sb_9", order=order).line())
    moved = read_movements(path)
    assert len(moved) == 4
    assert moved.sums == {"EUR": 150, "JPY": 14}
    assert moved.keys_moved_twice == {"k3": 2}
    assert moved.refunds_moved_twice == {("m_1", "r_1"): 2, ("m_1", "r_2"): 2}
    assert [item.ref for item in moved.of(merchant_id="m_1", refund_id="r_2")] == ["sb_2", "sb_3"]
    assert len(moved.of(merchant_id="m_2")) == 0
