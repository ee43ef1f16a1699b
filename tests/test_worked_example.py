"""The worked example: two real workers, the first one frozen past its lease by a real SIGSTOP, and woken up.

The judge is the gateway's own log: each refund is one movement of the right amount.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from ledger.client import Ledger
from ledger.demo.story import worker
from ledger.examples import read_example
from ledger.sandbox import SandboxControl, SandboxProcess, read_movements
from tests.story import until

MERCHANT = "m_4471"
KEY = "lock:{settle:m_4471}"
WORKERS = {"threads": "ledger.demo.worker", "tasks": "tests.async_worker"}

Said = list[dict[str, Any]]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path / "gateway.log") as process:
        yield process


@pytest.fixture
def amounts(ledger: Ledger, operators: Ledger) -> Callable[[int], dict[str, int]]:
    """The first refunds of the example, added; and leases that end soon."""
    operators.set_kind(
        "settle",
        lease_ttl=timedelta(seconds=1),
        idle_limit=timedelta(seconds=0.5),
        actor="tests",
        reason="short limits",
    )

    def add(count: int) -> dict[str, int]:
        refunds = read_example()[:count]
        for start in range(0, len(refunds), 1000):
            part = refunds[start : start + 1000]
            ledger.add_refunds(
                MERCHANT,
                [one.refund_id for one in part],
                [one.amount_minor for one in part],
                [one.currency for one in part],
            )
        return {one.refund_id: one.amount_minor for one in refunds}

    return add


def told(said: Said, event: str, refund: str = "") -> list[dict[str, Any]]:
    return [one for one in said if one["event"] == event and refund in ("", one["refund"])]


@pytest.mark.parametrize(
    ("world", "count", "batch", "freezes_at"),
    [
        pytest.param("threads", 1200, "1", "r_815", id="threads, all 1,200, one at a time"),
        pytest.param("tasks", 300, "1", "r_150", id="tasks, 300, one at a time"),
        pytest.param("threads", 300, "50", "r_150", id="threads, 300, many at once"),
        pytest.param("tasks", 300, "50", "r_150", id="tasks, 300, many at once"),
    ],
)
def test_each_refund_moves_money_once_and_the_woken_worker_is_refused(
    world: str,
    count: int,
    batch: str,
    freezes_at: str,
    amounts: Callable[[int], dict[str, int]],
    sandbox: SandboxProcess,
    dsn: str,
    redis_url: str,
    admin: psycopg.Connection[Any],
) -> None:
    expected = amounts(count)
    arguments = [dsn, redis_url, sandbox.url]
    said_a: Said = []
    said_b: Said = []

    with worker(WORKERS[world], [*arguments, batch, freezes_at], said_a.append) as a:
        a.wait_until_frozen()
        with redis.Redis.from_url(redis_url) as server:
            until(lambda: not server.exists(KEY))
        with worker(WORKERS[world], [*arguments, "100"], said_b.append) as b:
            b.finish()
        sent_by_then = read_movements(sandbox.log)
        a.signal(signal.SIGCONT)
        a.finish()

    # The gateway: one movement each, of the right amount, and none after A woke up.
    movements = read_movements(sandbox.log)
    assert {one.refund_id: one.amount_minor for one in movements.items} == expected
    assert len(movements) == len(sent_by_then) == count
    assert not movements.refunds_moved_twice

    # The refund at which A froze: B asked first, A sent again under the same key, and got B's movement.
    key = f"{MERCHANT}/{freezes_at}"
    token_a, token_b = told(said_a, "freeze")[0]["token"], told(said_b, "claimed")[0]["token"]
    assert token_b > token_a
    assert [one["outcome"] for one in told(said_b, "asked", key)] == ["nothing"]
    with SandboxControl(sandbox.url) as control:
        assert control.calls(key).tokens == (token_b, token_a)
    assert told(said_a, "answered", freezes_at)[0]["outcome"] == "sent"
    assert told(said_a, "refused", freezes_at)[0]["outcome"] == "LG101"

    # The ledger: all sent, that one by B; A's refusal is on record with both tokens.
    assert admin.execute(
        "select state, count(*) from ledger.refund where merchant_id = %s group by 1", [MERCHANT]
    ).fetchall() == [("sent", count)]
    row = admin.execute(
        "select fence, gateway_ref from ledger.refund where merchant_id = %s and refund_id = %s", [MERCHANT, freezes_at]
    ).fetchone()
    assert row == (token_b, movements.of(refund_id=freezes_at).items[0].ref)
    refusals = admin.execute("select distinct code, token, active from ledger.refusal").fetchall()
    assert refusals == [("LG101", token_a, token_b)]
    assert [(one["code"], one["token"], one["active"]) for one in told(said_a, "refusal")] == refusals
    assert Ledger(admin).verify() == []
    with redis.Redis.from_url(redis_url) as server:
        assert not server.exists(KEY)
