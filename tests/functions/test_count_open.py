"""count_open: what is left to do for a merchant, and which of it a token could claim."""

from __future__ import annotations

from typing import Any

import psycopg

from ledger.client import Ledger
from ledger.records import OpenCount
from tests.conftest import Connect
from tests.story import BOB, MERCHANT, activated, added, in_state

Connection = psycopg.Connection[Any]


def counted(ledger: Ledger, token: int | None = None) -> list[tuple[str, bool, int]]:
    return [(row.state, row.is_claimable, row.refunds) for row in ledger.count_open(MERCHANT, token)]


def test_a_merchant_without_refunds_has_nothing_open(ledger: Ledger) -> None:
    assert ledger.count_open(MERCHANT) == []


def test_pending_refunds_are_claimable_with_and_without_a_token(ledger: Ledger) -> None:
    added(ledger, "r_1", "r_2")
    assert ledger.count_open(MERCHANT) == [OpenCount("pending", True, 2)]
    assert counted(ledger, activated(ledger)) == [("pending", True, 2)]


def test_what_a_token_claimed_is_claimable_by_a_newer_one_alone(ledger: Ledger, admin: Connection) -> None:
    older = activated(ledger)
    in_state("sending", "r_1", older, ledger, admin)
    in_state("unknown", "r_2", older, ledger, admin)

    assert counted(ledger, older) == [("sending", False, 1), ("unknown", False, 1)]
    assert counted(ledger) == [("sending", False, 1), ("unknown", False, 1)]
    assert counted(ledger, activated(ledger, BOB)) == [("sending", True, 1), ("unknown", True, 1)]


def test_one_state_is_counted_apart_where_only_some_of_it_is_claimable(ledger: Ledger, admin: Connection) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)
    newer = activated(ledger, BOB)
    in_state("sending", "r_2", newer, ledger, admin)

    assert counted(ledger, newer) == [("sending", False, 1), ("sending", True, 1)]


def test_accepted_and_review_are_open_and_no_claimers(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    in_state("accepted", "r_1", token, ledger, admin)
    in_state("review", "r_2", token, ledger, admin)

    assert counted(ledger, activated(ledger, BOB)) == [("accepted", False, 1), ("review", False, 1)]


def test_finished_refunds_and_other_merchants_are_not_counted(ledger: Ledger, admin: Connection) -> None:
    token = activated(ledger)
    for state in ("sent", "failed"):
        in_state(state, f"r_{state}", token, ledger, admin)
    added(ledger, "r_1", merchant_id="m_2")

    assert ledger.count_open(MERCHANT, token) == []


def test_a_reader_may_count(connect: Connect, reader_dsn: str, ledger: Ledger) -> None:
    added(ledger, "r_1")
    assert counted(Ledger(connect(reader_dsn))) == [("pending", True, 1)]
