"""By hand for many at once: all that are in a state, counted and summed before the question."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from ledger.errors import Paused
from tests.commands.conftest import Cli
from tests.story import MERCHANT, activated, in_state, refund, unchanged

WHY = ("--reason", "ticket 91")


@pytest.fixture
def three(ledger: Ledger, admin: Any) -> None:
    """Two unknown refunds and one in review, under a dead worker's token."""
    token = activated(ledger)
    for refund_id, state in (("r_1", "unknown"), ("r_2", "unknown"), ("r_3", "review")):
        in_state(state, refund_id, token, ledger, admin)


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(("command", "to_state"), [("claim", "sending"), ("fail", "failed"), ("release", "unknown")])
def test_all_in_a_state(cli: Cli, admin: Any, command: str, to_state: str) -> None:
    said = cli(command, MERCHANT, "--all", "--state", "unknown", *WHY, "--yes", "-o", "json")

    assert said.code == 0, said.err
    assert [one["refund_id"] for one in said.json] == ["r_1", "r_2"]
    assert "2 refunds of m_1 that are unknown: 140.50 EUR" in said.err
    assert [refund(admin, one, "state") for one in ("r_1", "r_2", "r_3")] == [to_state, to_state, "review"]


@pytest.mark.usefixtures("three")
def test_it_asks_before_anything_is_done(cli: Cli, admin: Any) -> None:
    with unchanged(admin):
        said = cli("fail", MERCHANT, "--all", "--state", "unknown", "--state", "review", *WHY)
    assert said.code == 2
    assert "3 refunds of m_1 that are unknown or review: 210.75 EUR" in said.err
    assert "Record as failed 3 refunds, 210.75 EUR?" in said.err


@pytest.mark.usefixtures("three")
def test_one_bad_row_does_not_stop_the_rest(cli: Cli) -> None:
    said = cli("fail", MERCHANT, "--all", "--state", "unknown", "--state", "review", *WHY, "--yes", "-o", "json")
    assert said.code == 8
    assert [one["outcome"] for one in said.json] == ["failed", "failed", "LG204"]


@pytest.mark.usefixtures("three")
def test_a_dry_run_shows_without_asking(cli: Cli, admin: Any) -> None:
    with unchanged(admin):
        said = cli("fail", MERCHANT, "--all", "--state", "unknown", *WHY, "--dry-run")
    assert said.code == 0
    assert "140.50 EUR" in said.err


@pytest.mark.usefixtures("three")
def test_a_pause_in_the_middle_is_busy_and_the_rest_is_not_tried(
    cli: Cli, operators: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Ledger.claim_refund

    def paused_after_the_first(ledger: Ledger, *arguments: Any) -> Any:
        claim = real(ledger, *arguments)
        operators.pause("settle", "carol", "incident")
        return claim

    monkeypatch.setattr(Ledger, "claim_refund", paused_after_the_first)
    said = cli("claim", MERCHANT, "r_1", "r_2", "r_3", *WHY, "-o", "json")

    assert said.code == 6
    assert [one["outcome"] for one in said.json] == ["taken_over", Paused.code, "not_tried"]
