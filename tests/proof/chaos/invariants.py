"""What must hold after every run: I1 to I12, judged by the gateway's log, the journal, the catalogue and the workers.

Each function says what is wrong, a sentence a fault; nothing where all is well.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import redis

from ledger.client import Ledger
from ledger.doctor import examine
from tests.proof.chaos.crew import Said, Worker
from tests.proof.chaos.world import World

OUTCOMES = {"ok", "lost", "55P03", "40001", "25P03", "25P04", "53100"}
GROUP_1 = "LG10"


def i1_money_moves_once(world: World) -> Iterator[str]:
    """For every refund the gateway moved money at most once."""
    for (_, refund_id), count in world.movements.refunds_moved_twice.items():
        yield f"money moved {count} times for {refund_id}"


def i2_the_record_is_the_gateways(world: World) -> Iterator[str]:
    """Sent: moved once, under that reference, with that amount. Failed, cancelled: never moved."""
    moved = {movement.refund_id: movement for movement in world.movements}
    for refund_id, state, amount, currency, ref in world.rows(
        "select refund_id, state, amount_minor, currency, gateway_ref from ledger.refund"
    ):
        movement = moved.get(refund_id)
        if state in ("failed", "cancelled", "pending") and movement is not None:
            yield f"{refund_id} is {state}, and the gateway moved {movement.amount_minor} {movement.currency}"
        if state != "sent":
            continue
        if movement is None:
            yield f"{refund_id} is sent, and the gateway never moved its money"
        elif (movement.amount_minor, movement.currency, movement.ref) != (amount, currency, ref):
            yield f"{refund_id} is sent as {amount} {currency} under {ref}; the gateway has {movement}"


def i3_the_journal_is_whole(world: World) -> Iterator[str]:
    """Entries 1 to n without a gap, each begins where the last ended, tokens never fall, the last one is the row."""
    for row in world.rows(
        """
        select refund_id, number, from_state, before_state, token, before_token
        from (
            select j.*, lag(j.number) over w as before_number, lag(j.to_state) over w as before_state,
                max(j.token) over (w rows between unbounded preceding and 1 preceding) as before_token
            from ledger.journal as j
            window w as (partition by j.merchant_id, j.refund_id order by j.number)
        ) as e
        where number <> coalesce(before_number, 0) + 1 or from_state is distinct from before_state
            or token < before_token
        """
    ):
        yield f"entry {row[1]} of {row[0]}: from {row[2]} after {row[3]}, token {row[4]} after {row[5]}"
    for refund_id, state, fence, last_state, last_token in world.rows(
        """
        select r.refund_id, r.state, r.fence, e.to_state, e.token
        from ledger.refund as r
        left join lateral (
            select (array_agg(j.to_state order by j.number desc))[1] as to_state, max(j.token) as token
            from ledger.journal as j
            where j.merchant_id = r.merchant_id and j.refund_id = r.refund_id
        ) as e on true
        where r.state is distinct from e.to_state or r.fence <> coalesce(e.token, 0)
        """
    ):
        yield f"{refund_id} is {state} under {fence}, its last entry says {last_state} under {last_token}"
    with psycopg.connect(world.dsn("ledger_reader"), autocommit=True) as connection:
        for finding in Ledger(connection).verify():
            yield f"verify: {finding.check}: {finding.finding}"


def i4_tokens_are_fenced_and_single(world: World) -> Iterator[str]:
    """Nothing is written under a token after a newer one was activated; no token is handed out twice."""
    for refund_id, state, token, newer in world.rows(
        """
        select j.refund_id, j.to_state, j.token, e.token
        from ledger.journal as j
        join lateral (
            select e.token from ledger.event as e
            where e.resource = 'settle:' || j.merchant_id and e.event = 'activated' and e.at < j.at
            order by e.event_id desc limit 1
        ) as e on e.token <> j.token
        where j.token is not null
        """
    ):
        yield f"{refund_id} became {state} under {token} when {newer} was active already"
    drawn = Counter(
        said.facts["value"]
        for worker in world.workers
        for said in worker.calls("draw_token")
        if said.facts["outcome"] == "ok"
    )
    drawn.update(world.tokens_by_hand)
    for token, count in drawn.items():
        if count > 1:
            yield f"token {token} was handed out {count} times"


def i5_who_confirms_has_claimed(world: World) -> Iterator[str]:
    """Each sending that became sent did so under the token of the last claim."""
    for refund_id, token, claimed in world.rows(
        """
        select j.refund_id, j.token, c.token
        from ledger.journal as j
        cross join lateral (
            select c.token from ledger.journal as c
            where c.merchant_id = j.merchant_id and c.refund_id = j.refund_id and c.number < j.number
                and c.to_state = 'sending'
            order by c.number desc limit 1
        ) as c
        where j.from_state = 'sending' and j.to_state = 'sent' and j.token is distinct from c.token
        """
    ):
        yield f"{refund_id} was claimed under {claimed} and confirmed under {token}"


def i6_refusals_are_kept(world: World) -> Iterator[str]:
    """Every refusal that a worker was told is on record, unless Postgres or the way to it failed in the run."""
    seen = world.refusals_seen()
    kept = {number for (number,) in world.rows("select number from ledger.refusal")}
    if not world.postgres_failed:
        for number in sorted(seen.keys() - kept):
            yield f"refusal {number}, {seen[number]}, isn't on record"
    for number, token, active in world.rows(
        "select number, token, active from ledger.refusal"
        " where code = 'LG101' and reason = 'superseded' and token >= active"
    ):
        yield f"refusal {number} calls token {token} superseded by {active}"


def i7_a_fresh_worker_ends_everything(world: World) -> Iterator[str]:
    """Within the lease and five seconds; measured when the faults were over."""
    for refund_id, state in world.rows(
        "select refund_id, state from ledger.refund where state in ('pending', 'sending', 'unknown')"
    ):
        yield f"{refund_id} is still {state}"


def i8_what_is_unknown_is_asked_about(world: World) -> Iterator[str]:
    """A call is answered, refused or in doubt; what is in doubt is asked about before it is sent, and never left."""
    for worker in world.workers:
        for said in worker.said:
            outcome = str(said.facts["outcome"]) if said.what == "call" else "ok"
            if outcome not in OUTCOMES and outcome[:2] != "LG":
                yield f"worker {worker.name} got {outcome} from {said.facts['name']}: {said.facts['text']}"
            if said.what == "broke":
                yield f"worker {worker.name} broke: {said.facts['text']}"
            if (
                said.what == "ended"
                and said.facts["left_claimed"]
                and not (said.facts["lost"] or said.facts["refusal"])
            ):
                yield f"worker {worker.name} left {said.facts['left_claimed']} refunds claimed without an answer"
        yield from _sent_without_asking(worker)


def _sent_without_asking(worker: Worker) -> Iterator[str]:
    first, asked = set[str](), set[str]()
    for said in worker.said:
        refund_id = said.facts.get("refund_id", "")
        if said.what == "begins":
            asked.discard(refund_id)
            (first.add if said.facts["outcome"] == "claimed" else first.discard)(refund_id)
        elif said.what == "found" and said.facts["answer"] == "Nothing":
            asked.add(refund_id)
        elif said.what == "sends":
            if refund_id not in first | asked:
                yield f"worker {worker.name} sent {refund_id} without asking the gateway about it"
            first.discard(refund_id)
            asked.discard(refund_id)


def i9_the_sums_agree(world: World) -> Iterator[str]:
    """What is recorded as sent is what the gateway moved, but for what waits for a person or came back."""
    sent = Counter[str]()
    for currency, amount in world.rows(
        "select currency, amount_minor from ledger.refund where state in ('sent', 'returned')"
    ):
        sent[currency] += amount
    waiting = {refund_id for (refund_id,) in world.rows("select refund_id from ledger.refund where state = 'review'")}
    moved = Counter[str]()
    for movement in world.movements:
        if movement.refund_id not in waiting:
            moved[movement.currency] += movement.amount_minor
    if sent != moved:
        yield f"sent {dict(sent)}, moved {dict(moved)}"


def i10_who_was_refused_begins_nothing(world: World) -> Iterator[str]:
    """After a refusal of group 1 a worker claims and begins nothing; only what was under way reaches the gateway."""
    for worker in world.workers:
        refused: Said | None = None
        under_way = 0
        for said in worker.said:
            if said.what == "call" and said.facts["name"] == "draw_token":
                refused = None  # a new attempt
            elif refused is None and _refuses_the_holder(said):
                refused, under_way = said, worker.orders.options.in_flight
            elif refused is not None and said.what in ("begins", "sends", "call"):
                under_way -= said.what == "sends"
                if said.what == "begins" or under_way < 0 or str(said.facts.get("name")).startswith("claim_"):
                    does = "calls claim" if said.what == "call" else f"{said.what} {said.facts['refund_id']}"
                    yield f"worker {worker.name} {does} after it was refused with {refused.facts['outcome']}"


def _refuses_the_holder(said: Said) -> bool:
    if said.what != "call" or said.facts["name"] == "activate_token" or said.facts["token"] is None:
        return False
    return str(said.facts["outcome"]).startswith(GROUP_1)


def i11_nothing_is_left_behind(world: World) -> Iterator[str]:
    """No lease without an end, no open transaction, no lock."""
    with redis.Redis.from_url(world.redis_url, decode_responses=True) as client:
        for key in client.scan_iter("lock:*"):
            if client.pttl(key) == -1:
                yield f"{key} never ends"
    left = _settled(
        world,
        """
        select a.pid, a.state, a.query from pg_stat_activity as a
        where a.datname = current_database() and a.state like 'idle in transaction%'
        union all
        select l.pid, 'holds an advisory lock', null from pg_locks as l
        where l.locktype = 'advisory' and l.database = (select oid from pg_database where datname = current_database())
        """,
    )
    for pid, state, query in left:
        yield f"session {pid} is {state}: {query}"


def i12_the_catalogue_is_the_release(world: World) -> Iterator[str]:
    """Owners, grants, bodies and triggers are what the release makes them."""
    with psycopg.connect(world.dsn("postgres"), autocommit=True) as connection:
        for found in examine(connection):
            if found.check in ("drift", "public_grants"):
                yield f"{found.check}: {found.finding}"


def _settled(world: World, query: str) -> list[tuple[Any, ...]]:
    """What is there once sessions that are ending have ended."""
    deadline = time.monotonic() + 3
    while (rows := world.rows(query)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return rows


Invariant = Callable[[World], Iterator[str]]

INVARIANTS: dict[str, Invariant] = {
    "I1": i1_money_moves_once,
    "I2": i2_the_record_is_the_gateways,
    "I3": i3_the_journal_is_whole,
    "I4": i4_tokens_are_fenced_and_single,
    "I5": i5_who_confirms_has_claimed,
    "I6": i6_refusals_are_kept,
    "I7": i7_a_fresh_worker_ends_everything,
    "I8": i8_what_is_unknown_is_asked_about,
    "I9": i9_the_sums_agree,
    "I10": i10_who_was_refused_begins_nothing,
    "I11": i11_nothing_is_left_behind,
    "I12": i12_the_catalogue_is_the_release,
}


def breaches(world: World, without: tuple[str, ...] = ()) -> list[str]:
    """What is broken, each with its invariant's name in front."""
    found = [breach for breach in world.breaches if breach.split(":")[0] not in without]
    for name, invariant in INVARIANTS.items():
        if name not in without:
            found += [f"{name}: {fault}" for fault in invariant(world)]
    return found
