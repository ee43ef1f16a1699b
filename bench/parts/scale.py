"""Claims in a large table, and claims while an old snapshot keeps what is dead."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import psycopg

from bench.measuring import Bench, interleaved, measures, median, over, seconds
from bench.servers import Database, activated, load, numbered
from ledger.client import Ledger

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
MERCHANT = "m_500"
OPEN = 2500
CALLS = 250
BATCH = 100
HELD = 100_000

# As the functions leave a refund that went straight through. Indexes are built afterwards, which is quicker.
FILL = """
insert into ledger.refund (
    merchant_id, refund_id, amount_minor, fence, added_at, first_claimed_at, changed_at, settled_at, attempts,
    journal_number, state, currency, idempotency_key, payment_ref, gateway_ref
)
select
    i.merchant_id, i.refund_id, 7025, 1, now(), now(), now(), now(), 1, 3, 'sent', 'EUR',
    i.merchant_id || '/' || i.refund_id, 'pay_' || i.refund_id, 're_' || i.refund_id
from (
    select 'm_' || lpad(mod(n, 1000)::text, 3, '0') as merchant_id, 's_' || lpad(n::text, 8, '0') as refund_id
    from generate_series(1, %(count)s) as n
) as i
"""
KEYS = {
    "refund_pkey": "primary key (merchant_id, refund_id)",
    "idempotency_key_is_used_once": "unique (idempotency_key)",
}
TRIGGERS = "select tgname from pg_trigger where tgrelid = 'ledger.refund'::regclass and not tgisinternal"
INDEX = "create index refund_open on ledger.refund (merchant_id, refund_id) where settled_at is null"


def fill(database: Database, count: int) -> None:
    """So many refunds of a thousand merchants, all sent."""
    with psycopg.connect(database.admin, autocommit=True) as admin:
        admin.execute("alter table ledger.refund set (autovacuum_enabled = off)")
        admin.execute("set maintenance_work_mem = '512MB'")
        with admin.transaction():
            admin.execute("alter table ledger.refund disable trigger user")
            admin.execute("truncate ledger.refund")  # made in this transaction, its rows need no WAL
            for name in KEYS:
                admin.execute(f"alter table ledger.refund drop constraint {name}")
            admin.execute("drop index ledger.refund_open")
            admin.execute(FILL, {"count": count})
            for name, key in KEYS.items():
                admin.execute(f"alter table ledger.refund add constraint {name} {key}")
            admin.execute(INDEX)
            for (name,) in admin.execute(TRIGGERS).fetchall():
                admin.execute(f"alter table ledger.refund enable always trigger {name}")
        admin.execute("vacuum (analyze) ledger.refund")


class Claims:
    """A worker of one merchant's open refunds, in a table of some size."""

    def __init__(self, connection: psycopg.Connection, refund_ids: list[str]) -> None:
        self._ledger = Ledger(connection)
        self._token = activated(self._ledger, MERCHANT)
        load(self._ledger, MERCHANT, refund_ids)
        random.shuffle(refund_ids)
        self._ids = iter(refund_ids)

    def run(self) -> float:
        """The median seconds of a claim."""
        return median([seconds(partial(self._claim, refund_id)) for refund_id in itertools.islice(self._ids, CALLS)])

    def _claim(self, refund_id: str) -> None:
        self._ledger.claim_refund(MERCHANT, refund_id, self._token)


@measures("scale_10m")
def size(bench: Bench) -> None:
    """The median time of `claim_refund` in a table of 10,000,000 refunds of 1,000 merchants, nearly all of them
    sent, over that in one of 10,000; both are loaded in the same server (fsync off, on a disk, 512 MB of shared
    buffers) and take turns of 250 claims. The claimed refunds are one merchant's open ones, in random order.
    The tables are loaded by one INSERT, with the indexes built afterwards, and vacuumed.
    """
    count = OPEN + (bench.rounds + 1) * CALLS
    with ExitStack() as stack:
        claims = {}
        for rows in SIZES:
            database = stack.enter_context(bench.servers.large.database())
            fill(database, rows - count)
            connection = stack.enter_context(psycopg.connect(database.worker, autocommit=True))
            claims[f"{rows}"] = Claims(connection, numbered(0, count))
        for worker in claims.values():
            worker.run()
        found = interleaved(bench.rounds, {rows: worker.run for rows, worker in claims.items()})
    bench.record("scale_10m", over(found[f"{SIZES[-1]}"], found[f"{SIZES[0]}"]))
    for rows in SIZES:
        bench.point("size", "one claim", rows, median(found[f"{rows}"]) * 1e6)


@contextmanager
def old_snapshot(dsn: str) -> Iterator[None]:
    """A transaction that still sees how everything was."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from ledger.refund")
        yield


@measures("scale_held_snapshot")
def snapshot(bench: Bench) -> None:
    """100,000 refunds claimed and confirmed by hundreds, while a transaction holds a snapshot from before, so that
    no dead row and no dead index entry can be removed: the median time of a claim of a hundred in the last fifth,
    over that in the first. The cursor is what keeps it flat. Autovacuum is as shipped.
    """
    ratios = []
    for _ in range(bench.rounds):
        with bench.servers.fast.database() as database, psycopg.connect(database.worker, autocommit=True) as connection:
            ledger = Ledger(connection)
            load(ledger, MERCHANT, numbered(0, HELD))
            token = activated(ledger, MERCHANT)
            with old_snapshot(database.admin):
                times = _claim_all(ledger, token)
        fifth = len(times) // 5
        ratios.append(median(times[-fifth:]) / median(times[:fifth]))
    bench.record("scale_held_snapshot", ratios)


def _claim_all(ledger: Ledger, token: int) -> list[float]:
    """The time of each claim."""
    times: list[float] = []
    after = ""

    def claim() -> None:
        nonlocal ids
        ids = [one.refund_id for one in ledger.claim_refunds(MERCHANT, token, BATCH, after)]

    ids: list[str] = []
    while True:
        spent = seconds(claim)
        if not ids:
            return times
        times.append(spent)
        ledger.confirm_refunds(MERCHANT, token, ids, ids)
        after = ids[-1]
