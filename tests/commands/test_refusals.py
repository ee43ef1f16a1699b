"""`ledger refusals`: what was refused, filtered and counted."""

from __future__ import annotations

import csv
import io
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.errors import LedgerError
from tests.commands.conftest import Cli
from tests.conftest import Connect
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, activated, added

WHY = {"actor": "carol", "reason": "roll-out"}


@pytest.fixture(autouse=True)
def refused(
    connect: Connect, dsn: str, migrator_dsn: str, ledger: Ledger, operators: Ledger, admin: psycopg.Connection[Any]
) -> None:
    """A stale confirm, an unknown refund, and two writes that shadow let through; the first two a day old."""
    owner = connect(migrator_dsn)
    owner.execute("create table charge (org_id text not null)")
    owner.execute("grant select, insert on charge to ledger_worker")
    owner.execute("select ledger.protect_table('charge', kind => 'charges', column_name => 'org_id')")
    operators.set_mode("charges", "shadow", **WHY)

    recorded = Ledger(connect(), refusals=connect())
    stale = activated(ledger)
    added(ledger, "r_1")
    active = activated(ledger, BOB)
    for call in (
        lambda: recorded.claim_refund(MERCHANT, "r_1", stale),
        lambda: recorded.claim_refund(MERCHANT, "r_2", active),
    ):
        with pytest.raises(LedgerError):
            call()
    admin.execute("alter table ledger.refusal disable trigger refusal_is_guarded")
    admin.execute("update ledger.refusal set at = at - interval '1 day'")
    admin.execute("alter table ledger.refusal enable always trigger refusal_is_guarded")

    intruder = connect(dsn, application_name="billing-cron")
    intruder.execute("insert into charge values ('org_7')")
    intruder.execute("insert into charge values ('org_8')")


def codes(cli: Cli, *filters: object) -> list[str]:
    return [row["code"] for row in cli("refusals", *filters, "-o", "json").json]


def test_the_newest_comes_first(cli: Cli) -> None:
    assert codes(cli) == ["LG103", "LG103", "LG201", "LG101"]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (("--kind", "charges"), ["LG103", "LG103"]),
        (("--code", "LG201"), ["LG201"]),
        (("--merchant", MERCHANT), ["LG201", "LG101"]),
        (("--merchant", MERCHANT, "--code", "LG101"), ["LG101"]),
        (("--since", "1h"), ["LG103", "LG103"]),
        (("--since", "48h"), ["LG103", "LG103", "LG201", "LG101"]),
        (("--mode", "shadow"), ["LG103", "LG103"]),
        (("--mode", "enforce"), ["LG201", "LG101"]),
        (("--limit", "1"), ["LG103"]),
        (("--kind", "nothing"), []),
    ],
    ids=" ".join,
)
def test_filters(cli: Cli, filters: tuple[str, ...], found: list[str]) -> None:
    assert codes(cli, *filters) == found


def test_a_refusal_tells_who_it_was_and_who_was_in_front(cli: Cli, ledger: Ledger) -> None:
    (stale,) = cli("refusals", "--code", "LG101", "-o", "json").json
    assert (stale["resource"], stale["holder"], stale["active_holder"]) == (RESOURCE, ALICE, BOB)
    assert stale["token"] < stale["active"]
    assert (stale["reason"], stale["user"], stale["function"]) == ("superseded", "ledger_worker", "claim_refund")
    assert stale["detail"]["refund_id"] == "r_1"


def test_totals_are_by_kind_reason_and_intruder(cli: Cli) -> None:
    totals = cli("refusals", "--totals", "-o", "json").json
    assert next((one["refusals"], one["kind"], one["code"], one["application"]) for one in totals) == (
        2, "charges", "LG103", "billing-cron",
    )  # fmt: skip
    assert totals[0]["resources"] == 2
    assert {(one["refusals"], one["code"]) for one in totals[1:]} == {(1, "LG101"), (1, "LG201")}


def test_a_person_sees_a_table(cli: Cli) -> None:
    said = cli("refusals", "--mode", "shadow")
    assert said.code == 0
    assert "billing-cron" in said.out
    assert "insert into charge values ('org_7')" in said.out


def test_csv_has_its_columns_named(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("refusals", "-o", "csv").out)))
    assert [row["code"] for row in rows] == ["LG103", "LG103", "LG201", "LG101"]


def test_a_limit_that_was_reached_is_said(cli: Cli) -> None:
    assert "the newest 2; --limit shows more" in cli("refusals", "--limit", "2").err
    assert "--limit" not in cli("refusals").err


def test_where_nothing_was_refused_it_says_so(cli: Cli) -> None:
    said = cli("refusals", "--kind", "nothing")
    assert (said.code, said.out) == (0, "")
    assert "no refusals" in said.err


def test_a_reader_may_look(cli: Cli, reader_dsn: str) -> None:
    assert cli("refusals", "--dsn", reader_dsn).code == 0
