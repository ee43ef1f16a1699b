"""`ledger export`: entries and balances by day."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from ledger.client import Ledger
from tests.commands.conftest import Cli
from tests.story import activated, as_ledger_fn, in_state

COLUMNS = "day,merchant_id,currency,account,entries,debit,credit,balance,debit_minor,credit_minor,balance_minor"


@pytest.fixture
def three_days(ledger: Ledger, admin: Any) -> None:
    """r_1 was added and sent on the 1st; r_2 was added on the 1st and failed on the 3rd; yen on the 3rd."""
    token = activated(ledger)
    for refund_id, state in (("r_1", "sent"), ("r_2", "failed")):
        in_state(state, refund_id, token, ledger, admin)
    ledger.add_refund("m_2", "r_1", 58, "JPY")
    admin.execute("grant update on ledger.journal to ledger_fn")  # nobody may; a test moves time
    as_ledger_fn(admin, "update ledger.journal set at = '2026-11-01 23:59:59.9+00'")
    as_ledger_fn(admin, "update ledger.journal set at = '2026-11-03 00:00:00+00' where to_state = 'failed'")
    as_ledger_fn(admin, "update ledger.journal set at = '2026-11-03 09:00:00+09' where merchant_id = 'm_2'")


def lines(cli: Cli, first: str, last: str, *more: str) -> list[tuple[str, ...]]:
    said = cli("export", "--from", first, "--to", last, *more)
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == COLUMNS
    rows = list(csv.DictReader(io.StringIO(said.out)))
    names = ("day", "merchant_id", "currency", "account", "entries", "debit", "credit", "balance")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.usefixtures("three_days")
def test_each_account_has_a_line_on_each_day_with_entries(cli: Cli) -> None:
    assert lines(cli, "2026-11-01", "2026-11-03") == [
        ("2026-11-01", "m_1", "EUR", "gateway_clearing", "1", "0.00", "70.25", "70.25"),
        ("2026-11-01", "m_1", "EUR", "merchant_available", "2", "140.50", "0.00", "-140.50"),
        ("2026-11-01", "m_1", "EUR", "refund_reserved", "3", "70.25", "140.50", "70.25"),
        ("2026-11-03", "m_1", "EUR", "merchant_available", "1", "0.00", "70.25", "-70.25"),
        ("2026-11-03", "m_1", "EUR", "refund_reserved", "1", "70.25", "0.00", "0.00"),
        ("2026-11-03", "m_2", "JPY", "merchant_available", "1", "58", "0", "-58"),
        ("2026-11-03", "m_2", "JPY", "refund_reserved", "1", "0", "58", "58"),
    ]


@pytest.mark.usefixtures("three_days")
def test_a_balance_is_that_of_all_time(cli: Cli) -> None:
    (available, reserved) = lines(cli, "2026-11-02", "2026-11-03", "--merchant", "m_1")
    assert available[-1] == "-70.25"
    assert reserved[-1] == "0.00"


@pytest.mark.usefixtures("three_days")
def test_debits_and_credits_are_the_same_sum(cli: Cli) -> None:
    data = cli("export", "--from", "2026-11-01", "--to", "2026-11-30", "-o", "json").json
    assert sum(row["debit_minor"] - row["credit_minor"] for row in data) == 0
    assert {type(row["balance_minor"]) for row in data} == {int}


@pytest.mark.usefixtures("three_days")
def test_the_last_balances_are_those_of_the_ledger(cli: Cli, admin: Any) -> None:
    data = cli("export", "--from", "2026-11-01", "--to", "2026-11-30", "-o", "json").json
    last = {(row["merchant_id"], row["currency"], row["account"]): row["balance_minor"] for row in data}
    rows = admin.execute("select merchant_id, currency, account, balance_minor from ledger.balance").fetchall()
    assert last == {row[:3]: row[3] for row in rows}


def test_days_without_entries_are_a_header(cli: Cli) -> None:
    assert cli("export", "--from", "2020-01-01", "--to", "2020-01-02").out == COLUMNS + "\n"


@pytest.mark.parametrize(
    "words", [("--from", "2026-11-03"), ("--from", "x", "--to", "y"), ("--from", "2026-11-03", "--to", "2026-11-01")]
)
def test_days_must_be_days_in_order(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("export", *words).code == 2


def test_servers_that_are_not_there(cli: Cli, empty_dsn: str) -> None:
    days = ("--from", "2026-11-01", "--to", "2026-11-02")
    assert cli("export", *days, "--dsn", "host=127.0.0.1 port=1").code == 4
    assert cli("export", *days, "--dsn", empty_dsn).code == 9
