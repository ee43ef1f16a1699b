"""Settling while Redis, Postgres or the network between fails: nothing is sent twice, and nothing is lost."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import redis

from ledger import dev
from ledger.client import Ledger
from ledger.errors import LeaseUnreachable
from ledger.gateway import Accepted, Declined, Unknown
from ledger.sandbox import SandboxGateway, SandboxProcess, read_movements
from ledger.settle import settle
from ledger.settlement import Event
from tests.faults import FaultProxy
from tests.settle.conftest import Settle
from tests.settle.gateways import KEY, Held, Rendezvous, Scripted, add
from tests.story import MERCHANT, in_background, journal, until

States = Callable[..., dict[str, str]]
Connection = psycopg.Connection[Any]


def at(name: str, refund_id: str, act: Callable[[], object]) -> Callable[[Event], None]:
    """Do something when this is told of that refund."""

    def heard(event: Event) -> None:
        if (event.name, event.refund_id) == (name, refund_id):
            act()

    return heard


# Redis.


def test_without_redis_nothing_is_begun(
    settled: Settle, ledger: Ledger, running: dev.Servers, states: States, redis_url: str
) -> None:
    add(ledger, 2)
    running.kill_redis()
    gateway = Scripted()
    with pytest.raises(LeaseUnreachable):
        settled(gateway)
    assert (gateway.sent, set(states().values())) == ([], {"pending"})


def test_when_redis_dies_what_was_answered_is_recorded_and_the_rest_given_back(
    settled: Settle, short_lease: float, ledger: Ledger, running: dev.Servers, states: States
) -> None:
    add(ledger, 10)

    def outlived() -> None:
        running.kill_redis()
        time.sleep(short_lease)

    gateway = Scripted({"r_002": outlived})
    report = settled(gateway, in_flight=1, batch=10)

    assert report.lost is not None
    assert report.lost.reason == "unreachable"
    assert gateway.sent == ["r_001", "r_002"]
    assert states() == {refund_id: "sent" if refund_id in gateway.sent else "pending" for refund_id in states()}
    assert report.left_open() == report.left_open("pending") == 8


def test_a_lease_that_cannot_be_given_back_is_worth_a_warning_alone(
    settled: Settle, ledger: Ledger, redis_proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    add(ledger, 1)

    def down() -> None:
        redis_proxy.mode = "refuse"

    report = settled(
        Scripted(), redis=f"redis://{redis_proxy.host}:{redis_proxy.port}", notify=at("recorded", "r_001", down)
    )
    assert report.counts["sent"] == 1
    assert "lease_not_given_back" in caplog.messages


# Postgres.


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_postgres_is_waited_for(
    mode: str,
    settled: Settle,
    ledger: Ledger,
    running: dev.Servers,
    admin_dsn: str,
    sandbox: SandboxProcess,
    at_sandbox: SandboxGateway,
) -> None:
    ids = add(ledger, 300)
    restarted = threading.Event()

    def restart() -> None:
        running.restart_postgres(mode)
        restarted.set()

    asked = threading.Event()

    class Restarting:
        """The tenth call restarts the server, and others go on."""

        def __init__(self) -> None:
            self.count = 0

        def refund(self, *args: Any) -> Any:
            self.count += 1
            if self.count == 10 and not asked.is_set():
                asked.set()
                threading.Thread(target=restart).start()
            return at_sandbox.refund(*args)

        def find(self, *args: Any) -> Any:
            return at_sandbox.find(*args)

    report = settled(Restarting(), in_flight=4, batch=20)

    assert restarted.wait(20)
    assert report.counts["sent"] == 300
    assert report.open == ()
    movements = read_movements(sandbox.log)
    assert sorted(movement.refund_id for movement in movements.items) == ids
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        assert Ledger(admin).verify() == []


def test_when_postgres_stays_away_the_answers_are_in_the_log_and_the_next_one_finds_them(
    settled: Settle,
    ledger: Ledger,
    running: dev.Servers,
    server: redis.Redis,
    sandbox: SandboxProcess,
    at_sandbox: SandboxGateway,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add(ledger, 3)

    class Failing(Scripted):
        def refund(self, *args: Any) -> Any:
            answer = at_sandbox.refund(*args)
            running.stop_postgres()
            return answer

    with pytest.raises(psycopg.OperationalError):
        settled(Failing(), in_flight=1, patience=0.3)
    reference = read_movements(sandbox.log).items[0].ref
    assert any(reference in getattr(record, "answer", "") for record in caplog.records)
    assert server.get(KEY) is None

    running.start_postgres()
    report = settled(at_sandbox)
    assert report.counts == {"taken_over": 3, "sent": 3}
    assert len(read_movements(sandbox.log)) == 3


def test_a_postgres_that_falls_silent_is_not_waited_for_longer_than_the_patience(
    settled: Settle, ledger: Ledger, proxied_dsn: str, postgres_proxy: FaultProxy, states: States
) -> None:
    """Nobody cuts the connection, it just says nothing any more; the lease would be renewed for ever."""
    add(ledger, 5)

    def silent_for_a_while() -> None:
        postgres_proxy.mode = "blackhole"

        def recover() -> None:
            postgres_proxy.mode = "pass"

        threading.Timer(0.2, recover).start()

    report = settled(Scripted({"r_002": silent_for_a_while}), db=proxied_dsn, in_flight=1, batch=2, patience=0.4)
    assert report.counts["sent"] == 5
    assert set(states().values()) == {"sent"}


def lost(proxy: FaultProxy) -> Callable[[], None]:
    return lambda: proxy.lose_replies(1)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (None, "sent"),
        (Accepted("re_1"), "accepted"),
        (Declined("no", True), "failed"),
        (Unknown("timeout"), "unknown"),
    ],
    ids=["confirm", "accept", "fail", "unknown"],
)
def test_a_recording_whose_reply_was_lost_is_repeated_and_recognised(
    answer: Any,
    state: str,
    settled: Settle,
    ledger: Ledger,
    proxied_dsn: str,
    postgres_proxy: FaultProxy,
    admin: Connection,
    states: States,
) -> None:
    add(ledger, 3)

    def lose_its_reply() -> Any:
        postgres_proxy.lose_replies(1)
        return answer

    report = settled(Scripted({"r_002": lose_its_reply}), db=proxied_dsn, in_flight=1, batch=1)

    assert postgres_proxy.replies_lost == 1
    assert states() == {"r_001": "sent", "r_002": state, "r_003": "sent"}
    assert report.refused == ()
    assert [entry[1] for entry in journal(admin, "r_002")] == ["pending", "sending", state]
    assert sum(report.counts[name] for name in {"sent", state}) == 3


def test_confirms_of_many_whose_reply_was_lost_are_repeated_and_recognised(
    settled: Settle, ledger: Ledger, proxied_dsn: str, postgres_proxy: FaultProxy, admin: Connection
) -> None:
    ids = add(ledger, 4)
    together = Rendezvous(4)
    noted: list[str] = []

    def answered(event: Event) -> None:
        if event.name == "answered":
            noted.append(event.refund_id)
            if len(noted) == 4:
                postgres_proxy.lose_replies(1)

    report = settled(Scripted({"*": together}), db=proxied_dsn, in_flight=4, notify=answered)

    assert postgres_proxy.replies_lost == 1
    assert report.counts == {"claimed": 4, "sent": 4}
    assert report.sent_minor == {"EUR": 4 * 7025}
    assert all(len(journal(admin, refund_id)) == 3 for refund_id in ids)


@pytest.mark.parametrize("batch", [1, 3])
def test_what_a_claim_took_whose_reply_was_lost_is_asked_about_and_sent_once(
    batch: int,
    settled: Settle,
    ledger: Ledger,
    proxied_dsn: str,
    postgres_proxy: FaultProxy,
    states: States,
    admin: Connection,
) -> None:
    ids = add(ledger, 7)
    first_of_its_claim = ids[batch]
    gateway = Scripted()
    report = settled(
        gateway,
        db=proxied_dsn,
        in_flight=1,
        batch=batch,
        notify=at("recorded" if batch == 1 else "answered", ids[batch - 1], lost(postgres_proxy)),
    )

    assert postgres_proxy.replies_lost == 1
    assert sorted(gateway.sent) == ids
    assert set(states().values()) == {"sent"}
    if batch == 1:
        assert gateway.asked == [first_of_its_claim]
        assert report.counts == {"claimed": 6, "reclaimed": 1, "sent": 7}
        assert admin.execute("select max(attempts) from ledger.refund").fetchone() == (1,)


def test_a_claim_that_ends_after_its_connection_is_found_at_the_end(
    settled: Settle,
    ledger: Ledger,
    proxied_dsn: str,
    postgres_proxy: FaultProxy,
    admin: Connection,
    states: States,
) -> None:
    """The retry passes over the rows, which the orphan has locked; they must not be forgotten."""
    ids = add(ledger, 4)
    admin.execute(
        """
        create function public.linger() returns trigger language plpgsql
        as 'begin perform pg_sleep(0.4); return new; end';
        create trigger linger before update on ledger.refund
        for each row when (new.refund_id = 'r_002' and old.state = 'pending') execute function public.linger();
        """
    )
    gateway = Scripted()
    running = in_background(lambda: settled(gateway, db=proxied_dsn, in_flight=2, batch=2))
    until(lambda: admin.execute("select 1 from pg_stat_activity where wait_event = 'PgSleep'").fetchone())
    postgres_proxy.cut()

    report = running.result(10)

    assert sorted(gateway.sent) == ids
    assert set(states().values()) == {"sent"}
    assert report.open == ()
    assert "r_002" in gateway.asked


def test_a_lost_claim_is_given_back_when_a_stop_was_asked_for(
    settled: Settle, ledger: Ledger, proxied_dsn: str, postgres_proxy: FaultProxy, states: States
) -> None:
    add(ledger, 4)

    class StopWhenLost:
        def is_set(self) -> bool:
            return postgres_proxy.replies_lost == 1

    gateway = Scripted()
    report = settled(
        gateway,
        db=proxied_dsn,
        in_flight=1,
        batch=1,
        stop=StopWhenLost(),
        notify=at("recorded", "r_001", lost(postgres_proxy)),
    )
    assert report.stopped
    assert gateway.sent == ["r_001"]
    assert states() == {"r_001": "sent", "r_002": "unknown", "r_003": "pending", "r_004": "pending"}
    assert report.left_open("sending") == 0


def test_a_release_whose_reply_was_lost_is_repeated(
    settled: Settle, ledger: Ledger, proxied_dsn: str, postgres_proxy: FaultProxy, states: States
) -> None:
    add(ledger, 4)
    stop = threading.Event()

    def stop_and_lose() -> None:
        stop.set()
        postgres_proxy.lose_replies(1)

    report = settled(
        Scripted(), db=proxied_dsn, in_flight=1, batch=4, stop=stop, notify=at("recorded", "r_001", stop_and_lose)
    )
    assert report.stopped
    assert postgres_proxy.replies_lost == 1
    assert "sending" not in states().values()
    assert report.refused == ()


def test_a_network_that_comes_and_goes_loses_nothing(
    settled: Settle,
    ledger: Ledger,
    proxied_dsn: str,
    postgres_proxy: FaultProxy,
    sandbox: SandboxProcess,
    at_sandbox: SandboxGateway,
    states: States,
    in_order: Callable[[], bool],
) -> None:
    ids = add(ledger, 150)
    count = 0

    def unsteady(event: Event) -> None:
        nonlocal count
        count += 1
        if count % 37 == 0:
            postgres_proxy.lose_replies(1)
        elif count % 53 == 0:
            postgres_proxy.cut()

    report = settled(at_sandbox, db=proxied_dsn, in_flight=4, batch=10, notify=unsteady)

    assert postgres_proxy.replies_lost > 5
    assert report.counts["sent"] == 150
    assert set(states().values()) == {"sent"}
    assert sorted(movement.refund_id for movement in read_movements(sandbox.log).items) == ids
    assert in_order()


# The process itself.


def test_ctrl_c_leaves_nothing_claimed_and_no_lease(
    ledger: Ledger, dsn: str, redis_url: str, server: redis.Redis, states: States
) -> None:
    add(ledger, 5)
    held = Held()

    def interrupted() -> None:
        _thread.interrupt_main()
        held()

    with pytest.raises(KeyboardInterrupt):
        settle(MERCHANT, db=dsn, redis=redis_url, gateway=Scripted({"r_001": interrupted}))
    held.let_go.set()

    assert "sending" not in states().values()
    assert states()["r_001"] == "unknown"
    assert server.get(KEY) is None


def test_a_lease_in_postgres_that_a_restart_took_ends_it_and_the_answers_are_recorded(
    settled: Settle, short_lease: float, ledger: Ledger, operators: Ledger, running: dev.Servers, dsn: str
) -> None:
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis here")
    add(ledger, 6)

    def restart() -> None:
        running.restart_postgres()
        time.sleep(short_lease)

    gateway = Scripted({"r_002": restart})
    report = settled(gateway, redis=None, in_flight=1, batch=6)

    assert report.lost is not None
    assert report.lost.reason in ("broken", "unreachable")
    assert gateway.sent == ["r_001", "r_002"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert [(row.state, row.refunds) for row in Ledger(connection).count_open(MERCHANT)] == [("pending", 4)]
    assert report.counts["sent"] == 2
