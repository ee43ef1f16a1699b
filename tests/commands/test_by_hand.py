"""`ledger claim`, `confirm`, `fail`, `release`, `unknown`, on refunds in every state and against every holder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.lease import AdvisoryLease, Lease
from ledger.lease.redis_lock import RedisLock
from tests.commands.conftest import Cli, moves, refusals
from tests.story import (
    ALICE,
    MERCHANT,
    RESOURCE,
    activated,
    added,
    in_background,
    in_state,
    journal,
    limited,
    raised,
    refund,
    unchanged,
    until,
)

WHY = ("--reason", "ticket 91")
COMMANDS: dict[str, tuple[str, ...]] = {
    "confirm": ("--gateway-ref", "re_r_1"),
    "fail": (),
    "release": (),
    "unknown": (),
}

# What each command makes of a refund that a dead worker left in that state: its new state, or the refusal.
OUTCOMES = {
    "pending": {"confirm": "sent", "fail": "failed", "release": "pending", "unknown": "unknown"},
    "sending": {"confirm": "sent", "fail": "failed", "release": "unknown", "unknown": "unknown"},
    "unknown": {"confirm": "sent", "fail": "failed", "release": "unknown", "unknown": "unknown"},
    "accepted": {"confirm": "sent", "fail": "failed", "release": "LG203", "unknown": "unknown"},
    "review": {"confirm": "LG204", "fail": "LG204", "release": "LG204", "unknown": "LG204"},
    "sent": {"confirm": "sent", "fail": "LG202", "release": "LG202", "unknown": "LG202"},
    "failed": {"confirm": "LG202", "fail": "failed", "release": "LG202", "unknown": "LG202"},
    "cancelled": {"confirm": "LG202", "fail": "LG202", "release": "LG202", "unknown": "LG202"},
}


def by_hand(cli: Cli, command: str, *more: str) -> Any:
    return cli(command, MERCHANT, "r_1", *COMMANDS[command], *WHY, "-o", "json", *more)


@pytest.mark.parametrize("state", OUTCOMES)
def test_every_command_on_a_refund_that_a_dead_worker_left(
    cli: Cli, ledger: Ledger, admin: psycopg.Connection[Any], state: str
) -> None:
    token = activated(ledger)
    for command in COMMANDS:
        in_state(state, f"r_{command}", token, ledger, admin)

    for command, expected in OUTCOMES[state].items():
        name, known = f"r_{command}", refusals(admin)
        before = journal(admin, name)
        more = ("--gateway-ref", f"re_{name}") if command == "confirm" else ()

        said = cli(command, MERCHANT, name, *more, *WHY, "-o", "json")

        if expected.startswith("LG"):
            assert said.code == 3
            assert said.error["code"] == expected
            assert refund(admin, name, "state") == state
            assert journal(admin, name) == before
            assert [code for code, _ in refusals(admin)[len(known) :]] == [expected]
        else:
            assert said.code == 0, command
            assert said.json[0]["state"] == refund(admin, name, "state") == expected
            assert refusals(admin) == known


@pytest.mark.parametrize(("state", "command"), [("sent", "confirm"), ("failed", "fail"), ("unknown", "unknown")])
def test_doing_it_again_changes_nothing(cli: Cli, ledger: Ledger, admin: Any, state: str, command: str) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)
    before = journal(admin, "r_1")

    said = by_hand(cli, command)

    assert (said.code, said.json[0]["outcome"]) == (
        0,
        {"sent": "already_confirmed", "failed": "already_failed", "unknown": "already_unknown"}[state],
    )
    assert journal(admin, "r_1") == before


def test_another_reference_than_the_recorded_one_is_refused(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)

    said = cli("confirm", MERCHANT, "r_1", "--gateway-ref", "re_other", *WHY)

    assert said.code == 3
    assert "recorded as sent under gateway reference re_r_1, not re_other" in said.err
    assert "Two references may mean two movements of money" in said.err


def test_the_journal_tells_who_and_why(cli: Cli, ledger: Ledger, admin: psycopg.Connection[Any]) -> None:
    added(ledger, "r_1")

    assert cli("confirm", MERCHANT, "r_1", "--gateway-ref", "re", "--actor", "carol", *WHY).code == 0

    token = refund(admin, "r_1", "fence")
    assert moves(admin, "r_1")[1:] == [
        ("pending", "sending", token, "carol", "ticket 91"),
        ("sending", "sent", token, "carol", "ticket 91"),
    ]


def test_the_actor_is_the_user_where_none_is_named(cli: Cli, ledger: Ledger, admin: Any, monkeypatch: Any) -> None:
    added(ledger, "r_1", "r_2")

    cli("unknown", MERCHANT, "r_1", *WHY)
    monkeypatch.setenv("LEDGER_ACTOR", "pager")
    cli("unknown", MERCHANT, "r_2", *WHY)

    assert "@" in moves(admin, "r_1")[-1][3]
    assert moves(admin, "r_2")[-1][3] == "pager"


def test_a_write_by_hand_needs_a_reason(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")

    for command in ("claim", *COMMANDS):
        with unchanged(admin):
            said = cli(command, MERCHANT, "r_1", *COMMANDS.get(command, ()), "--reason", " ")

        assert said.code == 2
        assert said.err == (
            "error: a write by hand needs a reason, for the record. Nothing was changed\n  next: Give --reason 'why'\n"
        )


def test_a_refund_that_does_not_exist_is_not_found(cli: Cli) -> None:
    for command in ("claim", *COMMANDS):
        said = cli(command, MERCHANT, "nope", *COMMANDS.get(command, ()), *WHY)

        assert said.code == 5
        assert "there is no such refund; nothing was changed" in said.err


# The broken worker, and the lease.


def test_the_broken_worker_is_fenced_out_and_its_late_confirm_is_on_record(
    cli: Cli, ledger: Ledger, operators: Ledger, admin: psycopg.Connection[Any], connect: Any
) -> None:
    token = activated(ledger)
    in_state("sending", "r_1", token, ledger, admin)

    assert by_hand(cli, "confirm").code == 0

    worker = Ledger(connect(), refusals=connect())
    with raised("LG101") as refusal:
        worker.confirm_refund(MERCHANT, "r_1", token, "re_late")
    assert refusal.tells(token=token, reason="superseded", active=refund(admin, "r_1", "fence"))
    assert refusals(admin) == [("LG101", "confirm_refund")]


def test_the_lease_is_given_back(cli: Cli, ledger: Ledger, redis_url: str) -> None:
    added(ledger, "r_1")

    assert by_hand(cli, "confirm").code == 0
    assert RedisLock(redis_url, RESOURCE).peek() is None


def test_the_lease_is_given_back_after_a_refusal_too(cli: Cli, ledger: Ledger, admin: Any, redis_url: str) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)

    assert by_hand(cli, "confirm").code == 3
    assert RedisLock(redis_url, RESOURCE).peek() is None


def test_a_live_holder_is_named_and_nothing_is_changed(
    cli: Cli, held: Lease, ledger: Ledger, admin: psycopg.Connection[Any]
) -> None:
    in_state("sending", "r_1", held.token, ledger, admin)
    before = journal(admin, "r_1")

    for command in ("claim", *COMMANDS):
        said = cli(command, MERCHANT, "r_1", *COMMANDS.get(command, ()), *WHY)

        assert said.code == 6
        assert f"the lease on {RESOURCE} is held by {held.holder} with token {held.token}" in said.err
        assert f"; token {held.token} was activated at 20" in said.err
        assert (
            "Nothing was changed\n  next: If that process is alive, let it finish, or stop it with SIGTERM" in said.err
        )
        assert "ends by itself within 30s; --wait 1m waits for it" in said.err
        assert journal(admin, "r_1") == before
        assert admin.execute("select active from ledger.fence").fetchone() == (held.token,)
        held.ensure()


def test_a_busy_lease_tells_its_facts_as_json(cli: Cli, held: Lease, ledger: Ledger) -> None:
    added(ledger, "r_1")

    error = by_hand(cli, "fail").error

    assert (error["exit_code"], error["type"]) == (6, "Busy")
    assert error["detail"]["holder"] == error["detail"]["active_holder"] == held.holder
    assert error["detail"]["token"] == held.token


def test_wait_waits_for_the_holder(
    cli: Cli, held: Lease, ledger: Ledger, admin: Any, start: Callable[..., subprocess.Popen[str]]
) -> None:
    added(ledger, "r_1")
    process = start("unknown", MERCHANT, "r_1", *WHY, "--wait", "20s")
    until(lambda: admin.execute("select count(*) = 1 from ledger.draw").fetchone()[0])

    held.release()

    assert process.wait(10) == 0
    assert refund(admin, "r_1", "state") == "unknown"


# Without the lease, under a token, in a dry run.


def test_without_lease_goes_on_says_so_and_fences_the_holder_out(
    cli: Cli, held: Lease, ledger: Ledger, admin: psycopg.Connection[Any]
) -> None:
    in_state("sending", "r_1", held.token, ledger, admin)

    said = by_hand(cli, "confirm", "--without-lease", "--redis", "redis://127.0.0.1:1")

    assert said.code == 0
    assert f"without a lease: whoever holds {RESOURCE} is fenced out from now on\n" in said.err
    with raised("LG101"):
        ledger.claim_refund(MERCHANT, "r_1", held.token)


def test_claim_prints_a_token_to_go_on_with(cli: Cli, ledger: Ledger, admin: Any, redis_url: str) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)

    claim = cli("claim", MERCHANT, "r_1", *WHY, "-o", "json")
    token = claim.json[0]["token"]
    free = RedisLock(redis_url, RESOURCE).peek() is None
    said = by_hand(cli, "confirm", "--token", str(token))

    assert (claim.code, claim.json[0]["outcome"], claim.json[0]["idempotency_key"]) == (0, "taken_over", "m_1/r_1")
    assert free
    assert (said.code, said.json[0]["outcome"], said.json[0]["token"]) == (0, "confirmed", token)


def test_a_token_that_is_no_longer_active_is_refused(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    token = cli("claim", MERCHANT, "r_1", *WHY, "-o", "json").json[0]["token"]
    newer = activated(ledger)

    said = by_hand(cli, "confirm", "--token", str(token))

    assert (said.code, said.error["code"]) == (3, "LG101")
    assert (said.error["detail"]["token"], said.error["detail"]["active"]) == (token, newer)
    assert said.error["detail"]["active_holder"] == ALICE
    assert refund(admin, "r_1", "state") == "sending"


def test_a_token_that_was_never_drawn_is_refused(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    activated(ledger)

    said = by_hand(cli, "confirm", "--token", str(9 * 10**18))

    assert (said.code, said.error["code"]) == (3, "LG102")
    assert refusals(admin) == [("LG102", "confirm_refund")]


@pytest.mark.parametrize("token", ["0", "-1", "9" * 30, "x"])
def test_what_is_no_token_is_bad_usage(cli: Cli, token: str) -> None:
    assert cli("confirm", MERCHANT, "r_1", "--gateway-ref", "x", *WHY, "--token", token).code == 2


@pytest.mark.parametrize("state", ["pending", "sending", "review", "sent"])
def test_a_dry_run_changes_nothing_and_ends_as_the_command_would(
    cli: Cli, ledger: Ledger, admin: psycopg.Connection[Any], redis_url: str, state: str
) -> None:
    token = activated(ledger)
    for command in ("claim", *COMMANDS):
        in_state(state, f"r_{command}", token, ledger, admin)

    for command in ("claim", *COMMANDS):
        arguments = (command, MERCHANT, f"r_{command}", *COMMANDS.get(command, ()), *WHY)
        with unchanged(admin):
            dry = cli(*arguments, "--dry-run")

        assert dry.code in {0, 3}
        assert (dry.code == 3) == ("error: " in dry.err)
        assert ("dry run: rolled back, nothing was changed" in dry.err) == (dry.code == 0)
        assert RedisLock(redis_url, RESOURCE).peek() is None
        assert cli(*arguments).code == dry.code


def test_a_dry_run_tells_of_a_live_holder(cli: Cli, held: Lease, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")

    with unchanged(admin):
        said = by_hand(cli, "confirm", "--dry-run")

    assert said.code == 6
    assert held.holder in said.error["message"]
    held.ensure()


# Where the leases are advisory locks, and where Redis can't be reached.


@pytest.fixture
def advisory(operators: Ledger) -> None:
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis")


@pytest.mark.usefixtures("advisory")
def test_an_advisory_kind_needs_no_redis(cli: Cli, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    added(ledger, "r_1")
    monkeypatch.delenv("LEDGER_REDIS_URL")

    assert by_hand(cli, "confirm").json[0]["outcome"] == "confirmed"
    assert ledger.job_holders(RESOURCE) == []


@pytest.mark.usefixtures("advisory")
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_an_advisory_holder_is_named(cli: Cli, ledger: Ledger, dsn: str, admin: Any, dry: tuple[str, ...]) -> None:
    added(ledger, "r_1")

    with AdvisoryLease(RESOURCE, db=dsn) as lease:
        said = by_hand(cli, "fail", *dry)
        lease.ensure()

    assert said.code == 6
    assert "(ledger_worker" in said.error["message"]
    assert f"token {lease.token} was activated by {lease.holder} at 20" in said.error["message"]
    assert said.error["message"].endswith("Nothing was changed")
    assert refund(admin, "r_1", "state") == "pending"


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_redis_that_is_away_stops_the_command_and_names_the_way_out(
    cli: Cli, ledger: Ledger, admin: psycopg.Connection[Any], dry: tuple[str, ...]
) -> None:
    added(ledger, "r_1")

    said = by_hand(cli, "confirm", "--redis", "redis://127.0.0.1:1", *dry)

    assert said.code == 4
    assert "ledger kind set settle --lock advisory" in said.error["hint"]
    assert refund(admin, "r_1", "state") == "pending"
    assert admin.execute("select count(*) from ledger.fence").fetchone() == (0,)


def test_no_redis_named_stops_the_command_too(cli: Cli, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    added(ledger, "r_1")
    monkeypatch.delenv("LEDGER_REDIS_URL")

    said = by_hand(cli, "confirm")

    assert said.code == 4
    assert said.error["message"] == (
        "the leases of kind settle live in Redis, and no Redis was named. Nothing was changed"
    )
    assert "ledger kind set settle --lock advisory" in said.error["hint"]


# Several at once, and ids from stdin.


def test_one_bad_row_of_several_is_told_and_the_others_are_done(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    added(ledger, "r_2", "r_3")

    said = cli("fail", MERCHANT, "r_2", "r_1", "nope", "r_3", *WHY, "-o", "json")

    assert said.code == 8
    assert [(row["refund_id"], row["outcome"]) for row in said.json] == [
        ("r_2", "failed"),
        ("r_1", "LG202"),
        ("nope", "LG201"),
        ("r_3", "failed"),
    ]
    assert said.json[1]["hint"] == "Skip this refund. Another try is a new refund id."


def test_a_refusal_of_the_fence_ends_the_rest(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1", "r_2", "r_3")
    activated(ledger)

    said = cli("claim", MERCHANT, "r_1", "r_2", "r_3", "--token", 9 * 10**18, *WHY, "-o", "csv")

    assert said.code == 3
    assert [line.split(",")[:2] for line in said.out.splitlines()[1:]] == [
        ["r_1", "LG102"],
        ["r_2", "not_tried"],
        ["r_3", "not_tried"],
    ]


def test_what_was_done_before_the_connection_broke_is_shown(
    cli: Cli, ledger: Ledger, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    added(ledger, "r_1", "r_2", "r_3")
    mark_unknown = Ledger.mark_unknown

    def break_at_the_second(self: Ledger, merchant_id: str, refund_id: str, *rest: Any) -> Any:
        if refund_id == "r_2":
            assert isinstance(self.connection, psycopg.Connection)
            admin.execute("select pg_terminate_backend(%s, 5000)", [self.connection.info.backend_pid])
        return mark_unknown(self, merchant_id, refund_id, *rest)

    monkeypatch.setattr(Ledger, "mark_unknown", break_at_the_second)
    said = cli("unknown", MERCHANT, "r_1", "r_2", "r_3", *WHY, "-o", "json")

    assert said.code == 4
    assert [(row["refund_id"], row["outcome"]) for row in said.json] == [
        ("r_1", "unknown"),
        ("r_2", "in_doubt"),
        ("r_3", "not_tried"),
    ]
    assert "may be recorded or not: ledger show tells" in said.error["hint"]


def test_a_refund_whose_attempts_are_used_up_goes_to_review(cli: Cli, ledger: Ledger, operators: Ledger) -> None:
    operators.set_kind("settle", max_attempts=1, actor="tests", reason="one try")
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", activated(ledger))

    said = by_hand(cli, "confirm")

    assert (said.code, said.json[0]["outcome"], said.json[0]["reason"]) == (8, "review", "attempts_used_up")


def test_ids_come_from_stdin_each_once(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1", "r 2", "r_3")

    said = cli("unknown", MERCHANT, "r_3", "-", *WHY, "-o", "json", stdin="# from a ticket\nr_1\n\n  r 2\nr_3\n")

    assert said.code == 0
    assert [row["refund_id"] for row in said.json] == ["r_3", "r_1", "r 2"]


def test_references_stand_beside_the_ids(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1", "r_2")

    assert cli("confirm", MERCHANT, "-", *WHY, stdin="r_1,re_1\nr_2, re_2\n").code == 0
    assert [refund(admin, name, "gateway_ref") for name in ("r_1", "r_2")] == ["re_1", "re_2"]


def test_a_list_can_be_piped_in_by_its_columns(cli: Cli, ledger: Ledger, admin: Any) -> None:
    """Its second column is the state, which is no gateway reference."""
    added(ledger, "r_1", "r_2")
    listed = cli("list", MERCHANT, "--state", "pending", "-o", "csv").out

    assert cli("confirm", MERCHANT, "-", *WHY, stdin=listed).code == 2
    assert cli("unknown", MERCHANT, "-", *WHY, stdin=listed).code == 0
    assert refund(admin, "r_2", "state") == "unknown"


@pytest.mark.parametrize(
    ("command", "stdin", "problem"),
    [
        ("fail", "r_1,re_1\n", "line 1 of stdin holds 2 fields; one refund id was expected"),
        ("confirm", "r_1,re_1,x\n", "line 1 of stdin holds 3 fields; REFUND,REF was expected"),
        ("confirm", "r_1\n", "no gateway reference for r_1"),
        ("confirm", "r_1,a\nr_1,b\n", "r_1 is given twice, with references a and b"),
    ],
)
def test_a_malformed_stdin_is_bad_input(cli: Cli, command: str, stdin: str, problem: str) -> None:
    said = cli(command, MERCHANT, "-", *WHY, stdin=stdin)

    assert said.code == 2
    assert problem in said.err
    assert "Nothing was changed" in said.err


def test_an_empty_stdin_is_nothing_to_do(cli: Cli) -> None:
    said = cli("fail", MERCHANT, "-", *WHY, stdin="")

    assert (said.code, said.err) == (0, "no refund ids came from stdin: nothing to do\n")


def test_one_reference_is_not_that_of_several_refunds(cli: Cli) -> None:
    said = cli("confirm", MERCHANT, "r_1", "r_2", "--gateway-ref", "re", *WHY)

    assert said.code == 2
    assert "one --gateway-ref can't be that of several refunds. Nothing was changed" in said.err


def test_a_merchant_with_braces_is_no_resource(cli: Cli) -> None:
    said = cli("fail", "m{1}", "r_1", *WHY)

    assert said.code == 2
    assert "Nothing was changed" in said.err


def test_a_busy_gate_names_the_session_it_waits_for(
    cli: Cli, ledger: Ledger, operators: Ledger, connect: Any, admin: psycopg.Connection[Any], redis_url: str
) -> None:
    """A transaction of the broken worker that is really running isn't cut short."""
    limited(operators, idle=0.1, lock=0.1)
    added(ledger, "r_1")
    token = activated(ledger)
    worker = connect(autocommit=False, application_name="broken")
    worker.execute("select ledger.claim_refund(%s, 'r_1', %s)", [MERCHANT, token])
    sleeping = in_background(lambda: worker.execute("select pg_sleep(20)"))
    until(lambda: admin.execute("select from pg_stat_activity where wait_event = 'PgSleep'").fetchone() is not None)

    said = by_hand(cli, "confirm")
    worker.cancel()

    assert isinstance(sleeping.exception(10), psycopg.errors.QueryCanceled)
    assert said.code == 6
    assert f"pid {worker.info.backend_pid} (ledger_worker, broken)" in said.error["message"]
    assert RedisLock(redis_url, RESOURCE).peek() is None
