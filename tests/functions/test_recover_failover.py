from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    Connection,
    activated,
    added,
    as_ledger_fn,
    drawn,
    in_background,
    is_waiting,
    journal,
    on_a_new_timeline,
    raised,
    refund,
    refused,
    unchanged,
    until,
)

WHO: dict[str, Any] = {"actor": "dana", "reason": "INC-7"}


def known_server(admin: Connection) -> tuple[Any, ...] | None:
    return admin.execute("select timeline, system_identifier, started_at from ledger.server").fetchone()


def last_drawn(admin: Connection) -> int:
    row = admin.execute("select last_value from ledger.token_seq").fetchone()
    assert row is not None
    return int(row[0])


def test_there_is_nothing_to_do_on_the_known_server(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    activated(ledger)

    with unchanged(admin):
        assert operators.recover_failover(**WHO) == "nothing_to_do"


def test_the_server_is_known_again_and_work_goes_on(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    drawn(ledger)  # the server may have been started again since its template was made
    before = known_server(admin)
    on_a_new_timeline(admin)

    assert operators.recover_failover(**WHO) == "recovered"
    assert known_server(admin) == before
    activated(ledger)


def test_every_token_that_was_handed_out_is_void(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    active = activated(ledger)
    held = drawn(ledger)
    lost = held + 1000  # handed out on the lost timeline: this one knows nothing of it
    on_a_new_timeline(admin)
    operators.recover_failover(**WHO)

    for token, reason in ((active, "superseded"), (held, "voided"), (lost, "voided")):
        with refused("LG101", admin) as refusal:
            ledger.claim_refund(MERCHANT, "r_1", token)
        assert refusal.tells(reason=reason, token=token, active_holder="recovery")
        with refused("LG101", admin):
            ledger.activate_token(RESOURCE, token, ALICE)
    assert drawn(ledger) > lost


def test_the_sequence_and_every_fence_are_lifted_to_one_height(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    for resource in (RESOURCE, "settle:m_2", "invoice:2026"):
        activated(ledger, resource=resource)
        drawn(ledger, resource)
    before = last_drawn(admin)
    on_a_new_timeline(admin)
    operators.recover_failover(**WHO)

    lifted = last_drawn(admin)
    assert lifted == before + 2**20
    assert (
        admin.execute("select active, barrier, holder from ledger.fence").fetchall()
        == [(lifted, lifted, "recovery")] * 3
    )
    assert admin.execute("select from ledger.draw").fetchall() == []


def test_all_that_is_known_of_the_server_is_known_anew(operators: Ledger, admin: Connection) -> None:
    as_ledger_fn(admin, "update ledger.server set timeline = 'F', system_identifier = 7, started_at = '2020-01-01'")
    operators.recover_failover(**WHO)
    assert admin.execute(
        "select s.timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), "
        "s.system_identifier = c.system_identifier, s.started_at = pg_postmaster_start_time() "
        "from ledger.server as s, pg_control_system() as c"
    ).fetchall() == [(True, True, True)]


def test_open_refunds_are_marked_and_finished_ones_are_left_alone(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1", "r_2", "r_3", "r_4")
    token = activated(ledger)
    for refund_id in ("r_2", "r_3"):
        ledger.claim_refund(MERCHANT, refund_id, token)
    ledger.confirm_refund(MERCHANT, "r_3", token, "re_3")
    ledger.claim_refund(MERCHANT, "r_4", token)
    ledger.claim_refund(MERCHANT, "r_4", token)  # marks it by itself
    finished, marked = journal(admin, "r_3"), journal(admin, "r_4")
    marked_row = refund(admin, "r_4", "fence", "changed_at", "journal_number")
    before = admin.execute("select activated_at from ledger.fence").fetchall()
    on_a_new_timeline(admin)
    operators.recover_failover(**WHO)

    columns = ("state", "fence", "maybe_sent", "attempts", "journal_number")
    assert refund(admin, "r_1", *columns) == ("pending", 0, True, 0, 2)
    assert refund(admin, "r_2", *columns) == ("sending", token, True, 1, 3)
    assert refund(admin, "r_3", *columns) == ("sent", token, False, 1, 3)
    assert journal(admin, "r_1")[-1] == ("pending", "pending", None, 0, True, None, None, None)
    assert journal(admin, "r_2")[-1] == ("sending", "sending", None, 1, True, None, None, None)
    assert (journal(admin, "r_3"), journal(admin, "r_4")) == (finished, marked)
    assert refund(admin, "r_4", "fence", "changed_at", "journal_number") == marked_row
    at = admin.execute("select at from ledger.journal where refund_id = 'r_1' order by number").fetchall()[-1]
    assert at == (refund(admin, "r_1", "changed_at"),)
    assert admin.execute("select activated_at from ledger.fence").fetchall() > before
    assert admin.execute(
        "select distinct actor, reason from ledger.journal where number > 1 and token is null"
    ).fetchall() == [("dana", "INC-7")]


def test_whoever_claims_next_is_told_to_ask_the_gateway_first(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1", "r_2")
    ledger.claim_refund(MERCHANT, "r_2", activated(ledger))
    on_a_new_timeline(admin)
    operators.recover_failover(**WHO)

    claims = ledger.claim_refunds(MERCHANT, activated(ledger, BOB), 10)
    assert [(claim.refund_id, claim.outcome) for claim in claims] == [("r_1", "taken_over"), ("r_2", "taken_over")]
    assert claims[0].first_claimed_at == refund(admin, "r_1", "added_at")


def test_a_refund_of_an_unknown_past_goes_to_review_once_the_key_may_be_forgotten(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    as_ledger_fn(admin, "update ledger.refund set added_at = added_at - interval '24 hours'")
    on_a_new_timeline(admin)
    operators.recover_failover(**WHO)

    claim = ledger.claim_refund(MERCHANT, "r_1", activated(ledger))
    assert (claim.outcome, claim.reason) == ("review", "key_window_over")


def test_the_books_are_right_afterwards(ledger: Ledger, operators: Ledger, admin: Connection) -> None:
    added(ledger, "r_1", "r_2", "r_3", "r_4")
    token = activated(ledger)
    ledger.claim_refunds(MERCHANT, token, 3)
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    ledger.release_refund(MERCHANT, "r_2", token, "not sent")
    on_a_new_timeline(admin)
    operators.recover_failover(**WHO)
    assert operators.verify() == []

    token = activated(ledger)
    for claim in ledger.claim_refunds(MERCHANT, token, 10):
        ledger.confirm_refund(MERCHANT, claim.refund_id, token, f"re_{claim.refund_id}")
    assert operators.verify() == []


def test_a_planned_switchover_is_acknowledged_and_costs_nobody_a_token(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    on_a_new_timeline(admin)

    before = last_drawn(admin)
    assert operators.recover_failover(nothing_lost=True, **WHO) == "acknowledged"
    assert last_drawn(admin) == before
    assert refund(admin, "r_1", "maybe_sent") is False
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


@pytest.mark.parametrize("nothing_lost", [False, True])
def test_what_was_done_is_remembered_with_who_and_why(operators: Ledger, admin: Connection, nothing_lost: bool) -> None:
    on_a_new_timeline(admin)
    outcome = operators.recover_failover(nothing_lost, **WHO)

    rows = admin.execute("select event, actor, reason, database_user, token, detail from ledger.event").fetchall()
    ((event, actor, reason, user, token, detail),) = rows
    assert (event, actor, reason, user) == ("recovered", "dana", "INC-7", "ledger_operator")
    assert token == (None if nothing_lost else last_drawn(admin))
    assert (detail["outcome"], detail["timeline"], detail["known_timeline"]) == (outcome, "00000001", "FFFFFFFF")


def test_a_dump_that_was_restored_elsewhere_is_recovered_too(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    as_ledger_fn(admin, "update ledger.server set system_identifier = 7, started_at = started_at - interval '1 day'")

    assert operators.recover_failover(**WHO) == "recovered"
    activated(ledger)


def test_a_sequence_behind_a_barrier_is_lifted_and_nobody_is_fenced_out(
    ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    moved_here = token + 1_000_000_000
    as_ledger_fn(admin, "update ledger.fence set barrier = %s", [moved_here])
    with raised("LG106"):
        drawn(ledger)

    assert operators.recover_failover(**WHO) == "acknowledged"
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"
    assert drawn(ledger) == moved_here + 2**20 + 1


def test_the_second_of_two_at_once_finds_nothing_to_do(connect: Connect, operator_dsn: str, admin: Connection) -> None:
    on_a_new_timeline(admin)
    first, second = connect(operator_dsn), connect(operator_dsn)
    with first.transaction():
        assert Ledger(first).recover_failover(**WHO) == "recovered"
        other = in_background(lambda: Ledger(second).recover_failover(**WHO))
        until(is_waiting(admin, second))

    assert other.result(5) == "nothing_to_do"


def test_not_knowing_whether_something_was_lost_counts_as_lost(
    connect: Connect, operator_dsn: str, ledger: Ledger, admin: Connection
) -> None:
    activated(ledger)
    on_a_new_timeline(admin)

    recovered = connect(operator_dsn).execute("select ledger.recover_failover(null, 'dana', 'INC-7')").fetchone()
    assert recovered == ("recovered",)
    assert admin.execute("select holder from ledger.fence").fetchall() == [("recovery",)]


def test_actor_and_reason_may_come_from_the_session(connect: Connect, operator_dsn: str, admin: Connection) -> None:
    on_a_new_timeline(admin)
    operator = connect(operator_dsn)
    operator.execute("set ledger.actor = 'dana'")
    operator.execute("set ledger.reason = 'INC-7'")

    assert Ledger(operator).recover_failover() == "recovered"
    assert admin.execute("select actor, reason from ledger.event").fetchall() == [("dana", "INC-7")]


@pytest.mark.parametrize("who", [{}, {"actor": "dana"}, {"reason": "INC-7"}, {"actor": " ", "reason": "INC-7"}])
@pytest.mark.parametrize("needed", [False, True], ids=["known server", "new timeline"])
def test_recovery_needs_somebody_and_a_reason(
    operators: Ledger, admin: Connection, who: dict[str, Any], needed: bool
) -> None:
    if needed:
        on_a_new_timeline(admin)
    with refused("LG304", admin) as refusal:
        operators.recover_failover(**who)

    assert refusal.tells(
        function="recover_failover",
        reason="actor and reason are needed, as arguments or as ledger.actor and ledger.reason",
    )
    assert refusal.message == f"recover_failover refused: {refusal.detail['reason']}; nothing was changed"


def test_a_worker_may_not_recover(ledger: Ledger, admin: Connection) -> None:
    on_a_new_timeline(admin)

    with raised("42501"):
        ledger.recover_failover(**WHO)
