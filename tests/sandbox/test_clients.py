"""The workers' side: what isn't known is called Unknown, and many calls run at once."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ledger.gateway import AsyncGateway, Gateway, Nothing, Sent, Unknown
from ledger.sandbox import (
    AsyncSandboxGateway,
    Behaviour,
    Fault,
    SandboxControl,
    SandboxGateway,
    SandboxProcess,
)


@contextmanager
def server_that(answers: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that takes one connection, reads one request and answers as told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                answers(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def saying(status: int, body: bytes) -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_gateway_that_is_not_there_is_unknown(refund, key):
    with SandboxGateway(f"http://127.0.0.1:{free_port()}") as worker:
        answer = worker.refund(refund, 33, 5.0)
        assert isinstance(answer, Unknown)
        assert "refused" in answer.reason.lower()
        assert isinstance(worker.find(key, 5.0), Unknown)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>fine</html>"),
        (200, b'{"status": "sent"}'),
        (200, b'{"status": "sent", "ref": 7, "amount_minor": 1, "currency": "EUR"}'),
        (200, b"[]"),
        (402, b'{"status": "declined", "reason": "no"}'),
        (404, b"<html>no such page</html>"),
        (404, b'{"error": "no_such_path", "message": "x"}'),
        (409, b'{"error": "something_else", "message": "x"}'),
        (502, b""),
        (200, b"\xff\xfe"),
    ],
)
def test_a_reply_that_is_not_understood_is_unknown(refund, key, status, body):
    with server_that(saying(status, body)) as url, SandboxGateway(url) as worker:
        assert isinstance(worker.refund(refund, 33, 5.0), Unknown)
    with server_that(saying(status, body)) as url, SandboxGateway(url) as worker:
        assert isinstance(worker.find(key, 5.0), Unknown)


def test_a_look_up_that_was_refused_says_nothing_about_the_refund(worker):
    assert isinstance(worker.find("", 5.0), Unknown)


def test_only_a_plain_no_such_key_is_nothing(key):
    with server_that(saying(404, b'{"error": "no_such_key"}')) as url, SandboxGateway(url) as worker:
        assert worker.find(key, 5.0) == Nothing()


def test_a_reply_that_trickles_in_does_not_stretch_the_time_of_the_call(refund):
    done = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        while not done.wait(0.02):
            connection.sendall(b" ")

    with server_that(trickle) as url, SandboxGateway(url) as worker:
        before = time.monotonic()
        assert isinstance(worker.refund(refund, 33, 0.2), Unknown)
        assert time.monotonic() - before < 2.0
        done.set()


def test_without_time_left_nothing_is_sent(worker, control, refund, key):
    assert isinstance(worker.refund(refund, 33, 0.0), Unknown)
    assert control.calls(key).refunds == 0


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "https://127.0.0.1", "http://", "http://h/path", "http://h:x"]
)
def test_a_url_of_the_wrong_kind_is_refused(url):
    with pytest.raises(ValueError):
        SandboxGateway(url)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_speak_on_its_parents_connection(worker, control, new_refund):
    parents, childs = new_refund(), new_refund()
    worker.refund(new_refund(), 33, 5.0)
    control.plan(childs.idempotency_key, Fault.HOLD)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if isinstance(worker.refund(childs, 33, 10.0), Sent) else 1)
    control.wait_until_held(childs.idempotency_key)
    answer = worker.refund(parents, 33, 2.0)
    control.release(childs.idempotency_key)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert isinstance(answer, Sent)


def test_32_calls_run_at_once_from_asyncio(tmp_path, new_refund):
    async def send_all(url: str) -> list[object]:
        async with AsyncSandboxGateway(url) as worker:
            return await asyncio.gather(*(worker.refund(new_refund(), 33, 10.0) for _ in range(32)))

    with SandboxProcess(tmp_path / "log", behaviour=Behaviour(latency=0.25)) as process:
        before = time.monotonic()
        answers = asyncio.run(send_all(process.url))
        assert time.monotonic() - before < 32 * 0.25 / 4
        assert {type(answer) for answer in answers} == {Sent}
        with SandboxControl(process.url) as control:
            assert len(control.movements()) == 32


def test_the_time_a_call_waits_for_a_thread_counts(gateway, control, new_refund):
    held, waiting = new_refund(), new_refund()
    control.plan(held.idempotency_key, Fault.HOLD)

    async def send_both() -> list[object]:
        async with AsyncSandboxGateway(gateway.url, calls=1) as worker:
            return await asyncio.gather(worker.refund(held, 33, 0.1), worker.refund(waiting, 33, 0.05))

    answers = asyncio.run(send_both())
    assert {type(answer) for answer in answers} == {Unknown}
    control.wait_until_held(held.idempotency_key)
    control.release(held.idempotency_key)
    assert control.calls(waiting.idempotency_key).refunds == 0


def test_find_works_from_asyncio(gateway, worker, refund, key):
    async def find() -> object:
        async with AsyncSandboxGateway(gateway.url) as gateway_:
            return await gateway_.find(key, 5.0)

    assert asyncio.run(find()) == Nothing()
    assert worker.refund(refund, 33, 5.0) == asyncio.run(find())


def test_both_clients_are_gateways(gateway):
    blocking: Gateway = SandboxGateway(gateway.url)
    awaiting: AsyncGateway = AsyncSandboxGateway(gateway.url)
    blocking.close()
    awaiting.close()
