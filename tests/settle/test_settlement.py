"""The core of a settlement and its course, with scripted answers: what is done next, without any server."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from ledger import settle as settling
from ledger.errors import BadArgument, Busy, GatewayRefConflict, LeaseLost, NotClaimed, StaleToken
from ledger.gateway import Accepted, Answer, Declined, Found, Nothing, Sent, Unknown
from ledger.records import Claim, Move, OpenCount, RowOutcome
from ledger.settle import Abandon, Ask, Begin, Collect, HangUp, Options, Withdraw
from ledger.settlement import Find, NotTried, Recording, Send, Settlement, as_found, at_the_gateway

NOW = datetime.now(UTC)


def core(*, in_flight: int = 4, batch: int = 10) -> Settlement:
    return Settlement("m_1", 7, "alice/1/aaaa", in_flight=in_flight, batch=batch)


def claim(refund_id: str, outcome: str = "claimed") -> Claim:
    return Claim("m_1", refund_id, 7025, "EUR", None, None, f"m_1/{refund_id}", 1, outcome, None, "pending", None, NOW)


def move(refund_id: str, outcome: str, state: str) -> Move:
    return Move(
        "m_1", refund_id, outcome, None, state, "sending", 7, 7025, "EUR", f"m_1/{refund_id}", None, 1, False, NOW
    )


def row(position: int, refund_id: str, outcome: str, state: str | None = "sent") -> RowOutcome:
    return RowOutcome(position, refund_id, outcome, None, state, 7025, "EUR", None)


def sending(settlement: Settlement, *refund_ids: str) -> list[Claim]:
    settlement.claimed([claim(refund_id) for refund_id in refund_ids])
    begun = []
    while (one := settlement.next_to_send()) is not None:
        begun.append(one)
    return begun


def due(settlement: Settlement) -> Recording:
    recording = settlement.next_recording()
    assert recording is not None
    return recording


# What the gateway is asked.


def asked(outcome: str, *answers: Found) -> tuple[list[str], Answer]:
    flow, questions, left = at_the_gateway(claim("r_1", outcome)), [], list(answers)
    step: Find | Send = next(flow)
    while True:
        questions.append(type(step).__name__)
        try:
            step = flow.send(left.pop(0))
        except StopIteration as end:
            assert not left
            return questions, end.value


def test_a_first_claim_is_sent_without_a_question() -> None:
    assert asked("claimed", Sent("re_1")) == (["Send"], Sent("re_1"))


@pytest.mark.parametrize("outcome", ["reclaimed", "taken_over"])
@pytest.mark.parametrize("found", [Sent("re_1"), Accepted("re_1"), Declined("no", True), Unknown("timeout")])
def test_what_may_have_been_sent_is_asked_about_and_never_sent_over_an_answer(outcome: str, found: Answer) -> None:
    assert asked(outcome, found) == (["Find"], found)


@pytest.mark.parametrize("outcome", ["reclaimed", "taken_over"])
def test_what_the_gateway_does_not_have_is_sent(outcome: str) -> None:
    assert asked(outcome, Nothing(), Sent("re_1")) == (["Find", "Send"], Sent("re_1"))


def test_nothing_is_no_answer_to_a_send() -> None:
    assert asked("claimed", Nothing()) == (["Send"], Unknown("the gateway has nothing"))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "sent",
        {"ref": "re_1"},
        Sent,
        Sent(""),
        Sent("   "),
        Sent("re\n1"),
        Sent("r" * 256),
        Sent(12),  # type: ignore[arg-type]
        Sent("re_1", 70.25),  # type: ignore[arg-type]
        Sent("re_1", True),
        Sent("re_1", 7025, "E\x00R"),
        Accepted(""),
        Accepted("re\x00"),
        Declined(None, True),  # type: ignore[arg-type]
        Declined("no", "yes"),  # type: ignore[arg-type]
        Unknown(404),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_recorded_is_no_answer(answer: object) -> None:
    found = as_found(answer)
    assert isinstance(found, Unknown)
    assert "which is no answer" in found.reason


@pytest.mark.parametrize(
    "answer", [Sent("r" * 255, 7025, "EUR"), Accepted("re 1"), Declined("", False), Unknown(""), Nothing()]
)
def test_what_can_be_recorded_is_left_as_it_is(answer: Found) -> None:
    assert as_found(answer) is answer


# What is recorded.


@pytest.mark.parametrize(
    ("result", "function", "arguments"),
    [
        (Sent("re_1"), "confirm_refund", {"gateway_ref": "re_1", "evidence": None}),
        (Accepted("re_1"), "accept_refund", {"gateway_ref": "re_1"}),
        (Declined("card closed", True), "fail_refund", {"reason": "card closed"}),
        (Declined("", True), "fail_refund", {"reason": "declined"}),
        (
            Declined("try later", False),
            "mark_unknown",
            {"reason": "declined, and not remembered under the key: try later"},
        ),
        (Unknown("timeout"), "mark_unknown", {"reason": "timeout"}),
        (Unknown(" \x00\n"), "mark_unknown", {"reason": "unknown"}),
        (Unknown("a\x00b\ud800c"), "mark_unknown", {"reason": "a b c"}),
        (Unknown("x" * 10_000), "mark_unknown", {"reason": "x" * 500}),
    ],
)
def test_each_answer_has_its_call(result: Answer, function: str, arguments: dict[str, Any]) -> None:
    settlement = core()
    (one,) = sending(settlement, "r_1")
    settlement.answered(one, result)
    call = due(settlement).call
    assert call.name == function
    assert call.arguments == {"merchant_id": "m_1", "refund_id": "r_1", "token": 7, "evidence": None, **arguments}


def test_sent_with_another_amount_goes_alone_with_the_evidence() -> None:
    settlement = core()
    one, two, three = sending(settlement, "r_1", "r_2", "r_3")
    settlement.answered(one, Sent("re_1", 7025, "EUR"))
    settlement.answered(two, Sent("re_2", 7024, "EUR"))
    settlement.answered(three, Sent("re_3"))
    together = due(settlement)
    assert together.call.name == "confirm_refunds"
    assert together.call.arguments["refund_ids"] == ["r_1", "r_3"]
    settlement.recorded(together, [row(1, "r_1", "confirmed"), row(2, "r_3", "confirmed")])
    alone = due(settlement)
    assert alone.call.name == "confirm_refund"
    assert alone.call.arguments["evidence"].obj == {"amount_minor": 7024, "currency": "EUR"}
    settlement.recorded(alone, [move("r_2", "review", "review")])
    assert settlement.next_recording() is None
    assert settlement.counts == {"claimed": 3, "sent": 2, "review": 1}
    assert settlement.sent_minor == {"EUR": 14050}


def test_a_recording_is_due_until_it_was_answered_and_grows_meanwhile() -> None:
    settlement = core()
    one, two, _ = sending(settlement, "r_1", "r_2", "r_3")
    settlement.answered(one, Sent("re_1"))
    assert due(settlement).call.name == "confirm_refund"
    settlement.answered(two, Sent("re_2"))
    assert due(settlement).call.arguments["refund_ids"] == ["r_1", "r_2"]
    assert [claim.refund_id for claim, _ in settlement.pending()] == ["r_1", "r_2"]


def test_no_more_is_confirmed_at_once_than_a_call_takes() -> None:
    settlement = core(in_flight=1500)
    for one in sending(settlement, *(f"r_{number}" for number in range(1500))):
        settlement.answered(one, Sent("re"))
    assert len(due(settlement).results) == 1000


def test_a_row_that_cannot_move_is_skipped_and_the_work_goes_on() -> None:
    settlement = core()
    one, two = sending(settlement, "r_1", "r_2")
    settlement.answered(one, Sent("re_1"))
    settlement.answered(two, Sent("re_2"))
    settlement.recorded(due(settlement), [row(1, "r_1", "LG203"), row(2, "r_2", "confirmed")])
    assert not settlement.stopping
    report = settlement.report()
    assert report.refused == (("r_1", "LG203"),)
    assert report.unrecorded == {"r_1": "Sent(ref='re_1', amount_minor=None, currency=None)"}

    (three,) = sending(settlement, "r_3")
    settlement.answered(three, Unknown("timeout"))
    settlement.refused(due(settlement), NotClaimed("no", {}))
    assert not settlement.stopping
    assert settlement.is_idle


def test_another_reference_stops_the_work_whether_the_call_or_its_row_says_so() -> None:
    by_row = core()
    one, two = sending(by_row, "r_1", "r_2")
    by_row.answered(one, Sent("re_1"))
    by_row.answered(two, Sent("re_2"))
    by_row.recorded(due(by_row), [row(1, "r_1", "LG303"), row(2, "r_2", "confirmed")])
    assert isinstance(by_row.refusal, GatewayRefConflict)
    assert by_row.refusal.detail["refund_id"] == "r_1"

    by_call = core()
    (one,) = sending(by_call, "r_1")
    by_call.answered(one, Sent("re_1"))
    by_call.refused(due(by_call), GatewayRefConflict("no", {}))
    assert isinstance(by_call.refusal, GatewayRefConflict)
    for settlement in (by_row, by_call):
        assert settlement.stopping
        assert settlement.next_claim() is None


def test_what_a_stale_token_had_recorded_before_counts_as_sent() -> None:
    settlement = core()
    one, two = sending(settlement, "r_1", "r_2")
    settlement.answered(one, Sent("re_1"))
    settlement.answered(two, Sent("re_2"))
    settlement.refused(due(settlement), StaleToken("no", {"recorded": ["r_2"]}))
    report = settlement.report()
    assert report.counts["sent"] == 1
    assert report.sent_minor == {"EUR": 7025}
    assert report.refused == (("r_1", "LG101"),)
    assert isinstance(report.refusal, StaleToken)


# What is claimed.


def test_claims_go_on_after_the_last_one_until_none_comes_back() -> None:
    settlement = core(in_flight=2, batch=2)
    first = settlement.next_claim()
    assert first is not None
    assert first.arguments["after_refund_id"] == ""
    assert first.arguments["reclaim"] is False
    settlement.claimed([claim("r_1"), claim("r_2")])
    assert settlement.next_claim() is None, "two are waiting for two places"
    assert settlement.next_to_send() is not None
    following = settlement.next_claim()
    assert following is not None
    assert following.arguments["after_refund_id"] == "r_2"
    settlement.claimed([])
    assert settlement.next_claim() is None, "the pass is over"


def test_with_a_batch_of_one_nothing_is_claimed_ahead() -> None:
    settlement = core(in_flight=2, batch=1)
    for refund_id in ("r_1", "r_2"):
        assert settlement.next_claim() is not None
        sending(settlement, refund_id)
    assert settlement.next_claim() is None


def test_answers_are_recorded_before_more_is_claimed() -> None:
    settlement = core()
    (one,) = sending(settlement, "r_1")
    assert settlement.next_claim() is not None
    settlement.answered(one, Sent("re_1"))
    assert settlement.next_claim() is None
    settlement.recorded(due(settlement), [move("r_1", "confirmed", "sent")])
    assert settlement.next_claim() is not None


def test_a_refund_that_went_to_review_is_counted_and_not_sent() -> None:
    settlement = core()
    settlement.claimed([claim("r_1", "review")])
    assert settlement.next_to_send() is None
    assert settlement.is_idle
    assert settlement.report().counts == {"review": 1}


def test_a_claim_in_doubt_is_made_again_and_takes_back_what_it_took() -> None:
    settlement = core(batch=2)
    sending(settlement, "r_1")
    settlement.claim_in_doubt()
    again = settlement.next_claim()
    assert again is not None
    assert (again.arguments["after_refund_id"], again.arguments["reclaim"]) == ("r_1", True)
    settlement.claimed([claim("r_2", "reclaimed"), claim("r_3")])
    later = settlement.next_claim()
    assert later is not None
    assert later.arguments["reclaim"] is True, "the lost claim may have taken more than fits into one answer"


def test_what_a_lost_claim_took_late_is_work_that_is_left() -> None:
    own = OpenCount("sending", False, 1)
    settlement = core()
    assert not settlement.work_left([own])
    settlement.claim_in_doubt()
    settlement.claimed([])
    assert settlement.work_left([own])
    assert not settlement.work_left([OpenCount("unknown", False, 1)])


def test_a_claim_in_doubt_is_resolved_before_a_stop_and_given_back() -> None:
    settlement = core()
    settlement.claim_in_doubt()
    settlement.stop()
    assert settlement.next_claim() is not None
    settlement.claimed([claim("r_1", "reclaimed")])
    assert due(settlement).call.name == "release_refund"
    settlement.recorded(due(settlement), [move("r_1", "unknown", "unknown")])
    assert settlement.next_claim() is None
    assert settlement.is_idle


@pytest.mark.parametrize("why", [StaleToken("no", {}), BadArgument("no", {}), LeaseLost("gone", {"reason": "expired"})])
def test_after_a_refusal_or_a_lost_lease_not_even_a_claim_in_doubt_is_made_again(why: StaleToken | LeaseLost) -> None:
    settlement = core()
    settlement.claim_in_doubt()
    settlement.stop(why)
    assert settlement.next_claim() is None


def test_a_pass_that_got_nowhere_is_told_from_one_that_did() -> None:
    settlement = core()
    sending(settlement, "r_1")
    assert settlement.new_pass()
    assert not settlement.new_pass()
    call = settlement.next_claim()
    assert call is not None
    assert call.arguments["after_refund_id"] == ""


# The end.


def test_a_stop_gives_back_what_was_not_tried_and_waits_for_the_rest() -> None:
    settlement = core(in_flight=1, batch=1)
    (one,) = sending(settlement, "r_1", "r_2")
    settlement.stop()
    assert settlement.next_to_send() is None
    back = due(settlement)
    assert (back.call.name, back.call.arguments["refund_id"]) == ("release_refund", "r_2")
    settlement.recorded(back, [move("r_2", "released", "pending")])
    assert list(settlement.running) == ["r_1"]
    settlement.answered(one, Sent("re_1"))
    settlement.recorded(due(settlement), [move("r_1", "confirmed", "sent")])
    report = settlement.report()
    assert report.stopped
    assert report.counts == {"claimed": 2, "pending": 1, "sent": 1}


def test_a_lost_lease_gives_back_what_was_not_tried() -> None:
    settlement = core(in_flight=1, batch=1)
    sending(settlement, "r_1", "r_2")
    settlement.stop(LeaseLost("the lease is lost", {"reason": "expired"}))
    assert due(settlement).call.arguments["reason"] == "not sent: the lease is lost"


def test_a_fenced_out_holder_gives_nothing_back() -> None:
    settlement = core(in_flight=1, batch=1)
    (one,) = sending(settlement, "r_1", "r_2")
    settlement.stop(LeaseLost("the lease is lost", {"reason": "superseded"}))
    assert due(settlement).call.name == "release_refund"
    settlement.refused(due(settlement), StaleToken("no", {}))
    settlement.answered(one, NotTried("no time"))
    assert settlement.next_recording() is None
    assert settlement.is_idle
    assert settlement.report().unrecorded == {}


def test_what_was_not_tried_for_want_of_time_waits_until_there_is_time_again() -> None:
    settlement = core()
    (one,) = sending(settlement, "r_1")
    settlement.answered(one, NotTried("the lease has 0.1 s left"))
    assert settlement.next_recording() is None
    assert settlement.next_to_send() is one
    settlement.stop()
    settlement.answered(one, NotTried("the lease has 0.1 s left"))
    assert due(settlement).call.arguments["reason"] == "the lease has 0.1 s left"


def test_an_answer_that_comes_after_it_was_given_up_is_dropped() -> None:
    settlement = core()
    (one,) = sending(settlement, "r_1")
    settlement.give_up("r_1", "no answer")
    assert due(settlement).call.name == "mark_unknown"
    settlement.answered(one, Sent("re_1"))
    assert due(settlement).call.name == "mark_unknown"


def test_each_step_of_a_refund_is_told() -> None:
    settlement = core()
    (one,) = sending(settlement, "r_1")
    settlement.answered(one, Sent("re_1"))
    settlement.recorded(due(settlement), [move("r_1", "confirmed", "sent")])
    told = [(event.name, event.refund_id, event.outcome, event.token) for event in settlement.events]
    assert told == [
        ("claimed", "r_1", "claimed", 7),
        ("answered", "r_1", "sent", 7),
        ("recorded", "r_1", "confirmed", 7),
    ]


# The course.


class Lease:
    """A lease with as much time left as is said."""

    token = 7
    holder = "alice/1/aaaa"
    ttl = 30.0
    left = 30.0

    def remaining(self) -> float:
        return self.left

    def ensure(self, need: float = 0.0) -> None:
        if self.left <= need:
            raise LeaseLost("the lease is lost", {"reason": "expired"})


class Course:
    """A course taken by hand."""

    def __init__(self, lease: Lease, **options: Any) -> None:
        self.begun_at: dict[str, float] = {}
        settled = settling._Settling("m_1", lease, Options(**options), None, None, self.begun_at)
        self.core = settled.core
        self.flow = settled.course()
        self.step = next(self.flow)

    def send(self, result: Any = None) -> settling.Step:
        self.step = self.flow.send(result)
        return self.step

    def throw(self, error: BaseException) -> settling.Step:
        self.step = self.flow.throw(error)
        return self.step

    def asks(self) -> str:
        """The function that it asks next, after no answers of the gateway."""
        while isinstance(self.step, Collect):
            self.send([])
        assert isinstance(self.step, Ask), self.step
        return self.step.call.name


def test_with_too_little_time_left_nothing_is_claimed_and_nothing_sent() -> None:
    lease = Lease()
    lease.left = 5.0
    course = Course(lease, timeout=10, batch=1, in_flight=1)
    for _ in range(3):
        assert course.step == Collect()
        assert course.send([]) == Collect(settling.PAUSE)
        course.send([])

    lease.left = 25.0
    assert course.asks() == "claim_refunds"
    lease.left = 5.0
    course.send([claim("r_1")])
    for _ in range(3):
        assert course.step == Collect()
        assert course.send([]) == Collect(settling.PAUSE)
        course.send([])

    lease.left = 25.0
    course.send([])
    while isinstance(course.step, Collect):
        course.send([])
    assert isinstance(course.step, Begin)


def test_a_lost_lease_is_seen_before_the_next_claim() -> None:
    lease = Lease()
    course = Course(lease)
    lease.left = 0.0
    course.send([])  # between two looks
    while isinstance(course.step, Collect):
        course.send([])
    assert course.asks() == "count_open"
    assert course.core.lost is not None


def test_a_call_that_is_late_is_given_up_only_after_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes up from a freeze finds its calls late, and their answers on the way."""
    monkeypatch.setattr(settling, "SLACK", 0.01)
    course = Course(Lease(), timeout=0.01, batch=1, in_flight=1)
    course.asks()
    course.send([claim("r_1")])
    assert course.step == Begin(claim("r_1"))
    course.send()
    time.sleep(0.03)
    course.send([])
    course.send([])
    assert list(course.core.running) == ["r_1"], "what waits for its turn isn't late"
    course.begun_at["r_1"] = time.monotonic()
    time.sleep(0.03)
    course.send([])
    course.send([])
    assert list(course.core.running) == ["r_1"]
    time.sleep(0.03)
    while isinstance(course.step, Collect):
        course.send([])
    assert course.step == Abandon(claim("r_1"))
    course.send()
    assert course.asks() == "mark_unknown"


def test_postgres_is_tried_again_on_another_connection_until_the_patience_ends() -> None:
    course = Course(Lease(), patience=0.05)
    course.asks()
    assert course.throw(psycopg.OperationalError("server closed the connection")) == HangUp()
    course.send()
    assert course.asks() == "claim_refunds"
    time.sleep(0.06)
    with pytest.raises(psycopg.OperationalError, match="still away"):
        course.throw(psycopg.OperationalError("still away"))


@pytest.mark.parametrize("error", [psycopg.OperationalError("gone"), Busy("the gate is closed")], ids=["gone", "busy"])
def test_nothing_more_is_sent_while_answers_cannot_be_recorded(error: Exception) -> None:
    course = Course(Lease(), batch=2, in_flight=1)
    course.asks()
    first, second = claim("r_1"), claim("r_2")
    course.send([first, second])
    assert course.step == Begin(first)
    assert course.send() == Begin(second), "ahead, for when the first one is answered"
    course.send()
    course.send([(first, Sent("re_1"))])
    assert course.asks() == "confirm_refund"
    assert course.throw(error) == Withdraw()
    if course.send([second]) == HangUp():
        course.send()
    assert course.asks() == "confirm_refund", "r_2 wasn't begun"
    course.send([move("r_1", "confirmed", "sent")])
    while isinstance(course.step, Collect):
        course.send([])
    assert course.step == Begin(second)


def test_sends_go_on_where_nothing_is_left_to_ask_postgres() -> None:
    course = Course(Lease(), batch=2, in_flight=2)
    course.asks()
    first, second = claim("r_1"), claim("r_2")
    course.send([first, second])
    course.send()
    course.send()
    assert course.asks() == "claim_refunds"
    assert course.throw(Busy("the gate is closed")) == Withdraw()
    course.send([])
    course.send([(first, NotTried("no time")), (second, NotTried("no time"))])
    for _ in range(5):
        if isinstance(course.step, Collect):
            course.send([])
    assert course.step == Begin(second)


def test_a_closed_gate_is_no_claim_in_doubt_and_no_reason_to_hang_up() -> None:
    course = Course(Lease())
    course.asks()
    assert course.throw(Busy("the gate is closed")) == Collect(settling.PAUSE)
    course.send([])
    course.asks()
    assert isinstance(course.step, Ask)
    assert course.step.call.arguments["reclaim"] is False
    assert course.throw(psycopg.errors.AdminShutdown("restarting")) == HangUp()
    course.send()
    course.asks()
    assert isinstance(course.step, Ask)
    assert course.step.call.arguments["reclaim"] is True


def test_what_is_no_silence_is_raised_after_one_try_to_give_back() -> None:
    course = Course(Lease(), batch=2)
    course.asks()
    first, second = claim("r_1"), claim("r_2")
    course.send([first, second])
    while isinstance(course.step, Begin | Collect):
        course.send([] if isinstance(course.step, Collect) else None)
        if isinstance(course.step, Ask):
            break
    assert course.throw(psycopg.errors.InsufficientPrivilege("no")) == Withdraw()
    assert course.send([second]) == Abandon(first)
    assert course.send() == HangUp()
    course.send()
    assert course.asks() == "release_refund"
    course.send([move("r_2", "released", "pending")])
    assert course.asks() == "mark_unknown"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no"):
        course.throw(psycopg.OperationalError("and now it is away, too"))
