"""Where lock waits matter: real connections, stepped through every order of opening, calling and ending.

A step that has to wait is seen in pg_blocking_pids, never waited for by the clock; the others go on meanwhile. Whatever
the order, the outcome has to be that of the same transactions one after the other, in the order in which they ended.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from ledger import calls
from ledger.calls import Call
from tests.proof.schedules.controls import Edit, broken
from tests.proof.schedules.programs import MERCHANT, RESOURCE, holder
from tests.proof.schedules.states import MOMENTS, PERSON, Server, State

COMMITTED, REPEATABLE = "read committed", "repeatable read"
RETRY = "40001"
Heard = tuple[str, ...]
"""What the calls of one transaction came to."""
Choice = tuple[int, list[int]]
Serial = dict[tuple[int, ...], "Run"]
NO_CLOCK = (
    "select ledger.set_kind('settle', lock => 'advisory', lease_ttl => '1 hour', idle_limit => '1 hour', "
    "lock_limit => '1 hour', actor => 'the races', reason => 'nobody waits by the clock')"
)


@dataclass(frozen=True)
class Race:
    """Transactions that meet, each a list of calls, in the state that other calls left."""

    name: str
    before: Sequence[Call[Any]]
    transactions: Sequence[Sequence[Call[Any]]]
    passes_over: bool = False  # a set takes what is free and doesn't wait
    any_order: bool = False  # one of them doesn't take the gate: one after the other, in whichever order


@dataclass(frozen=True)
class Meeting:
    """A race at certain isolation levels, each of its transactions with its end."""

    race: Race
    levels: tuple[str, ...]
    ends: tuple[str, ...]

    def steps(self, number: int) -> list[list[str | Call[Any]]]:
        """A transaction's steps: open it, with a snapshot where that counts; call; end it."""
        opened = ["begin isolation level " + self.levels[number]]
        transaction, end = self.race.transactions[number], self.ends[number]
        if self.levels[number] == COMMITTED:
            return [[*opened, *transaction], [end]]
        return [[*opened, "select 1 from ledger.fence"], [*transaction], [end]]

    def code(self, path: Sequence[Choice]) -> str:
        """The race, the levels, the ends, and whose steps came when."""
        levels = "".join("s" if level == REPEATABLE else "c" for level in self.levels)  # snapshot, committed
        return f"{self.race.name}:{levels}:{'+'.join(self.ends)}:{''.join(str(number + 1) for number, _ in path)}"


@dataclass(frozen=True)
class Run:
    """One order of the steps: whose step was chosen among whose, and what came of it."""

    path: list[Choice]
    outcomes: tuple[Heard, ...]
    state: State
    ended: list[int]
    waited: bool


@dataclass
class Waits:
    """What came of a race: how many orders there were, in how many somebody waited, and which were wrong."""

    orders: int = 0
    waited: int = 0
    wrong: list[str] = field(default_factory=list)


def meetings(race: Race) -> Iterator[Meeting]:
    """Two transactions meet at each pair of levels, and each may roll back; three meet once."""
    count = len(race.transactions)
    commits = ("commit",) * count
    if count > 2:
        yield Meeting(race, (COMMITTED,) * count, commits)
        return
    for levels in itertools.product((COMMITTED, REPEATABLE), repeat=count):
        yield Meeting(race, levels, commits)
    for rolled_back in range(count):
        ends = tuple("rollback" if number == rolled_back else "commit" for number in range(count))
        yield Meeting(race, (COMMITTED,) * count, ends)


def one(name: str, *arguments: Any) -> Call[Any]:
    call: Call[Any] = getattr(calls, name)(*arguments)
    return call


def _of(name: str, token: int, *more: Any, refund: str = "r_1") -> Call[Any]:
    return one(name, MERCHANT, refund, token, *more)


HELD = (one("draw_token", RESOURCE), one("activate_token", RESOURCE, 1, holder("a")), one("draw_token", RESOURCE))
CLAIMED = (*HELD, _of("claim_refund", 1))
UNKNOWN = (*CLAIMED, _of("mark_unknown", 1, "timeout"), one("activate_token", RESOURCE, 2, holder("b")))
ACCEPTED = (*CLAIMED, _of("accept_refund", 1, "re_1"))
TAKEOVER = (one("activate_token", RESOURCE, 2, holder("b")), _of("claim_refund", 2))
BREAK = one("break_lease", RESOURCE, holder("a"), "carol", "it hangs")

CLAIM, CLAIMS = _of("claim_refund", 1), one("claim_refunds", MERCHANT, 1, 10)
CONFIRM, OTHERWISE = _of("confirm_refund", 1, "re_1"), _of("confirm_refund", 1, "re_2")
CONFIRMS = one("confirm_refunds", MERCHANT, 1, ["r_1"], ["re_1"])
RELEASE = _of("release_refund", 1, "not sent")
ACTIVATE = TAKEOVER[0]
ANOTHER = one("activate_token", RESOURCE, 3, holder("c"))
CANCEL = one("cancel_refund", MERCHANT, "r_1", "carol", "asked for")
REVIEW = one("review_refund", MERCHANT, "r_1", "carol", "looks odd")
RESOLVE = one("resolve_refund", MERCHANT, "r_1", "failed", None, "carol", "seen there", {"ticket": 91})
JOB = one("lock_job", RESOURCE, holder("b"))

RACES = (
    Race("an activation, a claim", HELD, [[CLAIM], [ACTIVATE]]),
    Race("an activation, a set of claims", HELD, [[CLAIMS], [ACTIVATE]]),
    Race("an activation, a draw", HELD, [[one("draw_token", RESOURCE)], [ACTIVATE]], any_order=True),
    Race("two activations", (*HELD, one("draw_token", RESOURCE)), [[ACTIVATE], [ANOTHER]]),
    Race("a takeover, a confirm", CLAIMED, [[CONFIRM], TAKEOVER]),
    Race("a takeover, a set of confirms", CLAIMED, [[CONFIRMS], TAKEOVER]),
    Race("a takeover, a release", CLAIMED, [[RELEASE], TAKEOVER]),
    Race("a break, a confirm", CLAIMED, [[CONFIRM], [BREAK]]),
    Race("two claims", HELD, [[CLAIM], [CLAIM]]),
    Race("two sets of claims", HELD, [[CLAIMS], [CLAIMS]], passes_over=True, any_order=True),
    Race("two confirms", CLAIMED, [[CONFIRM], [CONFIRM]]),
    Race("two confirms that differ", CLAIMED, [[CONFIRM], [OTHERWISE]]),
    Race("a confirm, a release", CLAIMED, [[CONFIRM], [RELEASE]]),
    Race("a claim, a person cancels", HELD, [[CLAIM], [CANCEL]]),
    Race("a takeover, a person reviews", UNKNOWN, [[_of("claim_refund", 2)], [REVIEW]]),
    Race("a final word, a person's", ACCEPTED, [[CONFIRM], [RESOLVE]]),
    Race("a job, an activation", HELD, [[JOB], [one("activate_token", RESOURCE, 2, holder("c"))]]),
    Race("a job, a write under an older token", HELD, [[JOB], [one("present_token", RESOURCE, 1)]]),
    Race("two claims and an activation", HELD, [[CLAIM], [ACTIVATE], [_of("claim_refund", 1, refund="r_2")]]),
)


@dataclass(frozen=True)
class Control:
    """A lock that is taken away, and the race that has to come out wrong."""

    name: str
    race: str
    edits: Sequence[Edit]


CONTROLS = (
    Control(
        "a write passes the gate without taking it",
        "an activation, a claim",
        [("pass_gate", "not pg_try_advisory_xact_lock_shared(hashtextextended(resource, 0))", "false")],
    ),
    Control(
        "an activation doesn't close the gate",
        "an activation, a claim",
        [("close_gate", "perform pg_advisory_xact_lock(key);", "null;")],
    ),
    Control(
        "an older snapshot's fence is believed",
        "an activation, a set of claims",
        [("pass_gate", "current_setting('transaction_isolation') <> 'read committed'", "false")],
    ),
    Control(
        "a claim doesn't lock its refund",
        "two claims",
        [("claim_refund", "claim_refund.refund_id\n    for no key update", "claim_refund.refund_id")],
    ),
    Control(
        "a person's move doesn't lock its refund",
        "a claim, a person cancels",
        [("lock_by_person", "for no key update", "")],
    ),
)


def find(conninfo: str, control: Control) -> Waits:
    """What comes of the control's race without its lock."""
    race = next(race for race in RACES if race.name == control.race)
    with broken(conninfo, control.edits):
        ring = Ring(conninfo)
        try:
            return ring.through(race)
        finally:
            ring.close()


def parse(code: str) -> tuple[Meeting, list[int]] | None:
    """A meeting and the order of its steps, of the code that a failure names; None for another code."""
    name, _, rest = code.partition(":")
    race = next((race for race in RACES if race.name == name), None)
    if race is None or rest.count(":") != 2:
        return None
    levels, ends, steps = rest.split(":")
    meeting = Meeting(
        race, tuple(REPEATABLE if level == "s" else COMMITTED for level in levels), tuple(ends.split("+"))
    )
    return meeting, [int(step) - 1 for step in steps]


class Ring:
    """Two connections or more, one server to look from, and the races between them."""

    def __init__(self, conninfo: str) -> None:
        self.server = Server(conninfo)
        self._conninfo = conninfo
        with psycopg.connect(conninfo, autocommit=True) as admin:
            admin.execute(NO_CLOCK.encode())
        self._sessions = [_Session(conninfo) for _ in range(3)]
        self._bases: dict[str, State] = {}

    def close(self) -> None:
        """Close the connections."""
        self.server.close()
        for session in self._sessions:
            session.close()

    def through(self, race: Race) -> Waits:
        """A race through every order of every meeting."""
        waits = Waits()
        for meeting in meetings(race):
            self.meet(meeting, waits)
        return waits

    def meet(self, meeting: Meeting, waits: Waits) -> None:
        """One meeting through every order of its steps."""
        right = self._one_after_the_other(meeting)
        prefix: list[int] | None = []
        while prefix is not None:
            run = self.run(meeting, range(len(meeting.levels)), prefix)
            waits.orders += 1
            waits.waited += run.waited
            if not _fits(meeting, run, right):
                waits.wrong.append(meeting.code(run.path))
            prefix = _next_prefix(run.path)

    def tell(self, meeting: Meeting, steps: Sequence[int]) -> tuple[list[str], bool]:
        """One order: what each transaction's calls came to, and whether that is as it should be."""
        right = self._one_after_the_other(meeting)
        run = self.run(meeting, range(len(meeting.levels)), steps)
        lines = [f"{number + 1} ({meeting.levels[number]}): {heard}" for number, heard in enumerate(run.outcomes)]
        lines.append(
            f"{', then '.join(str(number + 1) for number in run.ended)} ended; {'one' if run.waited else 'none'} waited"
        )
        return lines, _fits(meeting, run, right)

    def _one_after_the_other(self, meeting: Meeting) -> Serial:
        """What comes of the transactions in each order, one wholly after the other; of fewer than all of them, too."""
        right: Serial = {}
        for size in range(len(meeting.levels) + 1):
            for order in itertools.permutations(range(len(meeting.levels)), size):
                steps = [number for number in order for _ in meeting.steps(number)]
                right[order] = self.run(meeting, order, steps)
        return right

    def run(self, meeting: Meeting, numbers: Sequence[int], prefix: Sequence[int]) -> Run:
        """Take the steps of these transactions as the prefix says, then always of the first that can go on."""
        self.server.place(self._base(meeting.race))
        left = {number: meeting.steps(number) for number in numbers}
        path: list[Choice] = []
        ended: list[int] = []
        waited = False
        while options := sorted(n for n in numbers if left[n] and not self._sessions[n].is_busy):
            chosen = prefix[len(path)] if len(path) < len(prefix) else options[0]
            assert chosen in options, f"{meeting.race.name}: {chosen + 1} can't go on after {path}"
            path.append((chosen, options))
            self._sessions[chosen].begin(left[chosen].pop(0), self.server)
            if not left[chosen]:
                ended.append(chosen)
            waited = self._settle(chosen) or waited
        assert not any(self._sessions[n].is_busy for n in numbers), f"{meeting.code(path)}: all wait"
        outcomes = tuple(tuple(self._sessions[n].outcomes()) for n in numbers)
        return Run(path, outcomes, self.server.look(), ended, waited)

    def _base(self, race: Race) -> State:
        if race.name not in self._bases:
            self.server.start(("r_1", "r_2"))
            for call in race.before:
                answer = self.server.make("ledger_worker", call).answer
                assert isinstance(answer, tuple), f"{race.name}: {answer}"
            self._bases[race.name] = self.server.look()
        return self._bases[race.name]

    def _settle(self, first: int) -> bool:
        """Wait until every session is done with its step or waits for another; whether one waits.

        The session that took the step comes first: what it ends, others may have waited for.
        """
        waits = False
        for session in sorted(self._sessions, key=lambda session: session is not self._sessions[first]):
            while session.is_busy and not session.is_done():
                if self.server.blockers(session.pid):
                    waits = True
                    break
                time.sleep(0.001)
        return waits


class _Session:
    """A connection with a thread of its own, so that it can wait."""

    def __init__(self, conninfo: str) -> None:
        self._connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=0)
        self._connection.execute("set session authorization ledger_operator")
        self._thread = ThreadPoolExecutor(1)
        self._future: Future[Any] | None = None
        self._heard: list[str] = []
        self.pid = self._connection.info.backend_pid

    @property
    def is_busy(self) -> bool:
        """Whether a step is under way."""
        return self._future is not None

    def is_done(self) -> bool:
        """Whether the step has ended; then what came of it is kept."""
        assert self._future is not None
        if not self._future.done():
            return False
        self._heard += self._future.result()
        self._future = None
        return True

    def begin(self, step: Sequence[str | Call[Any]], server: Server) -> None:
        """Begin a step: statements and calls."""
        self._future = self._thread.submit(self._make, step, server)

    def outcomes(self) -> list[str]:
        """What the calls of the transaction came to; forgotten after this."""
        heard, self._heard = self._heard, []
        return heard

    def close(self) -> None:
        """Close it."""
        self._thread.shutdown()
        self._connection.close()

    def _make(self, step: Sequence[str | Call[Any]], server: Server) -> list[str]:
        heard = []
        for what in step:
            try:
                if isinstance(what, str):
                    self._connection.execute(sql.SQL(what))
                else:
                    with self._connection.cursor(row_factory=what.row) as cursor:
                        rows = cursor.execute(what.statement.encode(), server.arguments(what)).fetchall()
                    heard.append(f"{what.name} {[server.lasting(row) for row in rows]}")
            except psycopg.Error as error:
                heard.append(error.sqlstate or "")
        return heard


def _next_prefix(path: Sequence[Choice]) -> list[int] | None:
    """The next order, depth first; None after the last."""
    for place in reversed(range(len(path))):
        chosen, options = path[place]
        if chosen != options[-1]:
            return [taken for taken, _ in path[:place]] + [options[options.index(chosen) + 1]]
    return None


def _fits(meeting: Meeting, run: Run, right: Serial) -> bool:
    """Whether an outcome is that of the order in which they ended; one that is told to try again did nothing."""
    failed = {n for n, heard in enumerate(run.outcomes) if RETRY in heard and meeting.levels[n] == REPEATABLE}
    order = tuple(n for n in run.ended if n not in failed)
    orders = itertools.permutations(order) if meeting.race.any_order else [order]
    return any(_is_like(meeting.race, run, order, right[order], numbers_count=not failed) for order in orders)


def _is_like(race: Race, run: Run, order: Sequence[int], serial: Run, *, numbers_count: bool) -> bool:
    for number, heard in zip(order, serial.outcomes, strict=True):
        passed_over = race.passes_over and run.outcomes[number][0].endswith("[]")
        if run.outcomes[number] != heard and not passed_over:
            return False
    return race.passes_over or _essence(run.state, numbers_count) == _essence(serial.state, numbers_count)


def _essence(state: State, numbers_count: bool) -> str:
    """What counts of a state: a number at or below the barrier is void, whether its row is there or not.

    Where a transaction failed, the number that it drew is gone all the same.
    """
    rows = dict(state.rows, draw=[row["token"] for row in state.rows["draw"] if row["token"] > state.barrier])
    left_out = {"event_id", "claimed_xid"} if numbers_count else {"event_id", "claimed_xid", "barrier"}
    for name in ("refund", "journal", "fence", "event"):
        rows[name] = sorted(
            PERSON.sub("person", json.dumps({k: v for k, v in row.items() if k not in MOMENTS | left_out}))
            for row in rows[name]
        )
    if not numbers_count:
        del rows["drawn"]
    return json.dumps(rows, sort_keys=True)
