"""`ledger show`, `list`, `history`, `verify`, `lease show`, `kind`: what they tell; looking changes nothing."""

from __future__ import annotations

import csv
import io
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.lease import AdvisoryLease, Lease
from tests.commands.conftest import Cli
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, activated, added, as_ledger_fn, in_state, raised, unchanged

HAND = ("--reason", "ticket 91")


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# One refund.


def test_show_tells_what_is_and_what_may_be_done_next(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("unknown", "r_1", activated(ledger), ledger, admin)
    activated(ledger, BOB)

    with unchanged(admin):
        said = cli("show", MERCHANT, "r_1")

    assert said.code == 0
    fields = {line[:17].strip(): line[17:].strip() for line in said.out.splitlines()}
    assert (fields["state"], fields["amount"], fields["token"], fields["holder"]) == (
        "unknown",
        "70.25 EUR",
        "1",
        ALICE,
    )
    assert (fields["active token"], fields["active holder"]) == ("2", BOB)
    assert fields["next"].startswith("settle again, which asks the gateway first")
    assert "ledger confirm|fail m_1 r_1" in fields["next"]
    assert "gateway ref" not in fields  # nothing is said of what is empty


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("pending", "ledger settle m_1"),
        ("sending", "ledger lease show settle:m_1"),
        ("accepted", "wait for the gateway's final word"),
        ("review", "ledger resolve|requeue|cancel"),
        ("sent", "ledger return"),
        ("failed", "another try is a new refund id"),
    ],
)
def test_every_state_has_its_advice(cli: Cli, ledger: Ledger, admin: Any, state: str, advice: str) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)

    assert advice in cli("show", MERCHANT, "r_1", "-o", "json").json["next"]


def test_show_as_json_has_everything_by_name(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)

    shown = cli("show", MERCHANT, "r_1", "-o", "json").json

    assert (shown["amount"], shown["amount_minor"], shown["currency"]) == ("70.25", 7025, "EUR")
    assert shown["payment_ref"] is None
    assert datetime.fromisoformat(shown["settled_at"]).utcoffset() == timedelta(0)


@pytest.mark.parametrize("command", ["show", "history"])
def test_a_refund_that_is_not_there_is_not_found(cli: Cli, command: str) -> None:
    said = cli(command, MERCHANT, "r_1")

    assert said.code == 5
    assert said.err == (
        "error: merchant m_1 has no refund r_1\n  next: Check both ids, the merchant first: ledger list m_1\n"
    )


# Many.


def test_list_shows_the_open_ones_page_by_page(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("sent", "r_0", activated(ledger), ledger, admin)
    added(ledger, "r_1", "r_2", "r_3")

    first = cli("list", MERCHANT, "--state", "pending", "--limit", "2")
    second = cli("list", MERCHANT, "--state", "pending", "--limit", "2", "--after", "r_2")

    assert [row[0] for row in table(first.out)] == ["refund_id", "r_1", "r_2"]
    assert first.err == "there may be more: --after 'r_2'\n"
    assert [row[0] for row in table(second.out)] == ["refund_id", "r_3"]
    assert second.err == ""


def test_a_list_of_nothing_is_words_a_header_or_an_empty_array(cli: Cli) -> None:
    assert cli("list", MERCHANT).err == "merchant m_1 has no such refunds\n"
    assert cli("list", MERCHANT).out == ""
    assert cli("list", MERCHANT, "-o", "csv").out.startswith("merchant_id,refund_id,state,amount,currency,")
    assert cli("list", MERCHANT, "-o", "json").json == []


def test_a_list_as_csv_can_be_imported_again(cli: Cli, ledger: Ledger, tmp_path: Any) -> None:
    ledger.add_refund(MERCHANT, "r,1", 7025, "EUR", 'pay "1"', "stripe", "old/1")
    ledger.add_refund(MERCHANT, "r_2", 58, "JPY")
    columns = ["merchant_id", "refund_id", "amount", "currency", "payment_ref", "gateway", "idempotency_key"]
    rows = list(csv.DictReader(io.StringIO(cli("list", MERCHANT, "-o", "csv").out)))

    with (tmp_path / "again.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)

    assert cli("import", tmp_path / "again.csv", "-o", "json").json["already"] == 2


# The past.


def test_history_tells_the_story_with_money_and_refusals(cli: Cli, ledger: Ledger, connect: Any, admin: Any) -> None:
    token = activated(ledger)
    in_state("sending", "r_1", token, ledger, admin)
    cli("confirm", MERCHANT, "r_1", "--gateway-ref", "re_1", "--actor", "carol", *HAND)
    with raised("LG101"):
        Ledger(connect(), refusals=connect()).confirm_refund(MERCHANT, "r_1", token, "re_late")

    with unchanged(admin):
        story = cli("history", MERCHANT, "r_1", "-o", "json").json

    assert [line["what"] for line in story] == [
        "added -> pending",
        "pending -> sending",
        "sending -> sending",
        "sending -> sent",
        "refused LG101 confirm_refund",
    ]
    assert story[0]["money"] == "70.25 EUR: merchant_available to refund_reserved"
    assert (story[1]["holder"], story[3]["actor"], story[3]["reason"]) == (ALICE, "carol", "ticket 91")
    assert (story[4]["token"], story[4]["active"], story[4]["active_holder"]) == (token, 2, story[3]["holder"])


def test_a_table_leaves_out_columns_in_which_nothing_stands(cli: Cli, ledger: Ledger) -> None:
    added(ledger, "r_1")

    assert table(cli("history", MERCHANT, "r_1").out)[0] == ["at", "what", "money"]


# What is wrong.


def test_verify_finds_nothing_or_exits_10(cli: Cli, ledger: Ledger, admin: psycopg.Connection[Any]) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    assert (cli("verify").code, cli("verify").err) == (0, "nothing is wrong\n")

    as_ledger_fn(admin, "update ledger.refund set amount_minor = 1")
    said = cli("verify", MERCHANT, "-o", "json")

    assert said.code == 10
    assert said.json[0]["refund_id"] == "r_1"
    assert cli("verify", "m_2").code == 0


# Who holds what.


def test_lease_show_tells_the_holder_and_the_fence(cli: Cli, held: Lease, admin: Any) -> None:
    with unchanged(admin):
        shown = cli("lease", "show", RESOURCE, "-o", "json").json

    assert (shown["held"], shown["holder"], shown["token"]) == (True, held.holder, held.token)
    assert 0 < shown["ttl_left"] <= 30
    assert (shown["active_token"], shown["active_holder"]) == (held.token, held.holder)
    assert "unless renewed" in cli("lease", "show", RESOURCE).out


def test_lease_show_after_the_release_tells_the_fence_alone(cli: Cli, held: Lease) -> None:
    held.release()

    shown = cli("lease", "show", RESOURCE, "-o", "json").json

    assert (shown["held"], shown["holder"]) == (False, None)
    assert shown["active_token"] == held.token


def test_lease_show_of_an_advisory_kind_names_the_session(
    cli: Cli, ledger: Ledger, operators: Ledger, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis")
    monkeypatch.delenv("LEDGER_REDIS_URL")

    with AdvisoryLease(RESOURCE, db=dsn) as lease:
        shown = cli("lease", "show", RESOURCE, "-o", "json").json

    assert (shown["lock"], shown["held"]) == ("advisory", True)
    assert "(ledger_worker" in shown["holder"]
    assert shown["active_token"] == lease.token


@pytest.mark.parametrize(
    ("resource", "code", "problem"),
    [
        ("settle:m_1", 5, "settle:m_1 was never held"),
        ("settle", 2, "'settle' is no resource: those are kind:name"),
        (":x", 2, "is no resource"),
        ("settle:a{b}", 2, "without braces"),
    ],
)
def test_lease_show_of_what_was_never_held(cli: Cli, resource: str, code: int, problem: str) -> None:
    said = cli("lease", "show", resource)

    assert said.code == code
    assert problem in said.err


def test_lease_show_needs_redis(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("lease", "show", "sync:x", "--redis", "redis://127.0.0.1:1").code == 4
    monkeypatch.delenv("LEDGER_REDIS_URL")
    said = cli("lease", "show", "sync:x", "-o", "json")
    assert said.code == 4
    assert "ledger kind set sync --lock advisory" in said.error["hint"]


# Kinds.


def test_kind_list_tells_limits_as_people_and_programs_read_them(cli: Cli) -> None:
    header, row = table(cli("kind", "list").out)
    limits = dict(zip(header, row, strict=True))

    assert (limits["kind"], limits["lock"], limits["lease_ttl"], limits["key_window"]) == (
        "settle",
        "redis",
        "30s",
        "23h",
    )
    assert cli("kind", "list", "-o", "json").json[0]["key_window"] == 82800
    assert ",82800.0" in cli("kind", "list", "-o", "csv").out


def test_kind_set_changes_what_is_given_and_leaves_the_rest(cli: Cli, admin: psycopg.Connection[Any]) -> None:
    said = cli("kind", "set", "settle", "--idle-limit", "500ms", "--actor", "carol", *HAND, "-o", "json")

    assert said.code == 0
    assert (said.json[0]["idle_limit"], said.json[0]["lease_ttl"]) == (0.5, 30)
    assert admin.execute("select actor, reason from ledger.event where event = 'kind_set'").fetchone() == (
        "carol",
        "ticket 91",
    )


def test_kind_set_in_a_dry_run_changes_nothing(cli: Cli, admin: psycopg.Connection[Any]) -> None:
    with unchanged(admin):
        said = cli("kind", "set", "settle", "--lock", "advisory", *HAND, "--dry-run", "-o", "json")

    assert (said.code, said.json[0]["lock"]) == (0, "advisory")
    assert said.err == "dry run: rolled back, nothing was changed\n"


def test_a_transaction_limit_is_taken_away_by_zero(cli: Cli) -> None:
    set_it = cli("kind", "set", "settle", "--transaction-limit", "1m", *HAND, "-o", "json")
    take_it_away = cli("kind", "set", "settle", "--transaction-limit", "0", *HAND, "-o", "json")

    assert (set_it.json[0]["transaction_limit"], take_it_away.json[0]["transaction_limit"]) == (60, None)


def test_limits_that_make_no_sense_are_bad_input(cli: Cli, admin: psycopg.Connection[Any]) -> None:
    limits = "select lock, lease_ttl, idle_limit, lock_limit, transaction_limit, max_attempts from ledger.kind"
    before = admin.execute(limits).fetchall()

    for options, problem in (
        (("--max-attempts", "3"), "needs a reason"),
        (HAND, "nothing to set was given"),
        (("--idle-limit", "40s", *HAND), "must not be longer than the lease"),
        (("--idle-limit", "0", *HAND), "too short"),
        (("--lease-ttl", "soon", *HAND), "no duration. Give seconds, or 500ms, 30s, 5m, 23h."),
        (("--lease-ttl", "400d", *HAND), "longer than a year"),
        (("--max-attempts", "0", *HAND), "not in the range"),
        (("--lock", "file", *HAND), "is not one of 'redis', 'advisory'"),
    ):
        said = cli("kind", "set", "settle", *options)

        assert said.code == 2, options
        assert problem in said.err
    assert cli("kind", "set", "a:b", "--max-attempts", "3", *HAND).code == 2
    assert admin.execute(limits).fetchall() == before
