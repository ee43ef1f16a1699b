"""The two acts, and the proof: read from the gateway's own log and from Postgres."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import redis

from ledger import dev, schema
from ledger.client import Ledger
from ledger.demo import naive
from ledger.demo.story import worker
from ledger.examples import read_example
from ledger.sandbox import Behaviour, Movements, SandboxProcess, read_movements

MERCHANT = "m_4471"
RESOURCE = f"settle:{MERCHANT}"
TTL = timedelta(seconds=2)
IDLE_LIMIT = timedelta(seconds=1)
NAIVE_REFUNDS = 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What act 2 proved."""

    refunds: int
    movements: Movements
    refusals: list[dict[str, Any]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    expected_minor: int = 0

    @property
    def sent_twice(self) -> int:
        """Refunds for which money moved more than once."""
        return len(self.movements.refunds_moved_twice)

    @property
    def amount_minor(self) -> int:
        """What moved in all."""
        return sum(self.movements.sums.values())

    @property
    def holds(self) -> bool:
        """Whether everything came out as promised."""
        return (
            len(self.movements) == self.refunds
            and self.sent_twice == 0
            and self.amount_minor == self.expected_minor
            and any(refusal["code"] == "LG101" for refusal in self.refusals)
            and not self.findings
        )

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "refunds": self.refunds,
            "movements": len(self.movements),
            "sent_twice": self.sent_twice,
            "amount_minor": self.amount_minor,
            "currency": next(iter(self.movements.sums), None),
            "refusals": self.refusals,
            "verify": self.findings,
        }


class Stage:
    """The servers of one performance, and a clock for the timeline."""

    def __init__(self, servers: dev.Servers, folder: Path, say: Say) -> None:
        self.servers = servers
        self.folder = folder
        self._say = say
        self._began = time.monotonic()

    def tell(self, who: str, what: str) -> None:
        """A line of the timeline."""
        self._say(f"{time.monotonic() - self._began:6.2f} s  {who:<7}  {what}")

    def note(self, text: str = "") -> None:
        """A line beside the timeline."""
        self._say(text)


def run(pg: str, say: Say) -> Result:
    """Both acts on servers of their own. Raises DevError when one doesn't start."""
    with dev.temporary(pg) as servers, tempfile.TemporaryDirectory(prefix="ledger-demo-") as folder:
        servers.prepare()
        schema.upgrade(servers.dsn())
        stage = Stage(servers, Path(folder), say)
        act_1(stage)
        return act_2(stage)


def act_1(stage: Stage) -> None:
    """A lock with a TTL, and a gateway without idempotency keys."""
    stage.note(
        f"Act 1. {NAIVE_REFUNDS} refunds under a lock with a TTL of one second; the gateway knows no idempotency keys."
    )
    stage.note()
    dsn = stage.servers.dsn()
    refunds = read_example()[:NAIVE_REFUNDS]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create schema naive")
        connection.execute(
            "create table naive.refund (refund_id text primary key, amount_minor bigint, currency text,"
            " state text default 'pending', gateway_ref text, sent_by text)"
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                "insert into naive.refund (refund_id, amount_minor, currency) values (%s, %s, %s)",
                [(refund.refund_id, refund.amount_minor, refund.currency) for refund in refunds],
            )
        with SandboxProcess(stage.folder / "act-1.log", behaviour=Behaviour(keys=False)) as gateway:
            _act_1_workers(stage, dsn, gateway.url)
        movements = read_movements(stage.folder / "act-1.log")
        _act_1_result(stage, connection, movements)


def _act_1_workers(stage: Stage, dsn: str, url: str) -> None:
    arguments = [dsn, stage.servers.redis_url, url]
    locks = redis.Redis.from_url(stage.servers.redis_url)
    with worker("ledger.demo.naive", [*arguments, "A", "r_005"], lambda _: None) as a:
        a.wait_until_frozen()
        stage.tell("A", "sent r_001 to r_004, saw that r_005 is pending, and freezes before it sends it (SIGSTOP)")
        _until(lambda: not locks.exists(naive.LOCK))
        stage.tell("Redis", "A's lock has ended")
        with worker("ledger.demo.naive", [*arguments, "B"], lambda _: None) as b:
            b.finish()
        stage.tell("B", "took the lock, sent r_005 to r_020")
        a.signal(signal.SIGCONT)
        a.finish()
        stage.tell("A", "woke up (SIGCONT), sent r_005, recorded it, and noticed nothing")
    locks.close()


def _act_1_result(stage: Stage, connection: psycopg.Connection[Any], movements: Movements) -> None:
    twice = [refund for _, refund in movements.refunds_moved_twice]
    wrong = connection.execute(
        "select refund_id from naive.refund where sent_by = 'A' and refund_id = any(%s)", (twice,)
    ).fetchall()
    stage.note()
    stage.note(f"  sent twice         {len(twice)}: {', '.join(twice)}")
    stage.note(
        f"  recorded wrongly   {len(wrong)}: the row names A's movement; B's, just as real, was written over"
        if wrong
        else "  recorded wrongly   0"
    )
    stage.note()


def act_2(stage: Stage) -> Result:
    """The fence, and a gateway with idempotency keys."""
    refunds = read_example()
    expected = sum(refund.amount_minor for refund in refunds)
    stage.note(f"Act 2. {len(refunds)} refunds, {expected / 100:,.2f} EUR, under the fence; the gateway knows keys.")
    stage.note()
    with psycopg.connect(stage.servers.dsn(), autocommit=True) as connection:
        ledger = Ledger(connection)
        ledger.set_kind("settle", lease_ttl=TTL, idle_limit=IDLE_LIMIT, actor="demo", reason="short limits")
        for start in range(0, len(refunds), 1000):
            part = refunds[start : start + 1000]
            ledger.add_refunds(
                MERCHANT,
                [refund.refund_id for refund in part],
                [refund.amount_minor for refund in part],
                [refund.currency for refund in part],
            )
        log = stage.folder / "act-2.log"
        with SandboxProcess(log) as gateway:
            _act_2_workers(stage, gateway.url)
        return _prove(stage, connection, read_movements(log), len(refunds), expected)


class Told:
    """What a worker said: the timeline's lines at once, the rest for later."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.sent = 0
        self.began = False

    def __call__(self, said: dict[str, Any]) -> None:
        """Hear one event."""
        event, refund = said["event"], said["refund"]
        if event == "claimed" and not self.began:
            self.began = True
            self.stage.tell(
                self.name, f"has the lease on {RESOURCE} and token {said['token']}; claims {refund} ({said['outcome']})"
            )
        elif event == "recorded" and said["outcome"] == "confirmed":
            self.sent += 1
        elif event == "asked":
            self.stage.tell(self.name, f"asks the gateway about {refund}: {said['outcome']}")
        elif event == "answered" and self.name == "A" and refund == "r_815":
            self.stage.tell(
                self.name,
                f"sends {refund} under the same key; the gateway answers with B's movement ({said['outcome']})",
            )
        elif event == "refusal":
            self.stage.tell(self.name, f"tries to confirm it and is refused: {said['code']}")
            self.stage.tell("", said["message"])


def _act_2_workers(stage: Stage, url: str) -> None:
    arguments = [stage.servers.dsn("ledger_worker"), stage.servers.redis_url, url]
    locks = redis.Redis.from_url(stage.servers.redis_url)
    tell_a, tell_b = Told(stage, "A"), Told(stage, "B")
    with worker("ledger.demo.worker", [*arguments, "1", "r_815"], tell_a) as a:
        a.wait_until_frozen()
        stage.tell("A", f"sent and confirmed {tell_a.sent} refunds, r_001 to r_814 (text order: r_1000 follows r_100)")
        stage.tell("A", "claimed r_815, looked at its lease, and freezes before its gateway call (SIGSTOP)")
        _until(lambda: not locks.exists(f"lock:{{{RESOURCE}}}"))
        stage.tell("Redis", "A's lease has ended")
        with worker("ledger.demo.worker", [*arguments, "100"], tell_b) as b:
            b.finish()
        stage.tell("B", f"sent and confirmed {tell_b.sent} refunds, r_815 among them")
        stage.tell("A", "wakes up (SIGCONT)")
        a.signal(signal.SIGCONT)
        a.finish()
    locks.close()


def _prove(
    stage: Stage, connection: psycopg.Connection[Any], movements: Movements, refunds: int, expected: int
) -> Result:
    found = connection.execute(
        "select code, token, active from ledger.refusal where code = 'LG101' order by refusal_id"
    ).fetchall()
    findings = [f"{one.check}: {one.finding}" for one in Ledger(connection).verify()]
    refusals = [{"code": code, "token": token, "active": active} for code, token, active in found]
    result = Result(refunds, movements, refusals, findings, expected)
    stage.note()
    stage.note(f"  movements at the gateway   {len(movements)} for {refunds} refunds, by its own log")
    stage.note(f"  amount                     {result.amount_minor / 100:,.2f} EUR of {expected / 100:,.2f}")
    stage.note(f"  sent twice                 {result.sent_twice}")
    for refusal in refusals:
        stage.note(
            f"  refused                    {refusal['code']}: token {refusal['token']}, active is {refusal['active']}"
        )
    stage.note(f"  verify                     {'; '.join(findings) or 'nothing is wrong'}")
    stage.note()
    stage.note("The key at the gateway prevented the second movement of r_815: both sends carried m_4471/r_815.")
    stage.note(
        "The fence in Postgres prevented the second writer: A's token was stale, so its confirm changed nothing."
    )
    return result


def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"what the demo waited for did not happen within {seconds:g} s")
        time.sleep(0.01)
