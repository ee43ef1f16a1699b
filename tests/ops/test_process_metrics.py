"""What a process counts of itself: leases, renewals, the gateway, refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ledger import observe
from ledger.client import Ledger
from ledger.errors import Busy
from ledger.gateway import Accepted, Declined, Sent, Unknown
from ledger.lease import Lease
from ledger.process_metrics import ProcessMetrics
from ledger.settle import Options, settle
from tests.ops.conftest import CHECKOUT, Promtool, named, series
from tests.settle.conftest import redis_proxy, server
from tests.settle.gateways import Scripted, add
from tests.story import BOB, MERCHANT, RESOURCE, activated, added, as_ledger_fn, limited, raised, until

__all__ = ["redis_proxy", "server"]


@pytest.fixture
def scrape() -> Iterator[Callable[[], str]]:
    """What this process has to tell, from the beginning of the test."""
    registry = CollectorRegistry()
    counting = ProcessMetrics(registry).listen()
    yield lambda: generate_latest(registry).decode()
    counting.close()


Scrape = Callable[[], str]


def test_a_lease_is_counted_from_its_taking_to_its_return(scrape: Scrape, dsn: str, redis_url: str) -> None:
    with Lease(RESOURCE, db=dsn, redis=redis_url), pytest.raises(Busy):
        Lease(RESOURCE, db=dsn, redis=redis_url, wait=0.05).acquire()
    seen = scrape()
    assert series(seen, "ledger_lease_acquires_total", kind="settle", outcome="taken") == 1
    assert series(seen, "ledger_lease_acquires_total", kind="settle", outcome="busy") == 1
    assert series(seen, "ledger_lease_acquire_seconds_count", kind="settle") == 1
    assert series(seen, "ledger_lease_wait_seconds_sum", kind="settle") >= 0.05
    assert series(seen, "ledger_lease_held_seconds_sum", kind="settle") >= 0.05
    assert series(seen, "ledger_lease_held_ratio_bucket", kind="settle", le="0.1") == 1


def test_renewals_are_counted_and_a_loss_by_its_reason(
    scrape: Scrape, dsn: str, redis_proxy: Any, operators: Ledger
) -> None:
    limited(operators, idle=0.3)
    with Lease(RESOURCE, db=dsn, redis=f"redis://{redis_proxy.host}:{redis_proxy.port}", ttl=0.4) as lease:
        until(lambda: series(scrape(), "ledger_lease_renewals_total", kind="settle", outcome="on_time"))
        redis_proxy.mode = "refuse"
        until(lambda: lease.lost)
    seen = scrape()
    assert series(seen, "ledger_lease_renewals_total", kind="settle", outcome="failed") >= 1
    assert series(seen, "ledger_leases_lost_total", kind="settle", reason="unreachable") == 1


def test_the_gateways_answers_are_counted(scrape: Scrape, dsn: str, redis_url: str, ledger: Ledger) -> None:
    add(ledger, 5)
    answers = {
        "r_001": Sent("re_1"), "r_002": Accepted("re_2"), "r_003": Declined("closed", True), "r_004": Unknown("?"),
        "r_005": RuntimeError("broken"),
    }  # fmt: skip
    settle(MERCHANT, db=dsn, redis=redis_url, gateway=Scripted(answers))
    seen = scrape()
    counted = {
        outcome: series(seen, "ledger_gateway_calls_total", call="refund", outcome=outcome)
        for outcome in ("sent", "accepted", "declined", "unknown")
    }
    assert counted == {"sent": 1, "accepted": 1, "declined": 1, "unknown": 2}
    assert series(seen, "ledger_gateway_call_seconds_count", call="refund") == 5
    assert series(seen, "ledger_refunds_claimed_total", outcome="claimed") == 5


def test_takeovers_and_attempts_used_up_are_counted(
    scrape: Scrape, dsn: str, redis_url: str, ledger: Ledger, admin: psycopg.Connection[Any]
) -> None:
    add(ledger, 2)
    for claim in ledger.claim_refunds(MERCHANT, activated(ledger), 2):
        assert claim.outcome == "claimed"
    as_ledger_fn(admin, "update ledger.refund set attempts = 5 where refund_id = 'r_002'")
    settle(MERCHANT, db=dsn, redis=redis_url, gateway=Scripted())
    seen = scrape()
    assert series(seen, "ledger_refunds_claimed_total", outcome="taken_over") == 1
    assert series(seen, "ledger_refunds_claimed_total", outcome="attempts_used_up") == 1
    assert series(seen, "ledger_gateway_calls_total", call="find", outcome="nothing") == 1


def test_refusals_are_counted_by_kind_code_and_reason(scrape: Scrape, ledger: Ledger) -> None:
    stale = activated(ledger)
    activated(ledger, BOB)
    with raised("LG101"):
        ledger.claim_refunds(MERCHANT, stale, 1)
    with raised("LG304"):
        ledger.claim_refunds(MERCHANT, stale, 0)
    seen = scrape()
    assert series(seen, "ledger_calls_refused_total", kind="settle", code="LG101", reason="superseded") == 1
    assert series(seen, "ledger_calls_refused_total", kind="settle", code="LG304", reason="") == 1


@pytest.mark.parametrize("count", [1, 2], ids=["by itself", "in a set"])
def test_a_movement_found_twice_is_counted_once(
    count: int, scrape: Scrape, dsn: str, redis_url: str, ledger: Ledger
) -> None:
    """The gateway answers with another reference than a person has recorded meanwhile."""
    ids = add(ledger, count)

    class Gateway(Scripted):
        def refund(self, refund: Any, token: int, timeout: float) -> Any:
            if refund.refund_id == "r_001":
                ledger.confirm_refund(MERCHANT, "r_001", token, "re_other")
            return super().refund(refund, token, timeout)

    assert ids
    settle(MERCHANT, db=dsn, redis=redis_url, gateway=Gateway(), options=Options(in_flight=count))
    assert series(scrape(), "ledger_movements_found_twice_total") == 1
    assert series(scrape(), "ledger_answers_not_recorded_total") == 1


def test_promtool_accepts_what_a_process_tells(
    scrape: Scrape, promtool: Promtool, dsn: str, redis_url: str, ledger: Ledger
) -> None:
    add(ledger, 3)
    settle(MERCHANT, db=dsn, redis=redis_url, gateway=Scripted())
    seen = scrape()
    assert not any(word in name for name in named(seen) for word in (MERCHANT, "r_00"))
    judged = promtool("check", "metrics", stdin=seen)
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


def test_an_observer_that_fails_does_not_disturb_the_work(
    ledger: Ledger, dsn: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str, fields: Any) -> None:
        raise RuntimeError("a mistake")

    added(ledger, "r_1")
    observe.add(fail)
    try:
        report = settle(MERCHANT, db=dsn, redis=redis_url, gateway=Scripted())
    finally:
        observe.remove(fail)
    assert report.counts["sent"] == 1
    assert "observer_failed" in caplog.messages


def test_who_does_not_ask_needs_no_prometheus_client() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, ledger.settle, ledger.commands.metrics; print(*sys.modules)"],
        cwd=CHECKOUT, text=True, capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert "prometheus_client" not in loaded
