"""`ledger mode`: from off over shadow to enforce, and what stands in the way."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.commands.conftest import Cli
from tests.conftest import Connect
from tests.story import raised

WHY = ("--actor", "carol", "--reason", "roll-out")
WRITE = "insert into charge (org_id) values ('org_7')"


@pytest.fixture(autouse=True)
def charge(connect: Connect, migrator_dsn: str) -> None:
    """A protected table, whose kind is still off."""
    owner = connect(migrator_dsn)
    owner.execute("create table charge (org_id text not null)")
    owner.execute("grant select, insert on charge to ledger_worker")
    with owner.transaction():
        owner.execute("select ledger.set_mode('charges', 'off', 'carol', 'not yet')")
        owner.execute("select ledger.protect_table('charge', kind => 'charges', column_name => 'org_id')")


def test_a_kind_goes_from_off_over_shadow_to_enforce(
    cli: Cli, connection: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    connection.execute(WRITE)
    assert cli("mode", "set", "charges", "shadow", *WHY).code == 0
    assert cli("mode", "set", "charges", "enforce", *WHY, "-o", "json").json[0]["mode"] == "enforce"
    with raised("LG103"):
        connection.execute(WRITE)
    assert admin.execute(
        "select actor, reason, detail ->> 'before', detail ->> 'after' from ledger.event"
        " where event = 'mode_set' and kind = 'charges' order by event_id offset 1"
    ).fetchall() == [("carol", "roll-out", "off", "shadow"), ("carol", "roll-out", "shadow", "enforce")]


def test_the_list_shows_tables_would_be_refusals_and_who_set_it(cli: Cli, connection: psycopg.Connection[Any]) -> None:
    cli("mode", "set", "charges", "shadow", *WHY)
    connection.execute(WRITE)
    (kind,) = cli("mode", "list", "-o", "json").json
    assert {name: kind[name] for name in ("kind", "mode", "tables", "would_be_refusals", "actor", "reason")} == {
        "kind": "charges",
        "mode": "shadow",
        "tables": ["charge"],
        "would_be_refusals": 1,
        "actor": "carol",
        "reason": "roll-out",
    }


def test_writes_that_would_have_been_refused_stand_in_the_way_and_are_shown(
    cli: Cli, dsn: str, connect: Connect, admin: psycopg.Connection[Any]
) -> None:
    cli("mode", "set", "charges", "shadow", *WHY)
    intruder = connect(dsn, application_name="billing-cron")
    for _ in range(3):
        intruder.execute(WRITE)

    said = cli("mode", "set", "charges", "enforce", *WHY, "-o", "json")

    assert said.code == 2
    (in_the_way,) = said.json
    assert (in_the_way["refusals"], in_the_way["code"], in_the_way["application"]) == (3, "LG103", "billing-cron")
    assert in_the_way["statement"] == WRITE
    assert said.error["code"] == "LG304"
    assert "--force enforces all the same" in said.error["hint"]
    assert mode(admin) == "shadow"

    table = cli("mode", "set", "charges", "enforce", *WHY)
    assert "billing-cron" in table.out
    assert "nothing was changed" in table.err


@pytest.mark.parametrize("way", [("--force",), ("--quiet-for", "0")])
def test_it_may_be_forced_or_the_past_be_let_rest(
    way: tuple[str, ...], cli: Cli, connection: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    cli("mode", "set", "charges", "shadow", *WHY)
    connection.execute(WRITE)
    assert cli("mode", "set", "charges", "enforce", *WHY, *way).code == 0
    assert mode(admin) == "enforce"


def test_a_dry_run_changes_nothing(cli: Cli, admin: psycopg.Connection[Any]) -> None:
    said = cli("mode", "set", "charges", "shadow", *WHY, "--dry-run")
    assert (said.code, mode(admin)) == (0, "off")
    assert "rolled back" in said.err


def test_it_needs_a_reason(cli: Cli, admin: psycopg.Connection[Any]) -> None:
    assert cli("mode", "set", "charges", "shadow").code == 2
    assert mode(admin) == "off"


def test_refund_functions_always_enforce(cli: Cli) -> None:
    said = cli("mode", "set", "settle", "off", *WHY)
    assert said.code == 2
    assert "refund functions always enforce" in said.err


def test_transactions_that_go_unchecked_are_waited_for_and_then_named(
    cli: Cli, connection: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    with connection.transaction():
        connection.execute(WRITE)
        said = cli("mode", "set", "charges", "enforce", *WHY)
    assert said.code == 6
    assert f"pid {connection.info.backend_pid}" in said.err
    assert mode(admin) == "off"


def test_a_worker_may_not(cli: Cli, dsn: str) -> None:
    assert cli("mode", "set", "charges", "off", *WHY, "--dsn", dsn).code == 4


def mode(admin: psycopg.Connection[Any]) -> Any:
    return Ledger(admin).get_kind("charges").mode
