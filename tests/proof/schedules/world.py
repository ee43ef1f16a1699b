"""All that a schedule consists of: processes that take their steps in any order, and the faults that come between.

A process's own state is what came of its steps so far, and nothing else: its program is run again from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ledger.errors import Busy, LeaseLost, LedgerError, StaleToken
from ledger.gateway import Nothing, Unknown
from ledger.records import Claim
from ledger.settlement import Find, Send
from tests.proof.schedules import doubles
from tests.proof.schedules.doubles import Gateway, Lease, Request
from tests.proof.schedules.programs import (
    OPERATIONS,
    PROGRAMS,
    Clear,
    GiveBack,
    Look,
    LostReply,
    Program,
    Sql,
    Step,
    Stopped,
    Swap,
    Take,
)
from tests.proof.schedules.states import Server, State

FAULTS = {
    "expiry": "a lease ends before its time (X)",
    "flush": "Redis forgets the lease, and its holder doesn't know (F)",
    "crash": "a worker dies (a+)",
    "lost": "a reply is lost, of the ledger (a!) or of the gateway (a!); or the request arrives late (a~, then d)",
    "operator": "an operator breaks the lease (B), or confirms by hand, with a lease (H) or without (W)",
    "decline": "the gateway refuses, and remembers it (a-) or not (a_)",
    "stop": "a worker is asked to stop before it asks the gateway (a.)",
}
OPERATOR, LAST = "o", "z"
UNBEGUN, ENDED = 0, -1
FINAL = {"sent", "failed", "cancelled", "returned"}


@dataclass(frozen=True)
class Bounds:
    """How far to go: a program for each worker, so many refunds, so many faults of each kind."""

    programs: tuple[str, ...] = ("one", "one")
    refunds: int = 1
    faults: Mapping[str, int] = field(default_factory=dict)
    keyed: bool = True

    @property
    def refund_ids(self) -> tuple[str, ...]:
        return tuple(f"r_{number + 1}" for number in range(self.refunds))

    @property
    def workers(self) -> str:
        return "abcdefg"[: len(self.programs)]

    @property
    def code(self) -> str:
        """Who runs what, on how many refunds; the first part of a schedule's code."""
        return f"{'+'.join(self.programs)}/{self.refunds}{'' if self.keyed else '/unkeyed'}"

    def __str__(self) -> str:
        faults = " ".join(f"{kind}*{n}" if n > 1 else kind for kind, n in self.faults.items() if n)
        return f"{self.code} {faults or 'no faults'}"


class World(NamedTuple):
    """One moment of a schedule. Two that are equal have the same futures."""

    state: int
    at: tuple[int, ...]
    lease: Lease = None
    gateway: Gateway = Gateway()
    left: tuple[int, ...] = ()
    # What really is so, whoever knows it:
    drawn: int = 0  # the highest number that anybody got
    active: int = 0  # the token that was activated last
    refused: frozenset[tuple[str, int]] = frozenset()  # who was told that which token is stale
    ended: frozenset[str] = frozenset()  # whose lease ended, or was taken from them
    over: frozenset[str] = frozenset()  # who can see that by its own clock
    may_send: frozenset[tuple[str, str]] = frozenset()  # who claimed which refund and may yet send it
    out: frozenset[str] = frozenset()  # refunds of which a request was ever sent
    unheard: tuple[str, str] | None = None  # who made which call, whose reply was lost and which was recorded


@dataclass(frozen=True)
class Turn:
    """One choice of a schedule, and what came of it."""

    choice: str
    process: str
    step: Step | None
    outcome: Any
    before: World
    after: World


class Histories:
    """The processes' own states, by number: what came of their steps, and the step that they take next."""

    def __init__(self, refunds: tuple[str, ...]) -> None:
        self._refunds = refunds
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._outcomes: list[tuple[Any, ...]] = [()]
        self._steps: dict[tuple[str, int], Step | None] = {}

    def step(self, process: str, program: Program, number: int) -> Step | None:
        """The step that a process takes next; None where it has ended."""
        if number == ENDED:
            return None
        if (process, number) not in self._steps:
            self._steps[process, number] = self._run(program(process, self._refunds), self._outcomes[number])
        return self._steps[process, number]

    def then(self, process: str, number: int, outcome: Any) -> int:
        """The process's own state after one more outcome."""
        key = (process, number, repr(outcome))
        if key not in self._numbers:
            self._numbers[key] = len(self._outcomes)
            self._outcomes.append((*self._outcomes[number], outcome))
        return self._numbers[key]

    def first(self, process: str, number: int) -> Any:
        """What came of a process's first step."""
        return self._outcomes[number][0]

    @staticmethod
    def _run(course: Any, outcomes: tuple[Any, ...]) -> Step | None:
        try:
            step: Step = next(course)
            for outcome in outcomes:
                fails = isinstance(outcome, Exception)
                step = course.throw(type(outcome)(*outcome.args)) if fails else course.send(outcome)
        except (StopIteration, LedgerError):
            return None  # also of an error that it didn't expect
        return step


class Stage:
    """Which choices there are in a world, and what comes of each, on one server."""

    def __init__(self, server: Server, bounds: Bounds) -> None:
        self.server = server
        self.bounds = bounds
        self.kinds = tuple(FAULTS)
        self.names = (*bounds.workers, OPERATOR, LAST)
        self.histories = Histories(bounds.refund_ids)

    def start(self) -> World:
        """The world before anybody's first step."""
        state = self.server.start(self.bounds.refund_ids)
        left = tuple(self.bounds.faults.get(kind, 0) for kind in self.kinds)
        return World(state.number, (UNBEGUN,) * len(self.names), left=left, gateway=Gateway(keyed=self.bounds.keyed))

    def state(self, world: World) -> State:
        """What the ledger holds."""
        return self.server.state(world.state)

    def step(self, world: World, name: str) -> Step | None:
        """The next step of a process; None where it has ended or, an operator, isn't there."""
        number = world.at[self.names.index(name)]
        if name == OPERATOR:
            if number in (UNBEGUN, ENDED):
                return None
            what = self.histories.first(name, number)
            return self._operators(what, number)
        return self.histories.step(name, PROGRAMS[self.program(name)], number)

    def program(self, name: str) -> str:
        """The name of a process's program; who comes last runs that of the last worker."""
        if name == OPERATOR:
            return "by hand"
        return self.bounds.programs[-1 if name == LAST else self.names.index(name)]

    def _operators(self, what: str, number: int) -> Step | None:
        def program(process: str, refunds: tuple[str, ...]) -> Any:
            yield None  # answered with what it is, so that this is part of its history
            yield from OPERATIONS[what](process, refunds)

        return self.histories.step(OPERATOR, program, number)

    def is_settled(self, world: World) -> bool:
        """Whether every refund has reached its end."""
        return all(row["state"] in FINAL for row in self.state(world).refunds.values())

    def choices(self, world: World) -> list[str]:
        """What may happen next. Nothing: the schedule is over."""
        begun_last = world.at[-1] != UNBEGUN
        late = ["d"] if world.gateway.late else []
        if begun_last:
            return ([LAST] if self.step(world, LAST) is not None else []) + late
        found = [choice for name in self.names[:-1] for choice in self._choices_of(world, name)]
        if found:
            return [*found, *self._ends_of_lease(world), *self._operations(world), *late]
        if world.lease is not None:
            return ["T", *self._operations(world), *late]
        if not self.is_settled(world):
            return [LAST, *self._operations(world), *late]
        return late

    def _choices_of(self, world: World, name: str) -> Iterator[str]:
        step = self.step(world, name)
        if step is None or (isinstance(step, Take) and step.waits and self._is_busy(world, name, step)):
            return
        if self._waits_for_its_twin(world, name):
            return
        yield name
        if name == OPERATOR:
            return
        if self._may(world, "crash") and world.at[self.names.index(name)] != UNBEGUN:
            yield name + "+"
        match step:
            case Sql(may_lose_reply=True) | Find() if self._may(world, "lost"):
                yield name + "!"
            case Send(claim):
                if self._may(world, "lost"):
                    yield name + "!"
                    yield name + "~"
                if self._may(world, "decline") and isinstance(world.gateway.find(claim.idempotency_key), Nothing):
                    yield name + "-"
                    yield name + "_"
            case Look() if self._may(world, "stop"):
                yield name + "."

    def _waits_for_its_twin(self, world: World, name: str) -> bool:
        """Workers that run the same program differ by their names alone, so they begin in the order of these."""
        place = self.names.index(name)
        programs = self.bounds.programs
        return (
            world.at[place] == UNBEGUN
            and 0 < place < len(programs)
            and programs[place] == programs[place - 1]
            and world.at[place - 1] == UNBEGUN
        )

    def _ends_of_lease(self, world: World) -> Iterator[str]:
        if world.lease is not None and self._may(world, "expiry"):
            yield "X"
        if world.lease is not None and self._may(world, "flush"):
            yield "F"

    def _operations(self, world: World) -> Iterator[str]:
        if self._may(world, "operator"):
            yield from ("B",) if world.lease is not None else ()
            yield from ("H", "W") if world.gateway.movements else ()

    def _may(self, world: World, kind: str) -> bool:
        return world.left[self.kinds.index(kind)] > 0

    @staticmethod
    def _is_busy(world: World, name: str, step: Take) -> bool:
        return doubles.take(world.lease, (name, step.token)) != (name, step.token)

    # What comes of a choice.

    def take(self, world: World, choice: str) -> Turn:
        """Take a choice."""
        match choice:
            case "X" | "F" | "T":
                return self._end_lease(world, choice)
            case "B" | "H" | "W":
                begun = self._spend(self._then(world, OPERATOR, choice), "operator")
                return self._step(choice, OPERATOR, "", world, begun)
            case "d":
                return Turn(choice, "", None, None, world, world._replace(gateway=world.gateway.delivers()))
        name, how = choice[0], choice[1:]
        if how == "+":
            dead = self._ended(self._spend(world, "crash"), name)
            return Turn(choice, name, None, None, world, dead)
        return self._step(choice, name, how, world, world)

    def _step(self, choice: str, name: str, how: str, before: World, world: World) -> Turn:
        step = self.step(world, name)
        assert step is not None, f"{name} has no step to take"
        changed, outcome = self._outcome(world, name, step, how)
        heard = LostReply() if how == "!" and isinstance(step, Sql) else outcome
        after = self._then(changed, name, heard)
        if self.step(after, name) is None:
            after = self._ended(after, name)
        return Turn(choice, name, step, outcome, before, after)

    def _outcome(self, world: World, name: str, step: Step, how: str) -> tuple[World, Any]:
        """The world after a step, and what came of it."""
        match step:
            case Sql():
                return self._sql(world, name, step, how)
            case Find() | Send():
                return self._ask(world, name, step, how)
            case Look():
                if how == ".":
                    return self._spend(world, "stop"), Stopped()
                return world, LeaseLost("over") if name in world.over else None
        return self._at_the_lease(world, name, step)

    def _at_the_lease(self, world: World, name: str, step: Step) -> tuple[World, Any]:
        match step:
            case Take(token):
                if self._is_busy(world, name, step):
                    return world, Busy("busy")
                return world._replace(lease=(name, token), ended=world.ended - {name}, over=world.over - {name}), None
            case Swap(old, new):
                lease = doubles.swap(world.lease, (name, old), (name, new))
                return world._replace(lease=lease), lease == (name, new)
            case GiveBack(token):
                return world._replace(lease=doubles.give_back(world.lease, (name, token))), None
            case Clear(value):
                cleared = doubles.give_back(world.lease, value)
                after = self._without_lease(world, world.lease if cleared is None else None)
                return after._replace(lease=cleared), None
        return world, world.lease  # somebody looks whose it is

    def _sql(self, world: World, name: str, step: Sql, how: str) -> tuple[World, Any]:
        call = step.call
        effect = self.server.effect(self.state(world), step.role, call)
        answer = effect.answer
        world = world._replace(state=effect.after.number)
        if how == "!":
            world = self._spend(world, "lost")
        if isinstance(answer, StaleToken) and call.name != "activate_token":
            return world._replace(refused=world.refused | {(name, call.arguments["token"])}), answer
        if isinstance(answer, Exception):
            return world, answer
        match call.name:
            case "draw_token":
                world = world._replace(drawn=max(world.drawn, answer[0]))
            case "activate_token":
                world = world._replace(active=call.arguments["token"])
            case "break_lease":
                world = world._replace(drawn=max(world.drawn, answer[0]), active=answer[0])
            case "claim_refund" | "claim_refunds":
                taken = {(name, claim.refund_id) for claim in answer if claim.outcome != "review"}
                world = world._replace(may_send=world.may_send | taken)
            case "release_refund":
                world = world._replace(may_send=world.may_send - {(name, call.arguments["refund_id"])})
        if how == "!" and call.name in {"confirm_refund", "confirm_refunds", "fail_refund"}:
            world = world._replace(unheard=(name, repr(sorted(call.arguments.items()))))
        return world, answer

    def _ask(self, world: World, name: str, step: Find | Send, how: str) -> tuple[World, Any]:
        claim: Claim = step.claim
        if isinstance(step, Find):
            if how == "!":
                return self._spend(world, "lost"), Unknown("timeout")
            return world, world.gateway.find(claim.idempotency_key)
        request = Request(claim.idempotency_key, claim.amount_minor)
        world = world._replace(out=world.out | {claim.refund_id}, may_send=world.may_send - {(name, claim.refund_id)})
        if how == "~":
            return self._spend(world, "lost")._replace(gateway=world.gateway.delays(request)), Unknown("timeout")
        if how in ("-", "_"):
            gateway, answer = world.gateway.declines(request, remembered=how == "-")
            return self._spend(world, "decline")._replace(gateway=gateway), answer
        gateway, answer = world.gateway.sends(request)
        world = world._replace(gateway=gateway)
        if how == "!":
            return self._spend(world, "lost"), Unknown("timeout")
        return world, doubles.plainly(answer)

    def _end_lease(self, world: World, choice: str) -> Turn:
        after = self._without_lease(world, world.lease)._replace(lease=None)
        if choice == "X" and world.lease is not None:
            after = self._spend(after, "expiry")._replace(over=after.over | {world.lease[0]})
        elif choice == "F":
            after = self._spend(after, "flush")
        return Turn(choice, "", None, None, world, after)

    @staticmethod
    def _without_lease(world: World, lease: Lease) -> World:
        return world if lease is None else world._replace(ended=world.ended | {lease[0]})

    def _then(self, world: World, name: str, outcome: Any) -> World:
        place = self.names.index(name)
        number = self.histories.then(name, world.at[place], outcome)
        return world._replace(at=(*world.at[:place], number, *world.at[place + 1 :]))

    def _ended(self, world: World, name: str) -> World:
        """A process that has ended: nothing that it knew matters any more."""
        place = self.names.index(name)
        return world._replace(
            at=(*world.at[:place], ENDED, *world.at[place + 1 :]),
            over=world.over - {name},
            ended=world.ended - {name},
            refused=frozenset(one for one in world.refused if one[0] != name),
            may_send=frozenset(one for one in world.may_send if one[0] != name),
            unheard=None if world.unheard and world.unheard[0] == name else world.unheard,
        )

    def _spend(self, world: World, kind: str) -> World:
        place = self.kinds.index(kind)
        return world._replace(left=(*world.left[:place], world.left[place] - 1, *world.left[place + 1 :]))
