"""Guards taken away, one at a time: the invariant that each holds up must break, or the runs prove nothing."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from ledger.client import AsyncLedger, Ledger
from ledger.errors import LeaseLost, Refused
from ledger.gateway import Answer, Declined, Payable
from ledger.lease.watchdog import Hold as WatchdogHold
from ledger.sandbox import AsyncSandboxGateway, Behaviour, Fault, SandboxGateway
from ledger.settlement import Send, Settlement
from tests.proof.chaos.runs import run_all
from tests.proof.chaos.scenario import Run, Scenario
from tests.proof.chaos.scenarios.gateway import held, key_of
from tests.proof.chaos.scenarios.postgres import lose_answer
from tests.proof.chaos.scenarios.transactions import frozen
from tests.proof.chaos.worker import Hold, Orders
from tests.proof.chaos.world import RESOURCE, World

TRIES = 10

say = functools.partial(print, flush=True)


@dataclass(frozen=True, slots=True)
class Control:
    """A guard, the invariants that must break without it, and what is done then."""

    guard: str
    breaks: tuple[str, ...]
    run: Run


_ALL: list[Control] = []


def without(guard: str, *breaks: str) -> Callable[[Run], Run]:
    """Put a control on the list: the function takes the guard away itself."""

    def add(run: Run) -> Run:
        _ALL.append(Control(guard, breaks, run))
        return run

    return add


def checked(pg: str, jobs: int) -> tuple[int, int, list[str]]:
    """How many guards there are, how many were missed, and those that weren't."""
    say(f"\n{'without this guard':<46} breaks    try")
    broken: dict[str, int] = {}
    left = {control.guard: control for control in _ALL}
    for seed in itertools.takewhile(lambda _: left, range(1, TRIES + 1)):
        work = [(Scenario(control.guard, "", control.run), seed) for control in left.values()]
        for outcome in run_all(work, min(jobs, len(work)), pg):
            control = left[outcome.scenario]
            if set(control.breaks) <= {breach.split(":")[0] for breach in outcome.breaches}:
                broken[control.guard] = seed
                del left[control.guard]
                say(f"{control.guard:<46} {' '.join(control.breaks):<9} {seed}")
    blind = [f"without {guard}: not broken {TRIES} times: {', '.join(c.breaks)}" for guard, c in left.items()]
    return len(_ALL), len(broken), blind


# The gateway's part.


@without("idempotency keys at the gateway", "I1", "I9")
def no_keys(world: World) -> None:
    world.open_gateway(Behaviour(keys=False))
    world.refunds()
    a = world.worker("A", hold=Hold("before refund", world.rng.randint(1, 3)))
    a.until_held()
    a.freeze()
    world.recover()
    a.wake()


@without("a final refusal that is remembered", "I2")
def refusals_are_believed(world: World) -> None:
    ids = world.refunds()
    refund_id = world.rng.choice(ids)
    world.gateway.engine.plan(key_of(refund_id), Fault.HOLD)
    world.gateway.engine.plan(key_of(refund_id), Fault.DECLINE_FORGOTTEN)
    a = world.worker("A", timeout=5.0)
    held(world, key_of(refund_id))
    a.kill()
    world.worker("B", wait=5.0, changes=(believe_refusals,)).join()


def believe_refusals(_: Orders) -> None:
    """Take every refusal for a final one."""
    refund, refund_async = SandboxGateway.refund, AsyncSandboxGateway.refund

    def final(answer: Answer) -> Answer:
        return Declined(answer.reason, remembered=True) if isinstance(answer, Declined) else answer

    def one(self: SandboxGateway, order: Payable, token: int, timeout: float) -> Answer:
        return final(refund(self, order, token, timeout))

    async def other(self: AsyncSandboxGateway, order: Payable, token: int, timeout: float) -> Answer:
        return final(await refund_async(self, order, token, timeout))

    SandboxGateway.refund = one  # type: ignore[method-assign, assignment]
    AsyncSandboxGateway.refund = other  # type: ignore[method-assign, assignment]


@without("the question before a second send", "I8")
def nobody_asks(world: World) -> None:
    world.refunds()
    a = world.worker("A", hold=Hold(world.rng.choice(["before refund", "after refund"])))
    a.until_held()
    a.kill()
    world.worker("B", wait=5.0, changes=(send_at_once,)).join()


def send_at_once(_: Orders) -> None:
    """Send whatever was claimed, without asking."""
    import ledger.settle

    def course(claim: Any) -> Iterator[Any]:
        return (yield Send(claim))

    ledger.settle.at_the_gateway = course  # type: ignore[attr-defined, assignment]


# The fence.


def after_the_gate(world: World, statement: str) -> None:
    """Have the gate do something more, after it did what it does."""
    ((kept,),) = world.rows("select pg_get_functiondef('ledger.pass_gate'::regproc)")
    world.rows(kept.replace("pass_gate", "pass_gate_kept"))
    world.rows("alter function ledger.pass_gate_kept(text, text, bigint) owner to ledger_fn")
    world.rows(
        f"""
        create or replace function ledger.pass_gate(function text, resource text, token bigint)
        returns ledger.gate_pass
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        declare
            gate ledger.gate_pass := ledger.pass_gate_kept(function, resource, token);
        begin
            {statement};
            return gate;
        end;
        $$
        """
    )


ANY_TOKEN_PASSES = "gate.verdict := null"

ANY_HOLDER_SETTLES = """
    create or replace function ledger.lock_to_settle(call jsonb, states text[], accepted_too boolean, durable boolean)
    returns ledger.refund
    language plpgsql set search_path = pg_catalog, pg_temp as $$
    declare
        refund ledger.refund;
    begin
        select r.* into refund from ledger.refund as r
        where r.merchant_id = call ->> 'merchant_id' and r.refund_id = call ->> 'refund_id'
        for no key update;
        return refund;
    end;
    $$;
"""


@without("the fence", "I3", "I5")
def no_fence(world: World) -> None:
    """A confirms what B has claimed."""
    after_the_gate(world, ANY_TOKEN_PASSES)
    world.rows(ANY_HOLDER_SETTLES)
    world.refunds()
    a = world.worker("A", hold=Hold("before confirm"), batch=1, tasks=False)
    a.until_held()
    a.freeze()
    b = world.worker("B", hold=Hold("before confirm"), batch=1, wait=5.0)
    b.until_held()
    a.wake()
    a.join()
    b.go()


@without("the merchant's fence (rows alone have one)", "I4")
def row_fence_only(world: World) -> None:
    """A claims rows that nobody touched since B's token became active."""
    after_the_gate(world, ANY_TOKEN_PASSES)
    world.refunds()
    a = world.worker("A", hold=Hold("before claim", world.rng.randint(1, 2)))
    a.until_held()
    a.freeze()
    b = world.worker("B", hold=Hold("before claim"), wait=5.0)
    b.until_held()
    a.wake()
    a.join()
    b.go()


@without("tokens that survive the loss of Redis", "I7")
def tokens_from_redis(world: World) -> None:
    world.rows(
        """
        create function public.drawn_elsewhere(resource text, token bigint) returns void
        language plpgsql security definer as $$
        begin
            perform setval('ledger.token_seq', greatest(token, (select last_value from ledger.token_seq)));
            insert into ledger.draw (resource, token) values (resource, token);
        end;
        $$;
        alter function public.drawn_elsewhere(text, bigint) owner to ledger_fn;
        """
    )
    with redis.Redis.from_url(world.servers.redis_url) as client:
        client.set("token", 100_000)
    world.refunds()
    worker = world.worker("A", hold=Hold("before claim", 2), changes=(draw_from_redis,))
    worker.until_held()
    world.servers.kill_redis()
    world.servers.start_redis()
    world.fault("Redis came back empty")
    worker.kill()
    world.recover(changes=(draw_from_redis,))


def draw_from_redis(orders: Orders) -> None:
    """Tokens from a counter in Redis, as in the usual recipe."""

    def drawn(self: Ledger, resource: str) -> int:
        token = count()
        self.connection.execute("select public.drawn_elsewhere(%s, %s)", [resource, token])  # type: ignore[union-attr]
        return token

    async def drawn_async(self: AsyncLedger, resource: str) -> int:
        token = count()
        await self.connection.execute("select public.drawn_elsewhere(%s, %s)", [resource, token])  # type: ignore[union-attr]
        return token

    def count() -> int:
        with redis.Redis.from_url(orders.redis_url or "") as client:
            return int(client.incr("token"))

    Ledger.draw_token = drawn
    AsyncLedger.draw_token = drawn_async


@without("an end to every lease", "I7", "I11")
def endless_lease(world: World) -> None:
    """The lock of a program that trusts itself to unlock, and dies."""
    world.refunds()
    worker = world.worker("A", hold=Hold("before refund"))
    worker.until_held()
    worker.kill()
    with redis.Redis.from_url(world.servers.redis_url) as client:
        client.persist(f"lock:{{{RESOURCE}}}")


# What a refusal does.


def refused_before(world: World, point: str, change: Callable[[Orders], None]) -> None:
    """A is frozen, superseded, and woken."""
    world.refunds()
    a = world.worker("A", hold=Hold(point), batch=4, changes=(change,))
    a.until_held()
    a.freeze()
    world.recover()
    a.wake()
    a.join()


@without("the record of refusals", "I6")
def refusals_are_forgotten(world: World) -> None:
    refused_before(world, "before confirm", forget_refusals)


def forget_refusals(_: Orders) -> None:
    """Refusals are told and not kept."""

    async def forget(self: AsyncLedger, refusal: Refused) -> None:
        pass

    Ledger.record = lambda self, refusal: None  # type: ignore[method-assign]
    AsyncLedger.record = forget  # type: ignore[method-assign]


@without("the stop after a refusal", "I10")
def refusals_are_ignored(world: World) -> None:
    refused_before(world, "before confirm", go_on)


def go_on(_: Orders) -> None:
    """Neither a refusal nor a lost lease stops anything, thirty times."""
    ignored = itertools.count(1)

    def again(self: Settlement, why: object = None) -> None:
        if not isinstance(why, Refused | LeaseLost) or next(ignored) > 30:
            stop(self)

    stop = Settlement.stop
    Settlement.stop = again  # type: ignore[method-assign]
    WatchdogHold.lost = property(lambda self: None)  # type: ignore[method-assign, assignment]
    WatchdogHold.remaining = lambda self: 60.0  # type: ignore[method-assign]


# Lost replies and crashes.


@without("the claim's repetition by its holder", "I8")
def claims_are_not_repeated(world: World) -> None:
    world.refunds()
    holds = (Hold("before claim", world.rng.randint(1, 3)), Hold("lost claim"))
    worker = world.worker("A", hold=holds, through=("postgres",), changes=(forget_lost_claims,))
    worker.until_held()
    lose_answer(world, worker, committed=True)
    worker.go()
    worker.join()


def forget_lost_claims(_: Orders) -> None:
    """After a lost reply claim on, and don't take one's own claims again."""

    def in_doubt(self: Settlement) -> None:
        self._in_doubt = True

    Settlement.claim_in_doubt = in_doubt  # type: ignore[method-assign]


@without("commits that are durable before they are told", "I4")
def commits_are_lost(world: World) -> None:
    world.rows("create or replace function ledger.keep_commit() returns void language plpgsql as 'begin end;'")
    world.refunds()
    for _ in range(2):
        with world.ledger("ledger_worker", options="-c synchronous_commit=off") as ledger:
            world.tokens_by_hand += [ledger.draw_token(RESOURCE) for _ in range(3)]
            world.crash_postgres()
            world.until_postgres_answers()


@without("the idle limit", "I7")
def no_idle_limit(world: World) -> None:
    after_the_gate(world, "perform set_config('idle_in_transaction_session_timeout', '0', true)")
    world.rows(
        """
        create or replace function ledger.end_frozen_sessions(key bigint, space smallint, idle_ms integer)
        returns jsonb language sql as $$ select jsonb '[]' $$
        """
    )
    frozen(world, "between_statements")


# Writes past the functions.


def settled(world: World) -> None:
    world.refunds()
    world.worker("A").join()


def guards(world: World) -> list[str]:
    """The guard triggers of the refunds."""
    query = "select tgname from pg_trigger where tgenabled = 'A' and tgrelid = 'ledger.refund'::regclass"
    return [name for (name,) in world.rows(query)]


@without("ENABLE ALWAYS on the guard triggers", "I3")
def guards_are_off_on_a_replica(world: World) -> None:
    for trigger in guards(world):
        world.rows(f"alter table ledger.refund enable trigger {trigger}")
    settled(world)
    world.rows(
        "begin; set local session_replication_role = replica;"
        "update ledger.refund set fence = fence - 1 where fence > 0; commit"
    )


@without("the write guard", "I3", "I12")
def no_write_guard(world: World) -> None:
    for trigger in guards(world):
        world.rows(f"drop trigger {trigger} on ledger.refund")
    settled(world)
    world.rows("begin; set local role ledger_owner; update ledger.refund set state = 'failed'; commit")
