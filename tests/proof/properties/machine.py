"""Hypothesis's state machine: it draws sessions, calls and arguments, and asks the rules after every step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ledger import dev
from tests.proof.properties import rules, values
from tests.proof.properties.world import Answer, Session, World, world

# What a refund's life is made of is called more often than the rest.
OFTEN = (
    "activate_token", "add_refund", "add_refunds", "claim_refund", "claim_refunds", "confirm_refund", "confirm_refunds",
    "draw_token", "fail_refund", "release_refund", "mark_unknown", "accept_refund", "resolve_refund", "review_refund",
    "requeue_refund", "present_token", "resume", "lock_job",
)  # fmt: skip
ANSWERS = ("confirm_refund", "fail_refund", "release_refund", "mark_unknown", "accept_refund")
ONCE_PUT_BACK = (("cancel_refund",), ("claim_refund", "release_refund"))
PROGRAMS = ("begin", "begin", "begin isolation level repeatable read", "savepoint s", "commit", "commit", "rollback")


class Machine(RuleBasedStateMachine):
    """Three sessions on one database. `servers` and `broken` are set by whoever runs it."""

    servers: dev.Servers
    broken: tuple[str, ...] = ()
    often: tuple[str, ...] = OFTEN
    seen: ClassVar[Counter[str]] = Counter()
    _numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self._entered = world(self.servers, f"properties_{next(self._numbers) % 4}", *self.broken)
        self.world: World = self._entered.__enter__()
        rules.learn_transitions(self.world)
        self.before = self.world.state()
        self.is_broken = False
        self.seen["examples"] += 1

    def teardown(self) -> None:
        try:
            for session in self.world.sessions:
                if session.is_inside:
                    self.world.execute(session, "rollback")
            if not self.is_broken:  # else what broke first is what is told
                self._judge(lambda: rules.verify_finds_nothing(self.world))
        finally:
            self._entered.__exit__(None, None, None)

    @initialize(refunds=st.sets(st.sampled_from(values.REFUNDS), min_size=2))
    def refunds_are_there(self, refunds: set[str]) -> None:
        first = self.world.sessions[0]
        for refund_id in sorted(refunds):
            given = {"merchant_id": "m_1", "refund_id": refund_id, "amount_minor": values.AMOUNTS[refund_id]}
            self._step(first, self.world.call(first, "add_refund", {**given, "currency": "EUR"}))
        self._course(first, "settle:m_1", values.HOLDERS[0])
        self._course(first, "job:a", values.HOLDERS[0])

    def _called_often(self, data: Any, number: int) -> None:
        self._call(data, self.world.sessions[number], data.draw(st.sampled_from(self.often)))

    # Several names, so that Hypothesis takes it more often than what is rare.
    _takes: ClassVar[dict[str, Any]] = {"data": st.data(), "number": st.integers(0, 2)}
    what_is_often_called = rule(**_takes)(_called_often)
    what_is_called_then = rule(**_takes)(_called_often)
    what_is_called_next = rule(**_takes)(_called_often)

    def _called(self, data: Any, number: int) -> None:
        names = sorted(self.world.functions)
        # Of a wide range, for Hypothesis prefers the first ones of a short list.
        self._call(data, self.world.sessions[number], names[data.draw(st.integers(0, 2**32)) % len(names)])

    anything = rule(**_takes)(_called)
    anything_else = rule(**_takes)(_called)

    @rule(data=st.data(), number=st.integers(0, 1), refund_id=st.sampled_from(values.REFUNDS))
    def a_refund_goes_its_way(self, data: Any, number: int, refund_id: str) -> None:
        session = self.world.sessions[number]
        self._call_all(data, session, refund_id, "claim_refund", data.draw(st.sampled_from(ANSWERS)))

    @rule(data=st.data(), refund_id=st.sampled_from(values.REFUNDS), then=st.sampled_from(ONCE_PUT_BACK))
    def a_person_puts_it_back(self, data: Any, refund_id: str, then: tuple[str, ...]) -> None:
        self._call_all(data, self.world.sessions[2], refund_id, "requeue_refund", *then)

    @rule(number=st.integers(0, 1), resource=st.sampled_from(values.RESOURCES), holder=st.sampled_from(values.HOLDERS))
    def a_new_holder(self, number: int, resource: str, holder: str) -> None:
        self._course(self.world.sessions[number], resource, holder)

    @rule(number=st.integers(0, 2), statement=st.sampled_from(PROGRAMS))
    def a_transaction(self, number: int, statement: str) -> None:
        session = self.world.sessions[number]
        if statement.startswith("begin") == session.is_inside:
            return
        if statement == "savepoint s":
            session.savepoints += 1
        answer = self.world.execute(session, statement)
        if statement != "savepoint s":
            session.is_inside, session.savepoints = statement.startswith("begin"), 0
        self._step(session, answer)

    @rule(number=st.integers(0, 2), row=st.integers(1, 3), is_presented=st.booleans())
    def a_write_to_a_protected_table(self, number: int, row: int, is_presented: bool) -> None:
        session = self.world.sessions[number]
        if not session.is_inside and row > 1:
            return  # refused, as a rule; once in a while is enough
        if is_presented and session.is_inside:
            token = self.world.active.get("job:a")
            answer = self.world.call(session, "present_token", {"resource": "job:a", "token": token})
            self._step(session, answer)
        answer = self.world.execute(session, f"update app.thing set amount = amount + 1 where id = {row}")
        if answer.code is None and self._is_enforced():
            self._judge(lambda: rules.only_inside_a_transaction(session))
        self._step(session, answer)

    @rule()
    def a_long_time_passes(self) -> None:
        if not any(session.is_inside for session in self.world.sessions):
            self.world.past_the_guard(_AGE)
            self.before = self.world.state(self.before)

    @rule(is_recovered=st.sampled_from([True, True, True, False]))
    def a_failover(self, is_recovered: bool) -> None:
        if any(session.is_inside for session in self.world.sessions):
            return
        self.world.past_the_guard({"server": "timeline = '0000000F'"})
        self.before = self.world.state(self.before)
        if is_recovered:
            operator = self.world.sessions[2]
            given = {"actor": "ada", "reason": "a standby took over"}
            self._step(operator, self.world.call(operator, "recover_failover", given))
            self._course(self.world.sessions[0], "settle:m_1", values.HOLDERS[0])

    def _is_enforced(self) -> bool:
        mode = self.world.find("select mode from ledger.kind where kind = 'job'")
        return (not mode or mode[0]["mode"] == "enforce") and bool(
            self.world.find("select from ledger.protected_table")
        )

    def _course(self, session: Session, resource: str, holder: str) -> None:
        answer = self.world.call(session, "draw_token", {"resource": resource})
        self._step(session, answer)
        if answer.code is None:
            token = answer.rows[0]["draw_token"]
            self.world.tokens.append(token)
            given = {"resource": resource, "token": token, "holder": holder}
            self._step(session, self.world.call(session, "activate_token", given))

    def _call_all(self, data: Any, session: Session, refund_id: str, *functions: str) -> None:
        given = {"merchant_id": "m_1", "refund_id": refund_id, "token": self.world.active.get("settle:m_1")}
        for function in functions:
            self._call(data, session, function, **given)

    def _call(self, data: Any, session: Session, function: str, **fixed: Any) -> None:
        given = values.arguments(data.draw, self.world, self.world.functions[function], fixed)
        answer = self.world.call(session, function, given)
        if answer.code is None:
            if function in {"draw_token", "lock_job"}:
                self.world.tokens.append(answer.rows[0][function])
            if function in {"claim_refund", "claim_refunds"}:
                self._judge(lambda: rules.a_first_claim_is_of_what_nobody_sent(session, answer, self.before))
        self.seen[f"call {function}"] += 1
        self._step(session, answer)

    def _step(self, session: Session, answer: Answer) -> None:
        self.seen["steps"] += 1
        if answer.code is not None:
            self.seen[f"refusal {answer.code}"] += 1
        after = self.world.state(self.before)
        self._judge(lambda: rules.holds(self.world, session, self.before, answer, after))
        self.before = after

    def _judge(self, rule: Callable[[], None]) -> None:
        try:
            rule()
        except AssertionError as broken:
            self.is_broken = True
            broken.add_note("\n".join(self.world.script))
            raise


_AGE = {
    table: ", ".join(f"{column} = {column} - interval '1 year'" for column in columns)
    for table, columns in {
        "refund": ("added_at", "first_claimed_at", "changed_at", "settled_at"),
        "journal": ("at",),
        "event": ("at",),
        "refusal": ("at",),
        "draw": ("drawn_at",),
        "fence": ("activated_at",),
        "work": ("changed_at",),
    }.items()
}
