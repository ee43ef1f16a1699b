"""Two real connections at once. Who has to wait is waited for in pg_stat_activity, never slept for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.errors import StaleToken
from tests.conftest import Connect
from tests.story import (
    ALICE,
    BOB,
    MERCHANT,
    RESOURCE,
    activated,
    added,
    balanced,
    in_background,
    is_waiting,
    journal,
    raised,
    refund,
    unchanged,
    until,
)

Connection = psycopg.Connection[Any]


@pytest.fixture
def token(ledger: Ledger) -> int:
    return activated(ledger)


# Two claims on one row


def test_of_two_claims_on_one_row_the_second_waits_and_is_told_it_had_it_already(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    with connection.transaction():
        assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"
        second = in_background(lambda: rivals.claim_refund(MERCHANT, "r_1", token))
        until(is_waiting(admin, rival))
    assert second.result(5).outcome == "reclaimed"
    assert refund(admin, "r_1", "attempts", "maybe_sent") == (1, True)
    assert balanced(ledger)


def test_when_the_first_claim_rolls_back_the_second_is_the_first(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    with connection.transaction(force_rollback=True):
        ledger.claim_refund(MERCHANT, "r_1", token)
        second = in_background(lambda: rivals.claim_refund(MERCHANT, "r_1", token))
        until(is_waiting(admin, rival))
    assert second.result(5).outcome == "claimed"
    assert refund(admin, "r_1", "attempts", "maybe_sent") == (1, False)


def test_sessions_under_one_token_never_get_one_row_twice(
    ledger: Ledger, connect: Connect, token: int, admin: Connection
) -> None:
    ids = [f"r_{n:03}" for n in range(200)]
    ledger.add_refunds(MERCHANT, ids, [1] * 200, ["EUR"] * 200)
    start = threading.Barrier(4)

    def claim_them_all(mine: Ledger) -> list[str]:
        start.wait(5)
        got: list[str] = []
        for _ in range(200):
            if not admin_sees_pending():
                break
            got += [claim.refund_id for claim in mine.claim_refunds(MERCHANT, token, 3)]
        return got

    lock = threading.Lock()

    def admin_sees_pending() -> bool:
        with lock:
            return admin.execute("select from ledger.refund where state = 'pending' limit 1").rowcount > 0

    with ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(claim_them_all, [Ledger(connect()) for _ in range(4)]))
    assert sorted(refund_id for share in shares for refund_id in share) == ids
    assert admin.execute("select distinct attempts, maybe_sent from ledger.refund").fetchall() == [(1, False)]
    assert balanced(ledger)


def test_a_set_of_claims_passes_over_what_another_transaction_holds(
    ledger: Ledger, connection: Connection, rivals: Ledger, token: int
) -> None:
    added(ledger, *(f"r_{n}" for n in range(6)))
    with connection.transaction():
        mine = [claim.refund_id for claim in ledger.claim_refunds(MERCHANT, token, 3)]
        others = [claim.refund_id for claim in rivals.claim_refunds(MERCHANT, token, 10)]
        assert rivals.claim_refunds(MERCHANT, token, 10) == []
    assert (mine, others) == (["r_0", "r_1", "r_2"], ["r_3", "r_4", "r_5"])


# Confirm against takeover


def test_a_takeover_waits_for_a_confirm_that_is_under_way(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1", "r_2")
    ledger.claim_refunds(MERCHANT, token, 2)
    newer = rivals.draw_token(RESOURCE)
    with connection.transaction():
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
        takeover = in_background(lambda: rivals.activate_token(RESOURCE, newer, BOB))
        until(is_waiting(admin, rival))
    takeover.result(5)
    assert [claim.refund_id for claim in rivals.claim_refunds(MERCHANT, newer, 10)] == ["r_2"]
    assert refund(admin, "r_1", "state", "fence") == ("sent", token)


def test_a_confirm_that_comes_while_the_takeover_is_under_way_waits_and_is_refused(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    newer = rivals.draw_token(RESOURCE)
    with rival.transaction():
        rivals.activate_token(RESOURCE, newer, BOB)
        late = in_background(lambda: ledger.confirm_refund(MERCHANT, "r_1", token, "re_1"))
        until(is_waiting(admin, connection))
        assert rivals.claim_refund(MERCHANT, "r_1", newer).outcome == "taken_over"
    with raised("LG101") as refusal:
        late.result(5)
    assert refusal.tells(reason="superseded", token=token, active=newer, active_holder=BOB)
    assert refund(admin, "r_1", "state", "fence") == ("sending", newer)


def test_a_confirm_passes_when_the_takeover_rolls_back(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    newer = rivals.draw_token(RESOURCE)
    with rival.transaction(force_rollback=True):
        rivals.activate_token(RESOURCE, newer, BOB)
        late = in_background(lambda: ledger.confirm_refund(MERCHANT, "r_1", token, "re_1"))
        until(is_waiting(admin, connection))
    assert late.result(5).outcome == "confirmed"


def test_a_claim_and_a_confirm_of_one_row_wait_for_each_other(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    with connection.transaction():
        ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
        again = in_background(lambda: rivals.claim_refund(MERCHANT, "r_1", token))
        until(is_waiting(admin, rival))
    with raised("LG202") as refusal:
        again.result(5)
    assert refusal.tells(state="sent", gateway_ref="re_1")


@pytest.mark.parametrize("refs", [("re_1", "re_1"), ("re_1", "re_2")], ids=["same", "other"])
def test_of_two_confirms_at_once_one_is_recorded(
    refs: tuple[str, str], ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int,
    admin: Connection,
) -> None:  # fmt: skip
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    with connection.transaction():
        ledger.confirm_refund(MERCHANT, "r_1", token, refs[0])
        second = in_background(lambda: rivals.confirm_refund(MERCHANT, "r_1", token, refs[1]))
        until(is_waiting(admin, rival))
    if refs[0] == refs[1]:
        assert second.result(5).outcome == "already_confirmed"
    else:
        with raised("LG303"):
            second.result(5)
    assert [entry[1] for entry in journal(admin, "r_1")] == ["pending", "sending", "sent"]


def test_of_two_settlements_at_once_the_second_is_told_of_the_first(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    with connection.transaction():
        ledger.fail_refund(MERCHANT, "r_1", token, "card closed")
        second = in_background(lambda: rivals.mark_unknown(MERCHANT, "r_1", token, "timeout"))
        until(is_waiting(admin, rival))
    with raised("LG202") as refusal:
        second.result(5)
    assert refusal.tells(state="failed")
    assert [entry[1] for entry in journal(admin, "r_1")] == ["pending", "sending", "failed"]


def test_a_confirm_whose_reply_was_lost_is_recognised_after_a_takeover(
    ledger: Ledger, rivals: Ledger, token: int, admin: Connection
) -> None:
    added(ledger, "r_1", "r_2")
    ledger.claim_refunds(MERCHANT, token, 2)
    ledger.confirm_refund(MERCHANT, "r_1", token, "re_1")
    newer = activated(rivals, BOB)
    rivals.claim_refunds(MERCHANT, newer, 10)
    with unchanged(admin):
        assert ledger.confirm_refund(MERCHANT, "r_1", token, "re_1").outcome == "already_confirmed"
        assert ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])[0].outcome == "already_confirmed"
        with raised("LG101"):
            ledger.confirm_refund(MERCHANT, "r_2", token, "re_2")


def test_a_confirm_that_waited_for_its_own_lost_one_is_recognised_too(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", token)
    with connection.transaction():
        ledger.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"])
        again = in_background(lambda: rivals.confirm_refunds(MERCHANT, token, ["r_1"], ["re_1"]))
        until(is_waiting(admin, rival))
    assert [row.outcome for row in again.result(5)] == ["already_confirmed"]


# Adding the same refund twice at once


def test_the_same_refund_added_twice_at_once_is_there_once(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, admin: Connection
) -> None:
    with connection.transaction():
        added(ledger, "r_1")
        second = in_background(lambda: rivals.add_refund(MERCHANT, "r_1", 7025, "EUR"))
        until(is_waiting(admin, rival))
    assert second.result(5).outcome == "already"
    assert len(journal(admin, "r_1")) == 1


def test_when_the_first_rolls_back_the_second_is_added(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, admin: Connection
) -> None:
    with connection.transaction(force_rollback=True):
        added(ledger, "r_1")
        second = in_background(lambda: rivals.add_refund(MERCHANT, "r_1", 7025, "EUR"))
        until(is_waiting(admin, rival))
    assert second.result(5).outcome == "added"
    assert len(journal(admin, "r_1")) == 1


def test_with_other_content_the_second_is_refused(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, admin: Connection
) -> None:
    with connection.transaction():
        added(ledger, "r_1")
        second = in_background(lambda: rivals.add_refund(MERCHANT, "r_1", 1, "EUR"))
        until(is_waiting(admin, rival))
    with raised("LG301"):
        second.result(5)


def test_in_sets_too(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, admin: Connection
) -> None:
    with connection.transaction():
        ledger.add_refunds(MERCHANT, ["r_1", "r_2"], [1, 2], ["EUR"] * 2)
        second = in_background(lambda: rivals.add_refunds(MERCHANT, ["r_2", "r_3", "r_1"], [2, 3, 9], ["EUR"] * 3))
        until(is_waiting(admin, rival))
    assert [row.outcome for row in second.result(5)] == ["already", "added", "LG301"]
    assert balanced(ledger)


def test_adding_again_does_not_wait_for_a_refund_that_is_being_moved(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int
) -> None:
    added(ledger, "r_1")
    rival.execute("set statement_timeout = '2s'")
    with connection.transaction():
        ledger.claim_refund(MERCHANT, "r_1", token)
        assert rivals.add_refund(MERCHANT, "r_1", 7025, "EUR").outcome == "already"
        assert rivals.add_refunds(MERCHANT, ["r_1"], [7025], ["EUR"])[0].outcome == "already"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_under_the_stricter_levels_the_second_is_told_to_try_again(
    level: str, ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, admin: Connection
) -> None:
    rival.execute(f"set default_transaction_isolation = '{level}'".encode())
    with connection.transaction():
        added(ledger, "r_1")
        second = in_background(lambda: rivals.add_refund(MERCHANT, "r_1", 7025, "EUR"))
        until(is_waiting(admin, rival))
    with raised("40001"):
        second.result(5)
    assert rivals.add_refund(MERCHANT, "r_1", 7025, "EUR").outcome == "already"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_under_the_stricter_levels_another_resources_activation_is_nobodys_business(
    level: str, ledger: Ledger, connection: Connection, rivals: Ledger, token: int
) -> None:
    activated(rivals, resource="settle:m_2")
    added(ledger, "r_1")
    connection.execute(f"set default_transaction_isolation = '{level}'".encode())
    with connection.transaction():
        connection.execute("select from ledger.fence")  # the snapshot is from here
        activated(rivals, resource="settle:m_2")
        assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


# Crossing batches


def test_batches_that_cross_do_not_deadlock(ledger: Ledger, connect: Connect, token: int, admin: Connection) -> None:
    ids = [f"r_{n:02}" for n in range(40)]
    start = threading.Barrier(2)

    def there_and_back(mine: Ledger, order: list[str]) -> set[str]:
        outcomes: set[str] = set()
        for round_ in range(10):
            names = [f"{round_}_{name}" for name in order]
            start.wait(5)
            outcomes |= {row.outcome for row in mine.add_refunds(MERCHANT, names, [1] * 40, ["EUR"] * 40)}
            start.wait(5)
            mine.claim_refunds(MERCHANT, token, 40, f"{round_}_")
            start.wait(5)
            refs = [f"re_{name}" for name in names]
            outcomes |= {row.outcome for row in mine.confirm_refunds(MERCHANT, token, names, refs)}
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        forth = pool.submit(there_and_back, Ledger(connect()), ids)
        back = pool.submit(there_and_back, Ledger(connect()), ids[::-1])
        both = forth.result(30) | back.result(30)
    assert both == {"added", "already", "confirmed", "already_confirmed"}
    assert admin.execute("select state, count(*) from ledger.refund group by 1").fetchall() == [("sent", 400)]
    assert balanced(ledger)


def test_confirms_in_crossed_order_lock_their_rows_in_one(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    ids = [f"r_{n}" for n in range(5)]
    added(ledger, *ids)
    ledger.claim_refunds(MERCHANT, token, 5)
    with admin.transaction():
        admin.execute("select from ledger.refund where refund_id = 'r_2' for update")
        forth = in_background(lambda: ledger.confirm_refunds(MERCHANT, token, ids, ids))
        until(is_waiting(admin, connection))
        back = in_background(lambda: rivals.confirm_refunds(MERCHANT, token, ids[::-1], ids[::-1]))
        until(is_waiting(admin, rival))
    assert {row.outcome for row in forth.result(5)} == {"confirmed"}
    assert {row.outcome for row in back.result(5)} == {"already_confirmed"}


def test_refunds_added_in_crossed_order_are_inserted_in_one(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, connect: Connect, admin: Connection
) -> None:
    ids = [f"r_{n}" for n in range(5)]
    between = connect()
    with between.transaction(force_rollback=True):
        added(Ledger(between), "r_2")
        forth = in_background(lambda: ledger.add_refunds(MERCHANT, ids, [1] * 5, ["EUR"] * 5))
        until(is_waiting(admin, connection))
        back = in_background(lambda: rivals.add_refunds(MERCHANT, ids[::-1], [1] * 5, ["EUR"] * 5))
        until(is_waiting(admin, rival))
    assert {row.outcome for row in forth.result(5)} == {"added"}
    assert {row.outcome for row in back.result(5)} == {"already"}


def test_crossed_single_calls_in_two_transactions_end_with_one_deadlock_error_and_nothing_wrong(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1", "r_2")

    holds, goes_on = threading.Event(), threading.Event()

    def crossed() -> str:
        with rival.transaction():
            rivals.claim_refund(MERCHANT, "r_2", token)
            holds.set()
            assert goes_on.wait(5)
            return rivals.claim_refund(MERCHANT, "r_1", token).outcome

    other = in_background(crossed)
    assert holds.wait(5)
    codes = []
    try:
        with connection.transaction():
            ledger.claim_refund(MERCHANT, "r_1", token)
            goes_on.set()
            until(is_waiting(admin, rival))
            ledger.claim_refund(MERCHANT, "r_2", token)
    except psycopg.Error as error:
        codes.append(error.sqlstate)
    try:
        other.result(5)
    except psycopg.Error as error:
        codes.append(error.sqlstate)
    assert codes == ["40P01"]
    assert balanced(ledger)


# A transaction whose commit was in doubt


def test_a_transaction_repeated_under_its_own_token_runs_twice(
    ledger: Ledger, connection: Connection, rivals: Ledger, token: int, admin: Connection
) -> None:
    """Why only single calls may be repeated under one token: nothing here tells the two apart."""
    added(ledger, "r_1", "r_2", "r_3", "r_4")
    with connection.transaction():
        orphan = [claim.refund_id for claim in ledger.claim_refunds(MERCHANT, token, 2)]
        # The client thinks that it failed, and repeats it on a new connection.
        repeated = [claim.refund_id for claim in rivals.claim_refunds(MERCHANT, token, 2)]
    assert (orphan, repeated) == (["r_1", "r_2"], ["r_3", "r_4"])


def test_repeated_under_a_new_token_it_waits_for_the_orphan_and_sees_what_it_did(
    ledger: Ledger, connection: Connection, rivals: Ledger, rival: Connection, token: int, admin: Connection
) -> None:
    added(ledger, "r_1", "r_2", "r_3", "r_4")
    newer = rivals.draw_token(RESOURCE)
    with connection.transaction():
        ledger.claim_refunds(MERCHANT, token, 2)
        waiting = in_background(lambda: rivals.activate_token(RESOURCE, newer, ALICE))
        until(is_waiting(admin, rival))
    waiting.result(5)
    claims = rivals.claim_refunds(MERCHANT, newer, 2)
    assert [(claim.refund_id, claim.outcome) for claim in claims] == [("r_1", "taken_over"), ("r_2", "taken_over")]
    with pytest.raises(StaleToken):
        ledger.claim_refunds(MERCHANT, token, 2)


def test_an_orphan_that_has_not_begun_to_write_is_fenced_out(
    ledger: Ledger, connection: Connection, rivals: Ledger, token: int, admin: Connection
) -> None:
    added(ledger, "r_1")
    with raised("LG101"), connection.transaction():
        connection.execute("select count(*) from ledger.refund")
        activated(rivals, BOB)
        ledger.claim_refunds(MERCHANT, token, 1)
    assert refund(admin, "r_1", "state") == "pending"
