"""What a million cycles leave behind: `python -m tests.dba.bloat`, and `--single` for one refund a call.

A cycle is a refund added, claimed and confirmed, each step committed. Servers are temporary, without fsync: sizes
repeat, times don't. Refunds are added in sets, one merchant's, and are finished as they come.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from ledger import dev, schema
from ledger.client import Ledger

SET = 1000
MERCHANT, HOLDER = "m_4471", "bloat/1/0123456789abcdef"

# Chunks, for a statement that never ends would tell autovacuum nothing.
SINGLE = """
do $$
declare
    merchant text := '{merchant}';
    claim ledger.claim;
    seen text := '{after}';
begin
    for n in 1..{cycles} loop
        select * into strict claim from ledger.claim_refunds(merchant, {token}, 1, seen);
        commit;
        perform ledger.confirm_refund(merchant, claim.refund_id, {token}, 're_' || claim.refund_id);
        commit;
        seen := claim.refund_id;
    end loop;
end;
$$
"""

SIZES = """
select c.relname, c.relkind::text, pg_relation_size(c.oid), s.n_dead_tup, s.n_tup_upd, s.n_tup_hot_upd,
    s.autovacuum_count
from pg_class as c
left join pg_stat_user_tables as s on s.relid = c.oid
where c.relnamespace = 'ledger'::regnamespace and c.relkind in ('r', 'i') and pg_relation_size(c.oid) > 1048576
order by c.relname
"""


def main() -> int:
    """Run the cycles and print what they left."""
    parser = argparse.ArgumentParser(prog="python -m tests.dba.bloat", description=__doc__)
    parser.add_argument("--cycles", type=int, default=1_000_000, help="how many; default 1,000,000")
    parser.add_argument("--single", action="store_true", help="claim and confirm one refund a call, in place of 1,000")
    parser.add_argument("--naptime", default="10s", help="autovacuum_naptime; default 10s")
    parser.add_argument("--pg", default="18", help="major version of Postgres")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    options = parser.parse_args()

    settings = {"autovacuum_naptime": options.naptime, "max_wal_size": "1GB"}
    with dev.temporary(options.pg, settings=settings) as servers:
        servers.prepare()
        schema.upgrade(servers.dsn())
        with psycopg.connect(servers.dsn("ledger_worker"), autocommit=True) as connection:
            start = time.monotonic()
            run(Ledger(connection), connection, options.cycles, single=options.single)
            seconds = time.monotonic() - start
        with psycopg.connect(servers.dsn("postgres"), autocommit=True) as admin:
            found = sizes(admin)
    table(found, options.cycles, seconds)
    if options.json:
        facts = {"cycles": options.cycles, "single": options.single, "seconds": round(seconds, 1), "left": found}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def run(ledger: Ledger, connection: psycopg.Connection[Any], cycles: int, *, single: bool) -> None:
    """All of the cycles, a set at a time."""
    resource = f"settle:{MERCHANT}"
    token = ledger.draw_token(resource)
    ledger.activate_token(resource, token, HOLDER)
    last = ""
    for ids in sets(cycles):
        ledger.add_refunds(
            MERCHANT, ids, [7025] * len(ids), ["EUR"] * len(ids), [f"pay_{name}_0123456789abcdef" for name in ids]
        )
        if single:
            connection.execute(SINGLE.format(merchant=MERCHANT, token=token, after=last, cycles=len(ids)).encode())
        else:
            ledger.claim_refunds(MERCHANT, token, len(ids), last)
            ledger.confirm_refunds(MERCHANT, token, ids, [f"re_{name}" for name in ids])
        last = ids[-1]
        if int(last[1:]) % 100_000 == 0:
            sys.stderr.write(f"{int(last[1:]):>10,}\n")


def sets(cycles: int) -> Iterator[list[str]]:
    """The refunds' ids, in order."""
    for first in range(1, cycles + 1, SET):
        yield [f"r{n:07}" for n in range(first, min(first + SET, cycles + 1))]


def sizes(admin: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """Tables and indexes of more than a megabyte; dead rows and updates of tables."""
    names = ("name", "what", "bytes", "dead", "updates", "hot", "vacuums")
    rows = admin.execute(SIZES.encode()).fetchall()
    return [dict(zip(names, row, strict=True)) for row in rows]


def table(found: list[dict[str, Any]], cycles: int, seconds: float) -> None:
    """Print it for people."""
    heads = f"{'MB':>9}{'bytes each':>12}{'dead':>10}{'updates':>11}{'of them HOT':>13}{'vacuums':>9}"
    sys.stdout.write(f"{cycles:,} cycles in {seconds:.0f} s\n\n{'':<24}{heads}\n")
    for one in found:
        counts = [one[name] for name in ("dead", "updates", "hot", "vacuums")] if one["what"] == "r" else [""] * 4
        sys.stdout.write(
            f"{one['name']:<24}{one['bytes'] / 1e6:>9.1f}{one['bytes'] / cycles:>12.0f}"
            + "".join(f"{count:>{width}}" for count, width in zip(counts, (10, 11, 13, 9), strict=True))
            + "\n"
        )


if __name__ == "__main__":
    sys.exit(main())
