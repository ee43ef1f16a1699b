"""Finished refunds move into the archive whole, keep their keys and their money, and nothing else ever leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, LiteralString

import pytest

from ledger.client import Ledger
from ledger.commands import archive as archive_commands
from ledger.commands import ledger as commands
from ledger.commands.exits import run
from ledger.records import Archived
from tests.conftest import Connect
from tests.story import (
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    as_ledger_fn,
    drawn,
    in_state,
    raised,
    refused,
    unchanged,
    without_guards,
)

pytestmark = pytest.mark.heavy

WHO: dict[str, Any] = {"actor": "carol", "reason": "year's end"}
FINISHED = ("sent", "failed", "cancelled", "returned")
OPEN = ("pending", "sending", "unknown", "accepted", "review")

Archive = Callable[..., Archived]


@pytest.fixture
def now(admin: Connection) -> Callable[[], datetime]:
    """The server's clock."""
    return lambda: admin.execute("select clock_timestamp()").fetchall()[0][0]  # type: ignore[no-any-return]


@pytest.fixture
def archive(operators: Ledger, now: Callable[[], datetime]) -> Archive:
    """Archive all that is finished by now, of a kind whose key window is over at once."""
    operators.set_kind("settle", key_window=timedelta(milliseconds=1), **WHO)

    def call(max_rows: int = 1000, after: str = "", merchant_id: str = MERCHANT) -> Archived:
        before = now() - timedelta(milliseconds=1)
        return operators.archive_refunds(merchant_id, before, max_rows, after, **WHO)

    return call


@pytest.fixture
def refunds(ledger: Ledger, admin: Connection) -> int:
    """One refund in every state, under one token, named for its state."""
    token = activated(ledger)
    for state in (*FINISHED, *OPEN):
        in_state(state, state, token, ledger, admin)
    return token


def ids(admin: Connection, table: str) -> set[str]:
    return {name for (name,) in admin.execute(f"select refund_id from ledger.{table}".encode()).fetchall()}


def balances(admin: Connection) -> list[tuple[Any, ...]]:
    return admin.execute("select * from ledger.balance where balance_minor <> 0 order by 1, 2, 3").fetchall()


# What moves


def test_finished_refunds_move_with_their_whole_journal(
    archive: Archive, refunds: int, admin: Connection, operators: Ledger
) -> None:
    rows = admin.execute("select r::text from ledger.refund as r where settled_at is not null order by 1").fetchall()
    entries = admin.execute(
        "select j::text from ledger.journal as j join ledger.refund as r using (merchant_id, refund_id)"
        " where r.settled_at is not null order by 1"
    ).fetchall()

    assert archive() == Archived(4, len(entries), "sent")

    assert ids(admin, "refund") == ids(admin, "journal") == set(OPEN)
    assert admin.execute("select r::text from ledger.archived_refund as r order by 1").fetchall() == rows
    assert admin.execute("select j::text from ledger.archived_journal as j order by 1").fetchall() == entries
    assert operators.verify() == []


def test_balances_are_those_of_before(archive: Archive, refunds: int, admin: Connection, operators: Ledger) -> None:
    before = balances(admin)
    for _ in range(2):
        archive(max_rows=2)
        assert balances(admin) == before
        assert operators.verify(MERCHANT) == []
    added(operators, "another")
    operators.cancel_refund(MERCHANT, "another", **WHO)
    archive()
    assert balances(admin) == before


def test_it_goes_in_small_steps_by_a_cursor(archive: Archive, refunds: int) -> None:
    steps, after = [], ""
    while (step := archive(max_rows=3, after=after)).last_refund_id is not None:
        steps.append((step.refunds, step.last_refund_id))
        after = step.last_refund_id
    assert steps == [(3, "returned"), (1, "sent")]


def test_what_changed_after_the_time_stays(
    archive: Archive, refunds: int, operators: Ledger, now: Callable[[], datetime], admin: Connection
) -> None:
    before = now()
    operators.return_refund(MERCHANT, "sent", "re_sent", evidence={"seen": "on the statement"}, **WHO)
    operators.archive_refunds(MERCHANT, before, 1000, **WHO)
    assert ids(admin, "refund") == {*OPEN, "sent"}


def test_another_merchants_refunds_stay(archive: Archive, refunds: int, ledger: Ledger, operators: Ledger,
                                        admin: Connection) -> None:  # fmt: skip
    added(ledger, "r_1", merchant_id="m_2")
    operators.cancel_refund("m_2", "r_1", **WHO)
    archive()
    assert ids(admin, "refund") == {*OPEN, "r_1"}


def test_a_refund_that_somebody_is_moving_now_is_passed_over(
    archive: Archive, refunds: int, connect: Connect, operator_dsn: str, admin: Connection
) -> None:
    mover = connect(operator_dsn, autocommit=False)
    Ledger(mover).return_refund(MERCHANT, "sent", "re_sent", evidence={"seen": "on the statement"}, **WHO)

    archive()
    mover.commit()

    assert ids(admin, "refund") == {*OPEN, "sent"}


def test_a_refund_whose_journal_is_damaged_stays_where_it_is_seen(
    archive: Archive, refunds: int, admin: Connection, operators: Ledger
) -> None:
    with without_guards(admin, "journal"):
        admin.execute("delete from ledger.journal where refund_id = 'sent' and number = 2")
    assert archive().refunds == 3
    assert "sent" in ids(admin, "refund")
    assert {finding.refund_id for finding in operators.verify() if finding.check == "journal_is_whole"} == {"sent"}


def test_each_step_leaves_an_event(archive: Archive, refunds: int, admin: Connection) -> None:
    archive()
    archive()
    events = admin.execute(
        "select resource, actor, reason, detail - 'before' from ledger.event where event = 'archived'"
    ).fetchall()
    detail = {"refunds": 4, "entries": 14, "first": "cancelled", "last": "sent"}
    assert events == [(RESOURCE, "carol", "year's end", detail)]


def test_the_history_of_an_archived_refund_is_told_as_before(archive: Archive, refunds: int, admin: Connection) -> None:
    history = "select * from ledger.history where merchant_id = 'm_1' and refund_id = 'sent' order by number"
    before = admin.execute(history).fetchall()
    archive()
    assert admin.execute(history).fetchall() == before


# Keys stay taken


def test_an_archived_refund_that_is_added_again_is_there_already(
    archive: Archive, refunds: int, ledger: Ledger, admin: Connection
) -> None:
    archive()
    with unchanged(admin):
        again = ledger.add_refund(MERCHANT, "sent", 7025, "EUR")
        (row,) = ledger.add_refunds(MERCHANT, ["sent"], [7025], ["EUR"])
    assert (again.outcome, again.state) == (row.outcome, row.state) == ("already", "sent")
    assert row.gateway_ref == "re_sent"


def test_an_archived_id_with_other_content_is_refused(
    archive: Archive, refunds: int, ledger: Ledger, admin: Connection
) -> None:
    archive()
    with refused("LG301", admin) as refusal:
        ledger.add_refund(MERCHANT, "sent", 1, "EUR")
    assert refusal.tells(same="refund id", differs="amount_minor")
    (row,) = ledger.add_refunds(MERCHANT, ["sent"], [1], ["EUR"])
    assert (row.outcome, row.reason) == ("LG301", "amount_minor")


def test_an_archived_key_is_refused_for_another_refund(
    archive: Archive, refunds: int, ledger: Ledger, admin: Connection
) -> None:
    archive()
    with refused("LG301", admin) as refusal:
        ledger.add_refund(MERCHANT, "new", 7025, "EUR", idempotency_key="m_1/sent")
    assert refusal.tells(same="idempotency key", differs="refund")
    first, second = ledger.add_refunds(
        MERCHANT, ["new", "newer"], [1, 1], ["EUR", "EUR"], idempotency_keys=["m_1/sent", "m_1/newer"]
    )
    assert (first.outcome, first.reason, second.outcome) == ("LG301", "idempotency_key", "added")
    assert "new" not in ids(admin, "refund")


def test_an_archived_refund_can_not_be_moved_any_more(
    archive: Archive, refunds: int, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    archive()
    with refused("LG201", admin):
        ledger.confirm_refund(MERCHANT, "sent", refunds, "re_sent")
    with refused("LG201", admin):
        operators.return_refund(MERCHANT, "sent", "re_sent", evidence={"seen": "late"}, **WHO)


# What is refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"merchant_id": ""}, "merchant_id and refund_id must be given"),
        ({"max_rows": 0}, "max_rows is from 1 to 1000"),
        ({"max_rows": 1001}, "max_rows is from 1 to 1000"),
        ({"max_rows": None}, "max_rows is from 1 to 1000"),
        ({"before": None}, "before is at least 23:00:00 ago"),
        ({"actor": " "}, "actor and reason are needed, as arguments or as ledger.actor and ledger.reason"),
        ({"reason": None}, "actor and reason are needed, as arguments or as ledger.actor and ledger.reason"),
    ],
)
def test_a_call_out_of_bounds_is_refused(
    changes: dict[str, Any], reason: str, operators: Ledger, admin: Connection, now: Callable[[], datetime]
) -> None:
    arguments = {"merchant_id": MERCHANT, "before": now() - timedelta(days=9), "max_rows": 9} | WHO | changes
    with refused("LG304", admin) as refusal:
        operators.archive_refunds(**arguments)
    assert refusal.tells(function="archive_refunds", reason=reason)


def test_what_the_gateway_may_still_speak_of_is_refused(
    operators: Ledger, admin: Connection, now: Callable[[], datetime]
) -> None:
    with refused("LG304", admin):
        operators.archive_refunds(MERCHANT, now() - timedelta(hours=22), 1, **WHO)
    assert operators.archive_refunds(MERCHANT, now() - timedelta(hours=24), 1, **WHO).refunds == 0


@pytest.mark.parametrize(
    "call", ["archive_refunds('m_1', now(), 1)", "prune_refusals(now(), 1)", "prune_draws(now(), 1)"]
)
@pytest.mark.parametrize("role", ["dsn", "reader_dsn"])
def test_only_an_operator_keeps_house(
    role: str, call: LiteralString, connect: Connect, request: pytest.FixtureRequest
) -> None:
    with raised("42501"):
        connect(request.getfixturevalue(role)).execute("select ledger." + call)


# Nothing else ever leaves


@pytest.mark.parametrize("table", ["refund", "journal"])
@pytest.mark.parametrize("which", ["pending", "sent"])
def test_even_ledger_fn_deletes_nothing_that_is_not_archived(
    which: str, table: str, refunds: int, admin: Connection
) -> None:
    with refused("LG103", admin) as refusal:
        as_ledger_fn(admin, f"delete from ledger.{table} where refund_id = '{which}'")  # type: ignore[arg-type]
    assert refusal.tells(operation="delete", table=f"ledger.{table}", role="ledger_fn")


def test_a_copy_that_differs_does_not_count(refunds: int, admin: Connection) -> None:
    with refused("LG103", admin):
        as_ledger_fn(
            admin,
            "with copied as (insert into ledger.archived_refund select * from ledger.refund where refund_id = 'sent')"
            " select; update ledger.refund set attempts = 9 where refund_id = 'sent';"
            " delete from ledger.refund where refund_id = 'sent'",
        )


@pytest.mark.parametrize(
    "statement",
    [
        "update ledger.archived_refund set amount_minor = 1",
        "delete from ledger.archived_refund",
        "update ledger.archived_journal set amount_minor = 1",
        "delete from ledger.archived_journal",
        "delete from ledger.carried_balance",
        "truncate ledger.journal",
    ],
)
def test_the_archive_is_append_only_for_ledger_fn_too(
    statement: LiteralString, archive: Archive, refunds: int, admin: Connection
) -> None:
    archive()
    with refused("42501", admin):
        as_ledger_fn(admin, statement)


def test_the_archive_has_the_columns_of_what_it_archives(admin: Connection) -> None:
    for table in ("refund", "journal"):
        of, archived = (
            admin.execute(
                "select attname, atttypid, atttypmod, attnotnull, attcollation, col_description(attrelid, attnum)"
                " from pg_attribute where attrelid = ('ledger.' || %s)::regclass and attnum > 0 order by attnum",
                [name],
            ).fetchall()
            for name in (table, f"archived_{table}")
        )
        assert of == archived


# verify


@pytest.mark.parametrize(
    ("table", "damage"),
    [
        ("archived_journal", "delete from ledger.archived_journal where refund_id = 'sent' and number = 2"),
        ("archived_refund", "update ledger.archived_refund set state = 'failed' where refund_id = 'sent'"),
        ("refund", "insert into ledger.refund select * from ledger.archived_refund where refund_id = 'sent'"),
    ],
)
def test_a_damaged_archive_is_found(
    table: str, damage: LiteralString, archive: Archive, refunds: int, admin: Connection, operators: Ledger
) -> None:
    archive()
    with without_guards(admin, table):
        admin.execute(damage)
    assert ("archive_is_whole", "sent") in {(found.check, found.refund_id) for found in operators.verify(MERCHANT)}


def test_a_carried_total_that_is_wrong_is_found(
    archive: Archive, refunds: int, admin: Connection, operators: Ledger
) -> None:
    archive()
    as_ledger_fn(admin, "update ledger.carried_balance set balance_minor = 1 where account = 'gateway_clearing'")
    (finding,) = operators.verify()
    assert (finding.check, finding.detail["account"]) == ("balance_is_conserved", "gateway_clearing")


def test_a_reference_that_an_archived_refund_has_too_is_found(
    archive: Archive, refunds: int, ledger: Ledger, admin: Connection, operators: Ledger
) -> None:
    archive()
    added(ledger, "new")
    ledger.claim_refund(MERCHANT, "new", refunds)
    ledger.confirm_refund(MERCHANT, "new", refunds, "re_sent")
    assert [finding.check for finding in operators.verify()] == ["gateway_ref_is_single"]


# Refusals and draws


def aged(admin: Connection, table: str, column: str) -> None:
    with without_guards(admin, table):
        admin.execute(f"update ledger.{table} set {column} = {column} - interval '2 days'".encode())


def test_refusals_are_forgotten_the_oldest_first(
    operators: Ledger, ledger: Ledger, admin: Connection, now: Callable[[], datetime]
) -> None:
    for _ in range(3):
        ledger.record_refusal("LG101", "old", {})
    aged(admin, "refusal", "at")
    ledger.record_refusal("LG101", "new", {})
    day_ago = now() - timedelta(days=1)

    assert [operators.prune_refusals(day_ago, 2, **WHO) for _ in range(3)] == [2, 1, 0]

    assert admin.execute("select message from ledger.refusal").fetchall() == [("new",)]
    events = admin.execute("select actor, reason, detail -> 'refusals' from ledger.event where event = 'pruned'")
    assert events.fetchall() == [("carol", "year's end", 2), ("carol", "year's end", 1)]


def test_old_draws_are_forgotten_and_their_numbers_stay_void(
    operators: Ledger, ledger: Ledger, admin: Connection, now: Callable[[], datetime]
) -> None:
    old = [drawn(ledger) for _ in range(2)]
    aged(admin, "draw", "drawn_at")
    young = drawn(ledger)

    assert operators.prune_draws(now() - timedelta(days=1), 1000, **WHO) == 2

    with refused("LG102", admin):
        ledger.activate_token(RESOURCE, old[1], "late/1/0123456789abcdef")
    ledger.activate_token(RESOURCE, young, "alice/1/0123456789abcdef")
    assert operators.verify() == []


@pytest.mark.parametrize("function", ["prune_refusals", "prune_draws"])
@pytest.mark.parametrize(
    "changes", [{"before": None}, {"before": timedelta(hours=23)}, {"max_rows": 1001}, {"max_rows": 0}, {"actor": ""}]
)
def test_pruning_what_is_young_or_by_nobody_is_refused(
    function: str, changes: dict[str, Any], operators: Ledger, admin: Connection, now: Callable[[], datetime]
) -> None:
    arguments: dict[str, Any] = {"before": timedelta(days=2), "max_rows": 9} | WHO | changes
    if arguments["before"] is not None:
        arguments["before"] = now() - arguments["before"]
    with refused("LG304", admin):
        getattr(operators, function)(**arguments)


# The commands


@pytest.fixture
def ledger_command(
    operator_dsn: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """An operator's command line: exit code, stdout, stderr."""
    monkeypatch.setenv("LEDGER_DSN", operator_dsn)
    monkeypatch.setattr(archive_commands, "STEP", 2)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        return run(commands, [*arguments, "--reason", "year's end", "-o", "json"]), *capfd.readouterr()

    return call


def finished(ledger: Ledger, admin: Connection, *merchants: str) -> None:
    for merchant_id in merchants:
        added(ledger, *(f"r_{n}" for n in range(5)), merchant_id=merchant_id)
        for n in range(5):
            Ledger(admin).cancel_refund(merchant_id, f"r_{n}", **WHO)


def test_the_command_archives_every_merchant_in_steps(
    archive: Archive, ledger: Ledger, admin: Connection, ledger_command: Callable[..., tuple[int, str, str]]
) -> None:
    finished(ledger, admin, "m_1", "m_2")
    added(ledger, "r_9", merchant_id="m_3")
    expected = [{"merchant_id": name, "refunds": 5, "entries": 10} for name in ("m_1", "m_2")]

    assert json.loads(ledger_command("archive", "--older-than", "1ms", "--dry-run")[1]) == expected
    assert len(ids(admin, "refund")) == 6
    code, out, _ = ledger_command("archive", "--older-than", "1ms")

    assert (code, json.loads(out)) == (0, expected)
    assert ids(admin, "refund") == {"r_9"}
    assert admin.execute("select count(*) from ledger.event where event = 'archived'").fetchall() == [(6,)]
    assert ledger_command("archive", "--older-than", "1ms")[:2] == (0, "[]\n")


def test_the_command_archives_no_more_than_it_is_told(
    archive: Archive, ledger: Ledger, admin: Connection, ledger_command: Callable[..., tuple[int, str, str]]
) -> None:
    finished(ledger, admin, "m_1", "m_2")
    ledger_command("archive", "m_2", "--older-than", "1ms", "--limit", "3")
    assert admin.execute("select merchant_id, count(*) from ledger.refund group by 1 order by 1").fetchall() == [
        ("m_1", 5), ("m_2", 2),
    ]  # fmt: skip


def test_the_command_refuses_what_is_too_young(ledger_command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = ledger_command("archive", "m_1", "--older-than", "1h")
    assert (code, out) == (2, "")
    assert "before is at least 23:00:00 ago" in err


def test_the_command_forgets_refusals_and_draws(
    ledger: Ledger, admin: Connection, ledger_command: Callable[..., tuple[int, str, str]]
) -> None:
    for _ in range(5):
        ledger.record_refusal("LG101", "old", {})
        drawn(ledger)
    aged(admin, "refusal", "at")
    aged(admin, "draw", "drawn_at")

    code, out, _ = ledger_command("prune", "--refusals", "1d", "--draws", "1d")

    assert (code, json.loads(out)) == (0, {"refusals": 5, "draws": 5})
    assert ledger_command("prune")[0] == 2


def test_the_command_forgets_events_and_done_work_in_steps(
    ledger: Ledger, admin: Connection, ledger_command: Callable[..., tuple[int, str, str]]
) -> None:
    for n in range(5):
        token = activated(ledger, resource="payouts:p_1")
        ledger.begin_attempt("payouts:p_1", f"job-{n}", token)
        ledger.end_attempt("payouts:p_1", f"job-{n}", token, "done")
    for table, column in (("event", "at"), ("work", "changed_at")):
        with without_guards(admin, table):
            admin.execute(f"update ledger.{table} set {column} = {column} - interval '40 days'".encode())

    code, out, err = ledger_command("prune", "--events", "31d", "--work", "31d", "--dry-run")
    assert (code, json.loads(out)["events"]) == (0, 4)
    assert "nothing was changed" in err
    code, out, _ = ledger_command("prune", "--events", "31d", "--work", "31d")
    assert (code, json.loads(out)) == (0, {"events": 4, "work": 5})
    assert ledger_command("prune", "--events", "29d")[0] == 2


LOOKS = {
    "show": ["show", MERCHANT, "sent"],
    "history": ["history", MERCHANT, "sent"],
    "export": ["export", "--from", "2020-01-01", "--to", "2099-12-31"],
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_told_of_a_refund_and_its_money_stays_the_same(
    look: str, archive: Archive, refunds: int, operator_dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        capfd.readouterr()
        assert run(commands, [*LOOKS[look], "-o", "json", "--dsn", operator_dsn]) == 0
        return capfd.readouterr().out

    before = said()
    archive()
    assert said() == before


def test_why_tells_the_moves_of_an_archived_refund(
    archive: Archive, refunds: int, operator_dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    archive()
    assert run(commands, ["why", MERCHANT, "sent", "-o", "json", "--dsn", operator_dsn]) == 0
    story = capfd.readouterr().out
    for state in ("pending", "sending", "sent"):
        assert f'"to_state": "{state}"' in story
