"""Whatever the planner knows, every function reads about as many rows as it works on: by the index, nothing to sort.

A sort, a join or a filter can't be larger than what was read for it: so counting the rows that a call reads bounds
them all. What reads more is listed, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import ALICE, MERCHANT, Connection, activated, as_ledger_fn, in_state
from tests.test_house_rules import CHECKOUT

WHO: dict[str, Any] = {"actor": "carol", "reason": "ticket 91"}
BATCH = 20
FEW = 100
"""More than a call for one row reads, and fewer than a large table has; a small one may be read whole."""
LONG_AGO = datetime.now(UTC) - timedelta(days=30)

BY_DESIGN = {
    "verify": "compares all that is written down twice",
    "recover_failover": "marks every open refund, after a failover",
    "archive_refunds": "walks a merchant's refunds in their order until it has found so many that may go",
    "prune_events": "walks the events from its cursor on until it has found so many that may go",
    "prune_work": "walks the work, once a year: an index by time would cost each attempt",
    "count_open": "counts a merchant's open refunds",
    "set_mode": "looks at the last day's would-be refusals",
    **dict.fromkeys(
        ("get_kind", "set_kind", "pause", "resume", "set_failover"), "reads kinds and pauses, of which there are few"
    ),
    **dict.fromkeys(
        ("protect_table", "unprotect_table", "exempt_transaction"), "reads the catalogue, and the few protected tables"
    ),
    **dict.fromkeys(("hold_job", "free_job", "job_holders"), "reads no table of ours, but locks"),
}


@dataclass
class World:
    """A merchant's ledger, and refunds to work on that nobody used before."""

    ledger: Ledger
    operators: Ledger
    admin: Connection
    token: int = 0
    used: int = field(default=0)

    def fresh(self, state: str) -> str:
        """A refund in a state, that sorts before all others."""
        self.used += 1
        refund_id = f"a_{self.used:04}"
        in_state(state, refund_id, self.token, self.ledger, self.admin)
        return refund_id

    def many(self, prefix: str, count: int, merchant_id: str = MERCHANT) -> list[str]:
        """Ids of refunds that are added, pending."""
        ids = [f"{prefix}_{self.used:04}_{number:06}" for number in range(count)]
        for start in range(0, count, 1000):
            some = ids[start : start + 1000]
            self.ledger.add_refunds(merchant_id, some, [1] * len(some), ["EUR"] * len(some))
        return ids


Call = Callable[[], object]
Prepare = Callable[[World], Call]
CASES: dict[str, tuple[int, Prepare]] = {}
"""By function: how many rows of the large tables a call may read, and how it is prepared and called."""


def case(name: str, rows: int = FEW) -> Callable[[Prepare], Prepare]:
    """Mark how one function is called."""

    def mark(prepare: Prepare) -> Prepare:
        CASES[name] = rows, prepare
        return prepare

    return mark


def settles(name: str, *arguments: Any) -> None:
    """A function that records what became of a claimed refund."""

    @case(name)
    def prepare(world: World) -> Call:
        refund_id = world.fresh("sending")
        return lambda: getattr(world.ledger, name)(MERCHANT, refund_id, world.token, *arguments)


def moves(name: str, state: str, *arguments: Any) -> None:
    """A function by which a person moves a refund."""

    @case(name)
    def prepare(world: World) -> Call:
        refund_id = world.fresh(state)
        return lambda: getattr(world.operators, name)(
            MERCHANT, refund_id, *arguments, **WHO, evidence={"not_at_gateway": True}
        )


settles("confirm_refund", "re_1")
settles("accept_refund", "re_1")
settles("fail_refund", "no such card")
settles("release_refund", "not sent")
settles("mark_unknown", "timeout")
moves("cancel_refund", "pending")
moves("review_refund", "pending")
moves("resolve_refund", "review", "failed")
moves("requeue_refund", "review")
moves("return_refund", "sent")


@case("add_refund")
def _add_refund(world: World) -> Call:
    world.used += 1
    return lambda: world.ledger.add_refund(MERCHANT, f"b_{world.used:04}", 1, "EUR")


@case("add_refunds", FEW + 4 * BATCH)
def _add_refunds(world: World) -> Call:
    world.used += 1
    return lambda: world.many("c", BATCH)


@case("claim_refund")
def _claim_refund(world: World) -> Call:
    refund_id = world.fresh("pending")
    return lambda: world.ledger.claim_refund(MERCHANT, refund_id, world.token)


@case("claim_refunds", FEW + 4 * BATCH)
def _claim_refunds(world: World) -> Call:
    world.used += 1
    world.many("d", BATCH)
    return lambda: world.ledger.claim_refunds(MERCHANT, world.token, BATCH, f"d_{world.used:04}")


@case("confirm_refunds", FEW + 6 * BATCH)
def _confirm_refunds(world: World) -> Call:
    world.used += 1
    world.many("e", BATCH)
    ids = [one.refund_id for one in world.ledger.claim_refunds(MERCHANT, world.token, BATCH, f"e_{world.used:04}")]
    return lambda: world.ledger.confirm_refunds(MERCHANT, world.token, ids, ids)


@case("draw_token")
def _draw_token(world: World) -> Call:
    return lambda: world.ledger.draw_token("job:other")


@case("activate_token")
def _activate_token(world: World) -> Call:
    token = world.ledger.draw_token("job:other")
    return lambda: world.ledger.activate_token("job:other", token, ALICE)


@case("break_lease")
def _break_lease(world: World) -> Call:
    return lambda: world.operators.break_lease("job:other", ALICE, **WHO)


@case("lock_job")
def _lock_job(world: World) -> Call:
    return lambda: world.ledger.lock_job("locked:1", ALICE)


@case("present_token")
def _present_token(world: World) -> Call:
    return lambda: world.ledger.present_token(f"settle:{MERCHANT}", world.token)


@case("present_tokens")
def _present_tokens(world: World) -> Call:
    return lambda: world.ledger.present_tokens({f"settle:{MERCHANT}": world.token})


@case("record_hold")
def _record_hold(world: World) -> Call:
    return lambda: world.ledger.record_hold(f"settle:{MERCHANT}", world.token, timedelta(seconds=1), 0, 0)


@case("record_refusal")
def _record_refusal(world: World) -> Call:
    return lambda: world.ledger.record_refusal("LG101", "refused", {"resource": f"settle:{MERCHANT}"})


@case("begin_attempt")
def _begin_attempt(world: World) -> Call:
    world.used += 1
    return lambda: world.ledger.begin_attempt(f"settle:{MERCHANT}", f"w_{world.used}", world.token)


@case("end_attempt")
def _end_attempt(world: World) -> Call:
    _begin_attempt(world)()
    return lambda: world.ledger.end_attempt(f"settle:{MERCHANT}", f"w_{world.used}", world.token, "done")


@case("requeue_work")
def _requeue_work(world: World) -> Call:
    _begin_attempt(world)()
    world.ledger.end_attempt(f"settle:{MERCHANT}", f"w_{world.used}", world.token, "review", "odd")
    return lambda: world.operators.requeue_work(f"settle:{MERCHANT}", f"w_{world.used}", **WHO)


def prunes(name: str) -> None:
    """A function that forgets what is old: here, nothing is."""

    @case(name, FEW + 4 * BATCH)
    def prepare(world: World) -> Call:
        return lambda: getattr(world.operators, name)(LONG_AGO, BATCH, **WHO)


for _name in ("prune_draws", "prune_refusals"):
    prunes(_name)


READ = """
select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint from pg_stat_xact_user_tables
where schemaname = 'ledger' and relname in (
    'refund', 'journal', 'event', 'draw', 'refusal', 'fence', 'work', 'archived_refund', 'archived_journal'
)
"""


@contextmanager
def reading(connections: list[Connection]) -> Any:
    """Rows of the large tables that the block's one transaction reads."""
    read = [0]
    for connection in connections:
        connection.execute("begin")
    before = [_read(connection) for connection in connections]
    yield read
    read[0] = sum(_read(connection) for connection in connections) - sum(before)
    for connection in connections:
        connection.execute("commit")


def _read(connection: Connection) -> int:
    ((rows,),) = connection.execute(READ).fetchall()
    return int(rows)


def too_many(world: World, connections: list[Connection]) -> dict[str, str]:
    """What reads more than it may, each function called once."""
    found = {}
    for name, (bound, prepare) in CASES.items():
        call = prepare(world)
        with reading(connections) as read:
            call()
        if read[0] > bound:
            found[name] = f"{read[0]} rows read, {bound} at most"
    return found


@pytest.fixture
def world(ledger: Ledger, operators: Ledger, admin: Connection) -> World:
    return World(ledger, operators, admin, activated(ledger))


@pytest.fixture
def connections(world: World) -> list[Connection]:
    both = [world.ledger.connection, world.operators.connection]
    return [one for one in both if isinstance(one, psycopg.Connection)]


def test_every_function_has_a_case_or_a_reason() -> None:
    files = {file.stem for file in (CHECKOUT / "sql/functions").glob("*.sql")}
    assert files == CASES.keys() | BY_DESIGN.keys()
    assert not CASES.keys() & BY_DESIGN.keys()


def test_on_empty_tables(world: World, connections: list[Connection]) -> None:
    assert too_many(world, connections) == {}


@pytest.mark.parametrize("analyzed", [False, True])
def test_on_tables_that_nobody_or_somebody_analyzed(
    analyzed: bool, world: World, connections: list[Connection]
) -> None:
    world.many("z", 3000)
    if analyzed:
        world.admin.execute("analyze")
    assert too_many(world, connections) == {}


def test_with_statistics_of_when_the_tables_were_small(
    world: World, connections: list[Connection], connect: Connect, operator_dsn: str
) -> None:
    too_many(world, connections)
    world.admin.execute("analyze")
    world.many("z", 3000)
    theirs = [connect(), connect(operator_dsn)]
    anew = dataclasses.replace(world, ledger=Ledger(theirs[0]), operators=Ledger(theirs[1]))
    assert too_many(anew, theirs) == {}


def test_by_sessions_that_made_their_plans_when_the_tables_were_small(
    world: World, connections: list[Connection]
) -> None:
    """A plan that is kept is made anew after the next analyze: until then it must do for what has been added."""
    too_many(world, connections)
    world.admin.execute("vacuum analyze")
    for _ in range(6):  # from the sixth call on a plan is kept
        assert too_many(world, connections) == {}
    world.many("z", 3000)
    assert too_many(world, connections) == {}


A_MILLION = """
insert into ledger.refund (
    merchant_id, refund_id, amount_minor, currency, idempotency_key, added_at, changed_at, state, fence, attempts,
    journal_number, first_claimed_at, settled_at, gateway_ref
)
select
    'm_' || n % 100, 'y_' || n, 1, 'EUR', 'm_' || n % 100 || '/y_' || n, now(), now(), 'sent', 1, 1, 3, now(), now(),
    're_' || n
from generate_series(1, 1000000) as n;
insert into ledger.journal (
    merchant_id, refund_id, number, attempts, at, token, maybe_sent, from_state, to_state, amount_minor, currency,
    debit, credit
)
select
    'm_' || n % 100, 'y_' || n, 3, 1, now(), 1, false, 'sending', 'sent', 1, 'EUR',
    'refund_reserved', 'gateway_clearing'
from generate_series(1, 1000000) as n;
insert into ledger.event (event, kind, resource, token, holder)
select 'activated', 'job', 'job:' || n % 1000, n, 'h/1/aaaaaaaaaaaaaaaa' from generate_series(1, 100000) as n;
insert into ledger.refusal (code, merchant_id, refund_id, resource)
select 'LG101', 'm_1', 'y_' || n, 'settle:m_1' from generate_series(1, 100000) as n;
insert into ledger.work (resource, work_id) select 'settle:m_1', 'v_' || n from generate_series(1, 100000) as n;
insert into ledger.fence
select (jsonb_populate_record(s, jsonb_build_object('resource', 'job:many_' || n))).*
from (select f from ledger.fence as f limit 1) as one (s)
cross join generate_series(1, 10000) as n;
"""


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_among_a_million_refunds(
    world: World, connections: list[Connection], connect: Connect, operator_dsn: str
) -> None:
    """Nearly all of them sent: without statistics, and with them."""
    as_ledger_fn(world.admin, A_MILLION)
    world.many("z", 3000)
    assert too_many(world, connections) == {}
    world.admin.execute("vacuum analyze")
    theirs = [connect(), connect(operator_dsn)]
    anew = dataclasses.replace(world, ledger=Ledger(theirs[0]), operators=Ledger(theirs[1]))
    assert too_many(anew, theirs) == {}
