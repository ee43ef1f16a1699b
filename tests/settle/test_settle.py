"""Settling a merchant, in both worlds: what becomes of each answer, and what is begun and what isn't."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import psycopg_pool
import pytest
import redis

from ledger import settle as settling
from ledger.client import Ledger
from ledger.errors import BadArgument, Busy, GatewayRefConflict
from ledger.gateway import Accepted, Declined, Nothing, Sent, Unknown
from ledger.lease import Lease
from ledger.sandbox import Fault, SandboxControl, SandboxGateway, SandboxProcess, read_movements
from ledger.settle import Options
from ledger.settlement import Event
from tests.settle.conftest import Settle
from tests.settle.gateways import KEY, Held, Rendezvous, Scripted, add
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, activated, in_background, journal, refund, until

States = Callable[..., dict[str, str]]
Connection = psycopg.Connection[Any]


# Answers.


NO_ANSWER = "which is no answer that can be recorded"
ANSWERS = [
    (Sent("re_1"), "sent", None),
    (Sent("re_2", 7025, "EUR"), "sent", None),
    (Sent("re_3", 7024, "EUR"), "review", "the gateway names another amount or currency"),
    (Sent("re_4", 7025, "USD"), "review", "the gateway names another amount or currency"),
    (Accepted("re_5"), "accepted", None),
    (Declined("card closed", True), "failed", "card closed"),
    (Declined("later", False), "unknown", "declined, and not remembered under the key: later"),
    (Unknown("it was a 502"), "unknown", "it was a 502"),
    (Nothing(), "unknown", "the gateway has nothing"),
    (OSError("no route"), "unknown", "OSError: no route"),
    (TimeoutError(), "unknown", "TimeoutError"),
    (ValueError("\x00"), "unknown", "ValueError:"),
    ("sent", "unknown", f"the gateway's adapter returned 'sent', {NO_ANSWER}"),
    (Accepted(""), "unknown", f"the gateway's adapter returned Accepted(ref=''), {NO_ANSWER}"),
]


def test_each_answer_leads_to_its_state(settled: Settle, ledger: Ledger, admin: Connection) -> None:
    ids = add(ledger, len(ANSWERS))
    told = {refund_id: answer for refund_id, (answer, _, _) in zip(ids, ANSWERS, strict=True)}
    expected = {refund_id: (state, reason) for refund_id, (_, state, reason) in zip(ids, ANSWERS, strict=True)}

    report = settled(Scripted(told))

    came_to = admin.execute(
        "select distinct on (refund_id) refund_id, to_state, reason from ledger.journal order by refund_id, number desc"
    ).fetchall()
    assert {refund_id: (state, reason) for refund_id, state, reason in came_to} == expected
    states = [state for state, _ in expected.values()]
    assert report.counts == {"claimed": len(ids)} | {state: states.count(state) for state in states}
    assert report.sent_minor == {"EUR": 2 * 7025}
    assert report.refused == ()
    assert report.left_open() == len(ids) - 3
    assert report.left_open("unknown") == states.count("unknown")
    assert Ledger(admin).verify() == []


def test_even_what_ends_a_program_is_an_unknown_outcome(
    settled: Settle, world: str, ledger: Ledger, states: States
) -> None:
    add(ledger, 2)
    # An executor hands SystemExit on to the event loop, which is right to end; a thread of ours mustn't die of it.
    error = SystemExit(3) if world == "threads" else RuntimeError("3")
    report = settled(Scripted({"r_001": error}))
    assert states() == {"r_001": "unknown", "r_002": "sent"}
    assert report.left_open("unknown") == 1


def test_the_lease_is_given_back_and_the_token_was_the_one_presented(
    settled: Settle, ledger: Ledger, admin: Connection, server: redis.Redis
) -> None:
    add(ledger, 2)
    gateway = Scripted()

    report = settled(gateway)

    assert server.get(KEY) is None
    assert admin.execute("select active, holder from ledger.fence where resource = %s", [RESOURCE]).fetchone() == (
        report.token,
        report.holder,
    )
    assert gateway.tokens == [report.token, report.token]


def test_a_merchant_without_open_refunds_is_done_at_once(settled: Settle, ledger: Ledger) -> None:
    add(ledger, 1)
    settled(Scripted())
    gateway = Scripted()
    report = settled(gateway)
    assert (report.counts, report.open, gateway.sent) == ({}, (), [])


def test_each_step_is_told_in_order(settled: Settle, ledger: Ledger) -> None:
    add(ledger, 1)
    told: list[Event] = []
    report = settled(Scripted(), notify=told.append)
    assert told == [
        Event("claimed", "r_001", "claimed", report.token),
        Event("answered", "r_001", "sent", report.token),
        Event("recorded", "r_001", "confirmed", report.token),
    ]


# Taking over.


FOUND = [
    (Sent("re_1", 7025, "EUR"), "sent"),
    (Sent("re_2", 1, "EUR"), "review"),
    (Accepted("re_3"), "accepted"),
    (Declined("card closed", True), "failed"),
    (Declined("later", False), "unknown"),
    (Unknown("a 500"), "unknown"),
    (OSError("no route"), "unknown"),
    (None, "unknown"),
    (Nothing(), "sent"),
]


@pytest.mark.parametrize("left", ["sending", "unknown"])
def test_what_another_holder_left_is_asked_about_first_and_sent_only_where_there_is_nothing(
    left: str, settled: Settle, ledger: Ledger, states: States
) -> None:
    ids = add(ledger, len(FOUND))
    token = activated(ledger)
    ledger.claim_refunds(MERCHANT, token, 100)
    if left == "unknown":
        for refund_id in ids:
            ledger.mark_unknown(MERCHANT, refund_id, token, "timeout")
    gateway = Scripted(finds={refund_id: found for refund_id, (found, _) in zip(ids, FOUND, strict=True)})

    report = settled(gateway)

    assert sorted(gateway.asked) == ids
    assert gateway.sent == ids[-1:]
    assert states() == {refund_id: state for refund_id, (_, state) in zip(ids, FOUND, strict=True)}
    assert report.counts["taken_over"] == len(ids)


def test_a_second_run_resolves_what_the_first_left_unknown(
    settled: Settle,
    ledger: Ledger,
    sandbox: SandboxProcess,
    control: SandboxControl,
    at_sandbox: SandboxGateway,
    states: States,
) -> None:
    add(ledger, 3)
    control.plan("m_1/r_001", Fault.DROP_REPLY)
    control.plan("m_1/r_002", Fault.ERROR)

    first = settled(at_sandbox)
    assert states() == {"r_001": "unknown", "r_002": "unknown", "r_003": "sent"}
    assert first.left_open("unknown") == first.left_open() == 2

    second = settled(at_sandbox)
    assert set(states().values()) == {"sent"}
    assert second.counts == {"taken_over": 2, "sent": 2}
    assert len(read_movements(sandbox.log)) == 3
    assert control.calls("m_1/r_001").refunds == 1, "it was found and not sent again"
    assert control.calls("m_1/r_002").refunds == 2


def test_what_this_run_finds_unknown_is_left_for_the_next_one(settled: Settle, ledger: Ledger) -> None:
    add(ledger, 2)
    gateway = Scripted({"*": Unknown("timeout")})
    report = settled(gateway)
    assert sorted(gateway.sent) == ["r_001", "r_002"]
    assert report.left_open("unknown") == report.left_open() == 2
    assert not any(row.is_claimable for row in report.open)


def test_used_up_attempts_end_in_review_and_are_not_sent(
    settled: Settle, ledger: Ledger, operators: Ledger, states: States
) -> None:
    operators.set_kind("settle", max_attempts=2, actor="tests", reason="few")
    add(ledger, 2)
    unsure = Scripted({"r_001": Unknown("timeout")}, {"*": Unknown("still")})
    settled(unsure)
    settled(unsure)
    gateway = Scripted()

    report = settled(gateway)

    assert (gateway.sent, gateway.asked) == ([], [])
    assert states() == {"r_001": "review", "r_002": "sent"}
    assert report.counts == {"review": 1}


def test_a_key_that_the_gateway_may_have_forgotten_ends_in_review(
    settled: Settle, ledger: Ledger, operators: Ledger, states: States
) -> None:
    add(ledger, 1)
    settled(Scripted({"*": Unknown("timeout")}))
    operators.set_kind("settle", key_window=timedelta(milliseconds=1), actor="tests", reason="short")
    gateway = Scripted()

    settled(gateway)

    assert (gateway.sent, gateway.asked) == ([], [])
    assert states() == {"r_001": "review"}


@pytest.mark.parametrize("others", [0, 3])
def test_another_reference_than_the_recorded_one_stops_the_work(
    others: int, settled: Settle, ledger: Ledger, admin: Connection, states: States, server: redis.Redis
) -> None:
    ids = add(ledger, 20)
    token = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_001", token)
    ledger.accept_refund(MERCHANT, "r_001", token, "re_first")
    ledger.mark_unknown(MERCHANT, "r_001", token, "it said nothing more")
    together = Rendezvous(1 + others)

    def found() -> Sent:
        together()
        return Sent("re_second")

    beside = dict.fromkeys(("r_002", "r_003", "r_004")[:others], together)
    report = settled(Scripted({"*": lambda: time.sleep(0.05), **beside}, {"r_001": found}), in_flight=1 + others)

    assert isinstance(report.refusal, GatewayRefConflict)
    assert dict(report.refused) == {"r_001": "LG303"}
    assert "re_second" in report.unrecorded["r_001"]
    assert states()["r_001"] == "sending"
    assert {"pending"} <= {states()[refund_id] for refund_id in ids[1:]} <= {"sent", "pending"}
    assert refund(admin, "r_001", "gateway_ref") == "re_first"
    assert admin.execute("select count(*) from ledger.refusal where code = 'LG303'").fetchone() == (1,)
    assert server.get(KEY) is None


# Several at once.


def test_the_gateway_is_not_idle_while_postgres_is_asked(settled: Settle, ledger: Ledger, admin: Connection) -> None:
    """The answer for r_001 can't be recorded before r_002 was sent."""
    add(ledger, 2)

    def lock() -> None:
        admin.execute("begin")
        admin.execute("select from ledger.refund where refund_id = 'r_001' for update")

    report = settled(Scripted({"r_001": lock, "r_002": lambda: admin.execute("rollback") and None}), in_flight=1)
    assert report.counts == {"claimed": 2, "sent": 2}


def test_as_many_calls_are_in_flight_as_were_asked_for(settled: Settle, ledger: Ledger) -> None:
    add(ledger, 12)
    together = Rendezvous(4)
    settled(Scripted({"*": together}), in_flight=4)
    assert together.most == 4


def test_the_gateway_sees_them_together(
    settled: Settle, ledger: Ledger, control: SandboxControl, at_sandbox: SandboxGateway, states: States
) -> None:
    ids = add(ledger, 4)
    for refund_id in ids:
        control.plan(f"m_1/{refund_id}", Fault.HOLD)
    running = in_background(lambda: settled(at_sandbox, in_flight=3))
    for refund_id in ids[:3]:
        control.wait_until_held(f"m_1/{refund_id}")
    assert control.calls().refunds == 3
    for refund_id in ids[:3]:
        control.release(f"m_1/{refund_id}")
    control.wait_until_held("m_1/r_004")
    control.release("m_1/r_004")
    running.result(10)
    assert set(states().values()) == {"sent"}


def test_confirms_grow_into_batches_while_one_is_under_way(settled: Settle, ledger: Ledger, admin: Connection) -> None:
    add(ledger, 60)
    together = Rendezvous(20)
    settled(Scripted({"*": together}), in_flight=20)
    transactions = admin.execute("select count(distinct at) from ledger.journal where to_state = 'sent'").fetchone()
    assert transactions is not None
    assert transactions[0] < 60


def test_with_a_batch_of_one_nothing_is_claimed_ahead(settled: Settle, ledger: Ledger, states: States) -> None:
    add(ledger, 6)
    seen = []

    def look() -> None:
        seen.append(list(states().values()).count("sending"))

    settled(Scripted({"*": look}), in_flight=1, batch=1)
    assert seen == [1] * 6

    add(ledger, 12)
    together = Rendezvous(2)
    settled(Scripted({"*": together}), in_flight=2, batch=1)
    assert together.most == 2


def test_two_settlements_of_one_merchant_are_one_too_many(
    settled: Settle, world: str, ledger: Ledger, dsn: str, redis_url: str
) -> None:
    add(ledger, 3)
    held = Held()
    first = in_background(lambda: settled(Scripted({"r_001": held})))
    assert held.entered.wait(5)
    with pytest.raises(Busy) as busy:
        settled(Scripted())
    held.let_go.set()
    assert first.result(10).counts["sent"] == 3
    assert busy.value.detail["resource"] == RESOURCE


def test_two_merchants_are_settled_side_by_side(settled: Settle, ledger: Ledger, states: States) -> None:
    add(ledger, 2)
    add(ledger, 2, "m_2")
    together = Rendezvous(2)
    gateway = Scripted({"r_001": together})
    one = in_background(lambda: settled(gateway))
    two = in_background(lambda: settled(gateway, merchant_id="m_2"))
    assert one.result(10).counts["sent"] == two.result(10).counts["sent"] == 2
    assert set(states("m_1").values()) | set(states("m_2").values()) == {"sent"}


def test_a_wait_outlasts_another_holder(settled: Settle, ledger: Ledger, dsn: str, redis_url: str) -> None:
    add(ledger, 1)
    lease = Lease(RESOURCE, db=dsn, redis=redis_url).acquire()
    running = in_background(lambda: settled(Scripted(), wait=5))
    lease.release()
    assert running.result(10).counts["sent"] == 1


# Where it may run.


def test_a_pools_connection_goes_back_open_and_as_it_was(settled: Settle, ledger: Ledger, dsn: str) -> None:
    add(ledger, 1)
    with psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=1, kwargs={"autocommit": False}, open=True) as pool:

        def session() -> tuple[int, bool]:
            with pool.connection() as connection:
                return connection.info.backend_pid, connection.autocommit

        before = session()
        settled(Scripted(), db=pool)
        assert session() == before


def test_a_pool_a_dsn_and_a_connect_function_serve(settled: Settle, world: str, ledger: Ledger, dsn: str) -> None:
    add(ledger, 1)
    assert settled(Scripted(), db=dsn).counts == {"claimed": 1, "sent": 1}
    add(ledger, 2)
    assert settled(Scripted(), db=lambda: psycopg.connect(dsn)).counts == {"claimed": 1, "sent": 1}
    add(ledger, 3)
    with psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=2, open=True) as pool:
        assert settled(Scripted(), db=pool).counts == {"claimed": 1, "sent": 1}


def test_an_open_connection_is_refused_before_anything_is_done(
    settled: Settle, ledger: Ledger, connection: Connection, states: States, server: redis.Redis
) -> None:
    add(ledger, 1)
    with pytest.raises(TypeError, match="a function that opens a connection"):
        settled(Scripted(), db=connection)
    assert states() == {"r_001": "pending"}
    assert server.get(KEY) is None


def test_a_kind_whose_leases_are_advisory_locks_needs_no_redis(
    settled: Settle, ledger: Ledger, operators: Ledger, connection: Connection, states: States
) -> None:
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis here")
    add(ledger, 3)
    holders: list[Any] = []

    def look() -> None:
        holders.append(ledger.job_holders(RESOURCE))

    report = settled(Scripted({"r_002": look}), redis=None)
    assert report.counts == {"claimed": 3, "sent": 3}
    assert len(holders[0]) == 1
    until(lambda: ledger.job_holders(RESOURCE) in (None, []))

    with pytest.raises(BadArgument, match="live in Postgres"):
        settled(Scripted())


def test_a_kind_whose_leases_live_in_redis_is_not_settled_without(settled: Settle, ledger: Ledger) -> None:
    add(ledger, 1)
    gateway = Scripted()
    with pytest.raises(BadArgument, match="live in Redis"):
        settled(gateway, redis=None)
    assert gateway.sent == []


# What a lease allows.


def test_a_call_gets_no_more_time_than_the_lease_has_left(settled: Settle, short_lease: float, ledger: Ledger) -> None:
    add(ledger, 3)
    gateway = Scripted()
    settled(gateway, timeout=10)
    assert all(short_lease / 3 <= seconds < short_lease for seconds in gateway.timeouts)

    add(ledger, 6)
    quick = Scripted()
    settled(quick, timeout=0.1)
    assert quick.timeouts == [0.1] * 3


def test_a_lease_in_trouble_costs_no_attempts(
    settled: Settle,
    short_lease: float,
    ledger: Ledger,
    admin: Connection,
    redis_proxy: Any,
) -> None:
    """With too little time left for a call, nothing is claimed and nothing sent, until it is renewed or lost."""
    add(ledger, 40)

    def trouble() -> None:
        redis_proxy.mode = "blackhole"

    gateway = Scripted({"r_001": trouble, "*": lambda: time.sleep(0.02)})
    report = settled(gateway, redis=f"redis://{redis_proxy.host}:{redis_proxy.port}", in_flight=1, batch=5)

    assert report.lost is not None
    assert report.lost.reason == "unreachable"
    assert admin.execute("select max(attempts) from ledger.refund").fetchone() == (1,)
    assert admin.execute("select count(*) from ledger.refund where state not in ('sent', 'pending')").fetchone() == (0,)
    released = admin.execute(
        "select count(*) from ledger.journal where from_state = 'sending' and to_state = 'pending'"
    ).fetchone()
    assert released is not None
    assert released[0] <= 5


# Refusals.


def test_another_holder_stops_it_and_both_tokens_are_on_record(
    settled: Settle, ledger: Ledger, rivals: Ledger, admin: Connection, states: States, caplog: pytest.LogCaptureFixture
) -> None:
    add(ledger, 30)
    newer: list[int] = []

    def overtaken() -> None:
        until(lambda: list(states().values()).count("sent") == 2)
        newer.append(activated(rivals, BOB))

    gateway = Scripted({"r_003": overtaken})
    report = settled(gateway, in_flight=1, batch=10)

    assert report.refusal is not None
    assert report.refusal.code == "LG101"
    assert gateway.sent[:3] == ["r_001", "r_002", "r_003"]
    assert len(gateway.sent) <= 6, "beside what is in flight, as many are handed over while the last are recorded"
    assert dict(report.refused) == dict.fromkeys(gateway.sent[2:], "LG101")
    assert "re_r_003" in report.unrecorded["r_003"]
    assert any("re_r_003" in getattr(record, "answer", "") for record in caplog.records)
    assert set(admin.execute("select code, token, active from ledger.refusal").fetchall()) == {
        ("LG101", report.token, newer[0])
    }
    assert list(states().values()).count("sending") == 8, "a fenced-out holder can't give back what it claimed"
    assert Ledger(admin).verify() == []

    following = settled(Scripted())
    assert following.counts == {"taken_over": 8, "claimed": 20, "sent": 28}


def test_a_claim_that_is_refused_ends_it(settled: Settle, ledger: Ledger, rivals: Ledger, admin: Connection) -> None:
    add(ledger, 3)

    def overtaken(event: Event) -> None:
        if event.name == "recorded" and event.refund_id == "r_001":
            activated(rivals, BOB)

    gateway = Scripted()
    report = settled(gateway, in_flight=1, batch=1, notify=overtaken)

    assert report.refusal is not None
    assert report.refusal.detail["function"] == "claim_refunds"
    assert gateway.sent == ["r_001"]
    assert report.unrecorded == {}


def test_a_rightful_answer_after_the_lease_is_still_recorded(
    settled: Settle, short_lease: float, ledger: Ledger, server: redis.Redis, states: States
) -> None:
    """Somebody took the lease, but nobody activated: the token is active, and the result is true."""
    add(ledger, 4)

    def robbed() -> None:
        server.set(KEY, "mallory/1/cc:99")
        time.sleep(short_lease)

    gateway = Scripted({"r_001": robbed})
    report = settled(gateway, in_flight=1, batch=2)

    assert report.lost is not None
    assert report.lost.reason == "superseded"
    assert gateway.sent == ["r_001"]
    assert states() == {"r_001": "sent", "r_002": "pending", "r_003": "pending", "r_004": "pending"}
    assert server.get(KEY) == "mallory/1/cc:99", "another's lease is never given back"


# A stop.


class StopAt(threading.Event):
    """A stop that somebody asks for from within."""

    def __call__(self) -> None:
        self.set()


def test_a_stop_finishes_what_is_in_flight_and_gives_the_rest_back(
    settled: Settle, ledger: Ledger, states: States, server: redis.Redis, admin: Connection
) -> None:
    add(ledger, 30)
    stop = StopAt()

    def asked_to_stop() -> None:
        stop.set()
        time.sleep(0.2)  # the answer comes after the stop was seen

    gateway = Scripted({"r_002": asked_to_stop})
    report = settled(gateway, in_flight=2, batch=10, stop=stop)

    assert report.stopped
    assert refund(admin, "r_002", "state") == "sent"
    assert set(states().values()) == {"sent", "pending"}
    assert set(gateway.sent) == {refund_id for refund_id, state in states().items() if state == "sent"}
    assert len(gateway.sent) < 30
    assert server.get(KEY) is None
    assert report.left_open() == report.left_open("pending") == 30 - len(gateway.sent)
    assert all(row.is_claimable for row in report.open)


def test_what_does_not_answer_within_the_grace_is_unknown(
    settled: Settle, ledger: Ledger, admin: Connection, states: States, server: redis.Redis
) -> None:
    add(ledger, 5)
    stop, held = StopAt(), Held()

    def asked_to_stop() -> None:
        stop.set()
        held()

    def let_go_at_the_end(event: Event) -> None:
        if event.name == "recorded" and event.refund_id == "r_001":
            held.let_go.set()

    report = settled(
        Scripted({"r_001": asked_to_stop}), in_flight=1, batch=5, stop=stop, grace=0.1, notify=let_go_at_the_end
    )

    assert states() == {"r_001": "unknown"} | dict.fromkeys(("r_002", "r_003", "r_004", "r_005"), "pending")
    assert report.left_open("unknown") == 1
    assert journal(admin, "r_002")[-1][:2] == ("sending", "pending")
    assert server.get(KEY) is None


def test_a_stop_before_the_start_begins_nothing(settled: Settle, ledger: Ledger, states: States) -> None:
    add(ledger, 2)
    stop = threading.Event()
    stop.set()
    gateway = Scripted()
    report = settled(gateway, stop=stop)
    assert (gateway.sent, report.counts, report.stopped) == ([], {}, True)
    assert states() == {"r_001": "pending", "r_002": "pending"}


# Exceptions.


@pytest.mark.parametrize("error", [ValueError("no paper"), KeyboardInterrupt()], ids=repr)
def test_an_exception_in_notify_ends_it_with_nothing_left_behind(
    error: BaseException, settled: Settle, ledger: Ledger, states: States, server: redis.Redis
) -> None:
    add(ledger, 20)

    def failing(event: Event) -> None:
        if event.name == "recorded":
            raise error

    gateway = Scripted()
    with pytest.raises(type(error)):
        settled(gateway, in_flight=2, batch=20, notify=failing)

    assert set(states().values()) <= {"sent", "unknown", "pending"}
    assert states()["r_020"] == "pending"
    assert len(gateway.sent) < 20
    assert server.get(KEY) is None


def test_an_adapter_that_never_answers_costs_its_own_refund_alone(
    settled: Settle, ledger: Ledger, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "SLACK", 0.05)
    add(ledger, 8)
    held = Held()
    report = settled(Scripted({"r_001": held}), in_flight=1, timeout=0.1)
    held.let_go.set()

    assert report.counts == {"claimed": 8, "sent": 7, "unknown": 1}
    assert states()["r_001"] == "unknown"


# The end of the work.


def test_rows_that_somebody_has_locked_are_waited_for(
    settled: Settle, ledger: Ledger, admin: Connection, connect: Callable[..., Connection], admin_dsn: str
) -> None:
    add(ledger, 3)
    other = connect(admin_dsn, autocommit=False)
    other.execute("select from ledger.refund where refund_id = 'r_002' for update")
    gateway = Scripted()
    running = in_background(lambda: settled(gateway))
    until(lambda: len(gateway.sent) == 2)
    other.rollback()
    assert running.result(10).counts["sent"] == 3


def test_rows_that_stay_locked_are_left_open_in_the_report(
    settled: Settle,
    ledger: Ledger,
    connect: Callable[..., Connection],
    admin_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "LOCKED_PASSES", 3)
    add(ledger, 3)
    other = connect(admin_dsn, autocommit=False)
    other.execute("select from ledger.refund where refund_id = 'r_002' for update")
    report = settled(Scripted())
    assert report.counts["sent"] == 2
    assert report.left_open() == report.left_open("pending") == 1
    assert (report.refusal, report.lost) == (None, None)


def test_refunds_that_come_meanwhile_are_settled_too(settled: Settle, ledger: Ledger, rivals: Ledger) -> None:
    add(ledger, 2)

    def more() -> None:
        rivals.add_refund(MERCHANT, "r_000", 1, "EUR")  # before the cursor

    report = settled(Scripted({"r_002": more}))
    assert report.counts["sent"] == 3


# Options.


@pytest.mark.parametrize(
    "given",
    [
        {"in_flight": 0},
        {"batch": 0},
        {"batch": 1001},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"grace": -1},
        {"grace": float("nan")},
        {"patience": 0},
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(given))} is "):
        Options(**given)


def test_settling_costs_little_more_than_the_calls_it_makes(settled: Settle, ledger: Ledger) -> None:
    ids = add(ledger, 1200)
    token = activated(ledger, ALICE)
    began = time.perf_counter()
    cursor = ""
    while claims := ledger.claim_refunds(MERCHANT, token, 100, cursor):
        cursor = claims[-1].refund_id
        ledger.confirm_refunds(
            MERCHANT, token, [one.refund_id for one in claims], [f"re_{one.refund_id}" for one in claims]
        )
    bare = time.perf_counter() - began

    add(ledger, len(ids), "m_2")
    began = time.perf_counter()
    report = settled(Scripted(), merchant_id="m_2")
    whole = time.perf_counter() - began

    assert report.counts["sent"] == 1200
    assert whole < 3 * bare + 0.5, f"{whole:.2f} s, and the calls alone take {bare:.2f}"
