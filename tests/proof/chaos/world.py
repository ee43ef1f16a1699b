"""Where a run takes place: servers, a database and a gateway, the workers, and what a scenario can break."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import redis
from psycopg import sql

from ledger import dev, schema
from ledger.client import Ledger
from ledger.errors import Busy, LedgerError, Refused, sqlstate_of
from ledger.sandbox import Behaviour, Movements, SandboxServer, read_movements
from ledger.settle import Options
from tests.faults import FaultProxy
from tests.proof.chaos.crew import Worker
from tests.proof.chaos.worker import POINTS, Hold, Orders
from tests.story import until

MERCHANT = "m_1"
RESOURCE = f"settle:{MERCHANT}"
TEMPLATE = "chaos_template"
TTL, IDLE, LOCK = 0.5, 0.3, 0.5
SPARE = 5.0
"""Seconds beyond the lease in which a fresh worker ends everything (I7)."""

SETTINGS = {"deadlock_timeout": "200ms", "autovacuum": "off"}
PERSON: dict[str, Any] = {"actor": "dana", "reason": "a run with faults"}

T = TypeVar("T")

_numbers = itertools.count(1)
_migrating = threading.Lock()  # Alembic keeps its context in globals


class Stage:
    """A pair of servers with a migrated template, used by one run after the other."""

    def __init__(self, servers: dev.Servers) -> None:
        self.servers = servers
        servers.prepare(TEMPLATE)
        with _migrating:
            schema.upgrade(servers.dsn("ledger_admin", TEMPLATE))

    @classmethod
    @contextlib.contextmanager
    def open(cls, pg: str = "18", settings: Mapping[str, str] | None = None) -> Iterator[Stage]:
        """Servers for the length of a block."""
        with dev.temporary(pg, settings={**SETTINGS, **(settings or {})}) as servers:
            yield cls(servers)

    def clear(self) -> None:
        """Both servers up, whatever the last run did to them, and no leases."""
        self.servers.start_postgres()
        self.servers.start_redis()
        with redis.Redis.from_url(self.servers.redis_url) as client:
            client.flushall()

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A fresh migrated database."""
        name = f"chaos_{next(_numbers)}"
        self._as_superuser(
            sql.SQL("create database {} template {} owner ledger_admin").format(
                sql.Identifier(name), sql.Identifier(TEMPLATE)
            )
        )
        yield name
        self.servers.start_postgres()
        self._as_superuser(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def _as_superuser(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.servers.dsn("postgres", "postgres"), autocommit=True) as admin:
            admin.execute(statement)


class World:
    """One run. Everything that is drawn is drawn from `rng`, by the scenario's own thread."""

    def __init__(self, stage: Stage, database: str, folder: Path, name: str, seed: int) -> None:
        self.stage = stage
        self.servers = stage.servers
        self.database = database
        self.folder = folder
        self.rng = random.Random(f"{name}/{seed}")
        self.workers: list[Worker] = []
        self.notes: list[tuple[float, str]] = []
        self.faults = 0
        self.recoveries: list[float] = []
        self.breaches: list[str] = []
        self.codes: set[str] = set()
        self.hits: set[str] = set()
        self.tokens_by_hand: list[int] = []
        self.postgres_failed = False
        self.lock = "redis"
        self.redis_url = self.servers.redis_url
        self.gateway: SandboxServer
        self._exits = contextlib.ExitStack()
        self._admin: psycopg.Connection[Any] | None = None
        self._networks: dict[str, FaultProxy] = {}
        self._gateways = 0
        self.open_gateway()
        self.limit()

    # What there is.

    def dsn(self, user: str = "ledger_worker", *, through: FaultProxy | None = None) -> str:
        """This run's database, straight or through a network that can fail."""
        dsn = psycopg.conninfo.make_conninfo(self.servers.dsn(user, self.database), connect_timeout=2)
        if through is None:
            return dsn
        return psycopg.conninfo.make_conninfo(
            dsn, host=through.host, port=through.port, sslmode="disable", gssencmode="disable"
        )

    @property
    def to_postgres(self) -> FaultProxy:
        """The network between workers and Postgres."""
        return self._network("postgres", f"{self.servers.sockets}/.s.PGSQL.{self.servers.postgres.port}")

    @property
    def to_redis(self) -> FaultProxy:
        """The network between workers and Redis."""
        return self._network("redis", str(self.servers.redis.socket))

    def rows(self, query: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        """What a superuser sees; asked again on a new connection where a fault took the old one."""
        for last in (False, True):
            try:
                cursor = self.admin.execute(query.encode(), arguments)
                is_rows = cursor.pgresult is not None and cursor.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK
                return cursor.fetchall() if is_rows else []
            except psycopg.OperationalError:
                self.hang_up()
                if last:
                    raise
        raise AssertionError

    @property
    def admin(self) -> psycopg.Connection[Any]:
        """A superuser's connection, to look and to break things."""
        if self._admin is None or self._admin.closed:
            self._admin = psycopg.connect(self.dsn("postgres"), autocommit=True)
        return self._admin

    def hang_up(self) -> None:
        """Close the superuser's connection; the next look opens another one."""
        if self._admin is not None:
            self._admin.close()

    @contextlib.contextmanager
    def ledger(self, user: str = "ledger_operator", **options: Any) -> Iterator[Ledger]:
        """The ledger of a person, whose refusals are recorded."""
        with (
            psycopg.connect(self.dsn(user), autocommit=True, **options) as connection,
            psycopg.connect(self.dsn(user), autocommit=True) as second,
        ):
            yield Ledger(connection, refusals=second)

    def tries(self, call: Callable[[], Any]) -> Any:
        """What a call returns, or the code it is refused with, which is remembered."""
        try:
            return call()
        except (LedgerError, psycopg.Error) as error:
            code = error.code if isinstance(error, Refused) else "55P03" if isinstance(error, Busy) else None
            code = code or sqlstate_of(error) or type(error).__name__
            self.codes.add(code)
            return code

    # What it is furnished with.

    def enter(self, manager: AbstractContextManager[T]) -> T:
        """Something more that lasts as long as the run."""
        return self._exits.enter_context(manager)

    @contextlib.contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """A setting of Postgres, for the length of a block."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"alter system set {name} = '{value}'".encode())
            admin.execute("select pg_reload_conf()")
        try:
            yield
        finally:
            with psycopg.connect(self.dsn("postgres"), autocommit=True) as admin:
                admin.execute(f"alter system reset {name}".encode())
                admin.execute("select pg_reload_conf()")

    def open_gateway(self, behaviour: Behaviour | None = None) -> None:
        """A gateway with a log of its own, in the place of the one before."""
        self._gateways += 1
        log = self.folder / f"gateway-{self._gateways}.log"
        self.gateway = self._exits.enter_context(SandboxServer(log, behaviour=behaviour))

    def limit(self, **limits: Any) -> None:
        """The kind's limits, short ones where nothing else is said."""
        limits = {
            "lease_ttl": timedelta(seconds=TTL), "idle_limit": timedelta(seconds=IDLE),
            "lock_limit": timedelta(seconds=LOCK), "max_attempts": 50, "lock": self.lock, **limits,
        }  # fmt: skip
        self.lock = limits["lock"]
        with self.ledger() as ledger:
            ledger.set_kind("settle", **limits, **PERSON)

    def refunds(self, count: int | None = None) -> list[str]:
        """So many pending refunds, r_1 and so on; six to twelve where nothing is said."""
        count = self.rng.randint(6, 12) if count is None else count
        ids = [f"r_{number}" for number in range(1, count + 1)]
        amounts = [self.rng.randint(1, 100_000) for _ in ids]
        currencies = [self.rng.choice(["EUR", "JPY", "KWD"]) for _ in ids]
        with self.ledger("ledger_worker") as ledger:
            ledger.add_refunds(MERCHANT, ids, amounts, currencies)
        return ids

    def point(self, *points: str, most: int = 3) -> Hold:
        """A point of the protocol, and which time it is reached."""
        point = self.rng.choice(points or POINTS)
        once = point in ("after draw", "after take", "after activate", "before release")
        nth = 1 if once else self.rng.randint(1, most)
        if self.lock == "advisory" and point == "after take":
            point = "after activate"  # the other lease's own place
        return Hold(point, nth)

    def worker(
        self,
        name: str,
        *,
        hold: Hold | tuple[Hold, ...] = (),
        through: tuple[str, ...] = (),
        until_done: bool = False,
        tasks: bool | None = None,
        wait: float = 0.0,
        changes: tuple[Callable[[Orders], None], ...] = (),
        dsn: str | None = None,
        redis_url: str | None = None,
        **options: Any,
    ) -> Worker:
        """Start a worker on the merchant's refunds. `through`: "postgres", "redis": the networks that can fail."""
        defaults = {"in_flight": 1, "batch": self.rng.choice([1, 2, 4]), "timeout": 1.0, "grace": 0.5, "patience": 5.0}
        leases = redis_url or (
            f"redis://{self.to_redis.host}:{self.to_redis.port}" if "redis" in through else self.redis_url
        )
        orders = Orders(
            name=name,
            merchant_id=MERCHANT,
            dsn=dsn or self.dsn(through=self.to_postgres if "postgres" in through else None),
            redis_url=None if self.lock == "advisory" else leases,
            gateway_url=self.gateway.url,
            options=Options(**{**defaults, **options}),
            tasks=self.rng.random() < 0.5 if tasks is None else tasks,
            wait=wait,
            until_done=until_done,
            holds=hold if isinstance(hold, tuple) else (hold,),
            changes=changes,
        )
        worker = Worker(orders)
        self.workers.append(worker)
        return worker

    # What happens.

    def fault(self, text: str) -> None:
        """Say that something was broken."""
        self.faults += 1
        self.note(text)

    def note(self, text: str) -> None:
        """A line of the run's story."""
        self.notes.append((time.monotonic(), text))

    def hit(self, name: str) -> None:
        """Say that something happened that must happen at least once in a whole run (sometimes.py)."""
        self.hits.add(name)

    def crash_postgres(self) -> None:
        """Postgres stops without a checkpoint and starts again."""
        self.postgres_failed = True
        self.servers.crash_postgres()
        self.servers.start_postgres()
        self.fault("Postgres crashed and came back")

    def kill_backend(self, pid: int) -> None:
        """End one server process with SIGKILL: Postgres ends all others, and starts again by itself."""
        self.postgres_failed = True
        os.kill(pid, signal.SIGKILL)
        self.fault(f"the server process {pid} was killed")
        self.until_postgres_answers()

    def until_postgres_answers(self) -> None:
        """Return once it takes connections again."""

        def answers() -> bool:
            try:
                self.hang_up()
                return self.rows("select 1") == [(1,)]
            except psycopg.Error:
                return False

        until(answers, within=20)

    def lose_replies_of_postgres(self) -> None:
        """The next reply is lost, though its request is carried out."""
        self.postgres_failed = True
        self.to_postgres.lose_replies(1)
        self.fault("the next reply of Postgres is lost")

    def until_lease_ended(self) -> None:
        """Return once nobody holds the merchant's lease."""
        if self.lock == "advisory":
            until(lambda: not self.rows("select from ledger.job_holders(%s) where job_holders <> '[]'", [RESOURCE]), 15)
        else:
            with redis.Redis.from_url(self.redis_url) as client:
                until(lambda: not client.exists(f"lock:{{{RESOURCE}}}"), within=15)

    def entries(self, token: int, *to_states: str) -> int:
        """How many entries of the journal were made under a token."""
        ((count,),) = self.rows(
            "select count(*) from ledger.journal where token = %s and to_state = any(%s)", [token, list(to_states)]
        )
        return int(count)

    def active(self) -> tuple[int, str]:
        """The active token, and its holder."""
        ((token, holder),) = self.rows("select active, holder from ledger.fence where resource = %s", [RESOURCE])
        return int(token), str(holder)

    def open_refunds(self, *states: str) -> int:
        """How many refunds are in these states; in those that a worker ends, where none is named."""
        wanted = list(states or ("pending", "sending", "unknown"))
        return len(
            self.rows("select from ledger.refund where merchant_id = %s and state = any(%s)", [MERCHANT, wanted])
        )

    def recover(self, **orders: Any) -> None:
        """The faults are over: a fresh worker ends everything within the lease and five seconds, or I7 is broken."""
        began = time.monotonic()
        worker = self.worker("fresh", until_done=True, wait=TTL, in_flight=4, batch=4, **orders)
        if worker.join(TTL + SPARE) and self.open_refunds() == 0:
            self.recoveries.append(time.monotonic() - began)
            self.note("a fresh worker ended everything")
            return
        last = worker.said[-1] if worker.said else None
        worker.kill()
        self.breaches.append(
            f"I7: a fresh worker left {self.open_refunds()} refunds open after {TTL + SPARE:g} s; it last said {last}"
        )

    # How it ends.

    def heal(self) -> None:
        """End every fault that lasts, wake whoever is frozen or held, and let everybody end."""
        for network in self._networks.values():
            network.mode = "pass"
        self.servers.start_redis()
        self.servers.start_postgres()
        self.until_postgres_answers()
        for worker in self.workers:
            worker.wake()
        if self.open_refunds() or not self.recoveries:
            self.recover()
        for worker in self.workers:
            if not worker.join():
                self.breaches.append(f"I8: worker {worker.name} didn't end; it last said {worker.said[-1:]}")
                worker.kill()
        self.deliver()

    def deliver(self) -> None:
        """Let every request that is held at the gateway arrive, and what is under way be carried out."""
        engine = self.gateway.engine
        for (key,) in self.rows("select idempotency_key from ledger.refund"):
            engine.release(key)
        until(lambda: self.gateway._http._busy == 0, within=10)

    @property
    def movements(self) -> Movements:
        """What the gateways' own logs say."""
        moved = [read_movements(self.folder / f"gateway-{number}.log") for number in range(1, self._gateways + 1)]
        return Movements(tuple(movement for log in moved for movement in log))

    def refusals_seen(self) -> dict[int, str]:
        """What workers were told, by the refusal's number."""
        return {
            said.facts["refusal"]: said.facts["outcome"]
            for worker in self.workers
            for said in worker.calls()
            if said.facts.get("refusal") is not None
        }

    def story(self) -> list[str]:
        """What happened, in order."""
        lines = [(at, "", text) for at, text in self.notes]
        lines += [(said.at, worker.name, _told(said)) for worker in self.workers for said in worker.said]
        start = min((at for at, _, _ in lines), default=0.0)
        return [f"{at - start:7.3f} s  {who:<6} {text}" for at, who, text in sorted(lines)]

    def close(self) -> None:
        """End every worker, network and gateway."""
        for worker in self.workers:
            worker.close()
        self.hang_up()
        self._exits.close()

    def _network(self, name: str, upstream: str) -> FaultProxy:
        if name not in self._networks:
            self._networks[name] = self._exits.enter_context(FaultProxy(upstream))
        return self._networks[name]


def _told(said: Any) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in said.facts.items() if value not in (None, (), [], {}))
    return f"{said.what}: {facts}" if facts else said.what


@contextlib.contextmanager
def world(stage: Stage, name: str, seed: int) -> Iterator[World]:
    """A run's world, for the length of a block."""
    stage.clear()
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with stage.database() as database, tempfile.TemporaryDirectory(prefix="chaos-", dir=place) as folder:
        made = World(stage, database, Path(folder), name, seed)
        try:
            yield made
        finally:
            made.close()
