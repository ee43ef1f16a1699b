"""Tables that this project didn't make, owned by the worker who writes to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.client import Ledger
from tests.story import Connection


@pytest.fixture
def owner(connection: Connection, admin: Connection) -> Connection:
    """The worker, who may make tables and owns what it makes."""
    admin.execute("grant create on schema public to ledger_worker")
    return connection


@pytest.fixture
def charge(owner: Connection, ledger: Ledger) -> Iterator[str]:
    """Each row is guarded by charges:<org_id>. Rows 1 and 3 are org_1's, 2 is org_2's."""
    owner.execute("create table charge (id integer primary key, org_id text, amount integer default 0)")
    owner.execute("insert into charge values (1, 'org_1'), (2, 'org_2'), (3, 'org_1')")
    ledger.protect_table("charge", kind="charges", column_name="org_id")
    yield "charge"
    assert ledger.verify() == []


@pytest.fixture
def report(owner: Connection, ledger: Ledger) -> Iterator[str]:
    """Every row is guarded by report:daily."""
    owner.execute("create table report (id integer primary key, line text)")
    owner.execute("insert into report values (1, 'one'), (2, 'two')")
    ledger.protect_table("report", resource="report:daily")
    yield "report"
    assert ledger.verify() == []
