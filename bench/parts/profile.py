"""Where the time of a claim goes: in the backend by function and statement, in the client by module."""

from __future__ import annotations

import cProfile
import pstats
from contextlib import ExitStack
from pathlib import Path

import psycopg

from bench.measuring import LINUX, Bench, cpu_seconds, measures
from bench.servers import activated, load, numbered
from ledger.client import Ledger

MERCHANT = "m_1"
CALLS = 1500
WARM = 100

SPENT = """
select funcname, self_time * 1000 / %(calls)s
from pg_stat_user_functions
where schemaname = 'ledger' and self_time * 1000 / %(calls)s >= 0.5
order by 2 desc
"""

# What the function does to its row, over and over, without the call around it.
STATEMENTS = {
    "read and lock the row": "perform from ledger.refund as r where r.merchant_id = m and r.refund_id = id "
    "for no key update",
    "update it": "update ledger.refund as r set state = 'sending', fence = 1, attempts = 1, "
    "first_claimed_at = now(), changed_at = now(), journal_number = 2 where r.merchant_id = m and r.refund_id = id",
    "insert the journal's entry": "insert into ledger.journal (merchant_id, refund_id, number, attempts, at, token, "
    "maybe_sent, from_state, to_state) values (m, id, 2, 1, now(), 1, false, 'pending', 'sending')",
}
LOOP = """
do $$
declare
    m text := '{merchant_id}';
    id text;
    begun timestamptz := clock_timestamp();
begin
    for id in select r.refund_id from ledger.refund as r where r.merchant_id = m loop
        {statement};
    end loop;
    perform set_config('bench.us', (extract(epoch from clock_timestamp() - begun) * 1e6)::text, false);
end;
$$
"""


@measures()
def backend(bench: Bench) -> None:
    """Of 1,500 calls of `claim_refund`, each committed by itself, with fsync off: the time in each function of ours
    (`track_functions`), and the backend's CPU beyond that, which is the protocol, the plan and the commit. Then each
    of the statements that `claim_refund` has for its row, run in a loop by itself, triggers and checks included.
    """
    refunds = numbered(0, WARM + CALLS)
    with ExitStack() as stack:
        database = stack.enter_context(bench.servers.fast.database())
        admin = stack.enter_context(psycopg.connect(database.admin, autocommit=True))
        admin.execute(f"alter role ledger_worker in database {database.name} set track_functions = 'all'")
        connection = stack.enter_context(psycopg.connect(database.worker, autocommit=True))
        ledger = Ledger(connection)
        load(ledger, MERCHANT, refunds)
        token = activated(ledger, MERCHANT)
        for refund_id in refunds[:WARM]:
            ledger.claim_refund(MERCHANT, refund_id, token)
        connection.execute("select pg_stat_force_next_flush()")
        admin.execute("select pg_stat_reset()")
        pid = connection.info.backend_pid
        before = cpu_seconds(pid) if LINUX else 0.0
        for refund_id in refunds[WARM:]:
            ledger.claim_refund(MERCHANT, refund_id, token)
        used = (cpu_seconds(pid) - before) * 1e6 / CALLS if LINUX else 0.0
        connection.execute("select pg_stat_force_next_flush()")
        spent = admin.execute(SPENT, {"calls": CALLS}).fetchall()
        for name, value in spent:
            bench.share("backend", name, value)
        if LINUX:
            bench.share("backend", "protocol, plan, commit", max(0.0, used - sum(value for _, value in spent)))
        _statements(bench, admin, ledger)


def _statements(bench: Bench, admin: psycopg.Connection, ledger: Ledger) -> None:
    load(ledger, "m_2", numbered(0, CALLS))
    with admin.transaction():
        admin.execute("set local role ledger_fn")
        for name, statement in STATEMENTS.items():
            admin.execute(LOOP.format(merchant_id="m_2", statement=statement))
            row = admin.execute("select current_setting('bench.us')::float").fetchone()
            assert row is not None
            bench.share("statements", name, row[0] / CALLS)


@measures()
def client(bench: Bench) -> None:
    """Of 1,500 claims through `Ledger`, the time in Python by module, as cProfile sees it: it makes calls dearer than
    they are, so the shares count and not the sum. What is spent waiting for the answer is `psycopg, waiting`.
    """
    refunds = numbered(0, WARM + CALLS)
    with (
        bench.servers.fast.database() as database,
        psycopg.connect(database.worker, autocommit=True) as connection,
    ):
        ledger = Ledger(connection)
        load(ledger, MERCHANT, refunds)
        token = activated(ledger, MERCHANT)
        for refund_id in refunds[:WARM]:
            ledger.claim_refund(MERCHANT, refund_id, token)
        profile = cProfile.Profile()
        with profile:
            for refund_id in refunds[WARM:]:
                ledger.claim_refund(MERCHANT, refund_id, token)
    spent: dict[str, float] = {}
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]  # it is there
        place = _place(file, name)
        spent[place] = spent.get(place, 0.0) + own * 1e6 / CALLS
    for place, value in sorted(spent.items(), key=lambda item: -item[1]):
        if value >= 0.5:
            bench.share("client", place, value)


def _place(file: str, name: str) -> str:
    path = Path(file)
    if path.parent.name == "ledger":
        return f"ledger.{path.stem}"
    if path.parent.name == "psycopg":
        return "psycopg, waiting" if name == "wait" else "psycopg"
    return "the interpreter's own"
