"""A large ledger is upgraded while a batch runs on it: no claim waits long, and the longest wait is told at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest

from ledger import schema
from ledger.client import Ledger
from tests.conftest import Connect
from tests.dba.linters import CHECKOUT
from tests.story import Connection, activated, added, in_background

pytestmark = pytest.mark.heavy

RESOURCE = "settle:m_7"

# What `ledger db sql` printed in the last release of each earlier revision: its functions are nowhere else any more.
RELEASES = CHECKOUT / "tests/dba/releases"

REFUNDS: LiteralString = """
    insert into ledger.refund (merchant_id, refund_id, amount_minor, added_at, changed_at, currency, idempotency_key)
    select 'm_' || n %% 100, 'r_' || n, 7025, now(), now(), 'EUR', n::text from generate_series(1, %s) as n
"""


def with_refunds() -> list[str]:
    """The revisions, in order, at which there are refunds to claim."""
    all_of_them = schema.revisions()
    first = next(
        n
        for n, revision in enumerate(all_of_them)
        if any("create table ledger.refund" in path.read_text() for path in schema.revision_files(revision))
    )
    return all_of_them[first:]


def test_each_earlier_revision_is_kept_as_its_last_release_printed_it() -> None:
    kept = {path.stem for path in RELEASES.glob("*.sql")}
    assert kept == set(with_refunds()[:-1]), "ledger db sql > tests/dba/releases/REVISION.sql, in that release"


def install(dsn: str, revision: str) -> None:
    if revision == schema.head():
        schema.upgrade(dsn)
    else:
        with psycopg.connect(dsn) as migrator:
            migrator.execute((RELEASES / f"{revision}.sql").read_bytes())


def bring_to_head(dsn: str, revision: str) -> bool:
    """The upgrade; of a ledger that is at head the part that ends every upgrade, three times."""
    if revision != schema.head():
        schema.upgrade(dsn)
        return True
    for _ in range(3):
        with psycopg.connect(dsn) as migrator:
            migrator.execute(schema.offline_sql(part="functions").encode())
    return True


@pytest.mark.parametrize("refunds", [1_000, 1_000_000])
@pytest.mark.parametrize("revision", with_refunds())
@pytest.mark.timeout(300)
def test_under_a_running_batch_no_claim_waits_for_two_seconds(
    revision: str, refunds: int, empty_dsn: str, connect: Connect, record_property: Callable[[str, object], None]
) -> None:
    install(empty_dsn, revision)
    admin, worker = (connect(empty_dsn, user=user) for user in ("postgres", "ledger_worker"))
    fill(admin, refunds)
    ledger = Ledger(worker)
    upgrading = in_background(lambda: bring_to_head(empty_dsn, revision))
    waits = claim_until(upgrading.done, ledger)

    assert upgrading.result()
    assert schema.current(admin) == schema.head()
    assert len(waits) > 10
    record_property("told", f"{revision} with {refunds:,} refunds upgraded: the longest claim took {max(waits):.3f} s")
    assert max(waits) < 2


def fill(admin: Connection, refunds: int) -> None:
    with admin.transaction():
        admin.execute("set local role ledger_fn")
        admin.execute(REFUNDS, [refunds])


def claim_until(done: Callable[[], bool], ledger: Ledger) -> list[float]:
    """Claim one refund after another; how long each took."""
    token, waits, cursor = activated(ledger, resource=RESOURCE), list[float](), ""
    while not (done() and len(waits) > 10):
        start = time.monotonic()
        claims = ledger.claim_refunds("m_7", token, 1, cursor)
        waits.append(time.monotonic() - start)
        if not claims:
            added(ledger, f"z_{len(waits):09}", merchant_id="m_7")
        cursor = claims[-1].refund_id if claims else cursor
    return waits
