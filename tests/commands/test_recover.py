"""`ledger recover`: going on after a promotion or a restore."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from tests.commands.conftest import Cli
from tests.story import MERCHANT, RESOURCE, activated, added, on_a_new_timeline, refund, unchanged

WHY = ("--reason", "db-2 promoted", "--actor", "carol", "--yes")


def test_nothing_passes_until_it_has_run(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    activated(ledger)
    on_a_new_timeline(admin)
    refused = cli("claim", MERCHANT, "r_1", *WHY)
    assert refused.code == 3
    assert "LG106" in refused.err or "promoted or restored" in refused.err

    said = cli("recover", "failover", *WHY, "-o", "json")

    assert said.code == 0, said.err
    assert (said.json["outcome"], said.json["ask_first"]) == ("recovered", 1)
    assert "every holder is fenced out, open refunds are asked about first" in said.err
    assert cli("claim", MERCHANT, "r_1", *WHY, "-o", "json").json[0]["outcome"] == "taken_over"


def test_a_planned_switchover_is_acknowledged(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    token = activated(ledger)
    on_a_new_timeline(admin)

    said = cli("recover", "failover", "--nothing-lost", *WHY, "-o", "json")

    assert (said.code, said.json["outcome"], said.json["ask_first"]) == (0, "acknowledged", 0)
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"


def test_again_there_is_nothing_to_do(cli: Cli) -> None:
    said = cli("recover", "failover", *WHY, "-o", "json")
    assert (said.code, said.json["outcome"]) == (0, "nothing_to_do")


def test_a_dry_run_tells_and_changes_nothing_but_the_next_number(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    activated(ledger)
    on_a_new_timeline(admin)
    with unchanged(admin):
        said = cli("recover", "failover", "--reason", "why", "--dry-run", "-o", "json")
    assert (said.code, said.json["outcome"]) == (0, "recovered")
    assert said.err.startswith("dry run: rolled back, nothing was changed\n")
    assert refund(admin, "r_1", "maybe_sent") is False


def test_it_asks_and_needs_a_reason(cli: Cli, admin: Any) -> None:
    on_a_new_timeline(admin)
    with unchanged(admin):
        assert cli("recover", "failover", "--yes").code == 2
        said = cli("recover", "failover", "--reason", "why")
    assert said.code == 2
    assert "Fence out every holder and mark every open refund?" in said.err


@pytest.mark.parametrize("words", [("failover",), ("setting", "lift")], ids=str)
def test_who_may_not_and_what_is_not_there(cli: Cli, dsn: str, empty_dsn: str, words: tuple[str, ...]) -> None:
    assert cli("recover", *words, *WHY, "--dsn", dsn).code == 4
    assert cli("recover", *words, *WHY, "--dsn", empty_dsn).code == 9


def test_the_setting_is_shown_and_changed(cli: Cli, ledger: Ledger, admin: Any) -> None:
    assert cli("recover", "setting", "-o", "json").json["failover"] == "hold"
    assert cli("recover", "setting", "lift").code == 2
    assert cli("recover", "setting", "lift", *WHY, "--dry-run").code == 0
    assert cli("recover", "setting", "-o", "json").json["failover"] == "hold"

    assert cli("recover", "setting", "lift", *WHY, "-o", "json").json["failover"] == "lift"

    added(ledger, "r_1")
    activated(ledger)
    on_a_new_timeline(admin)
    assert cli("claim", MERCHANT, "r_1", *WHY, "-o", "json").json[0]["outcome"] == "taken_over"
    holders = admin.execute("select holder from ledger.fence where resource = %s", [RESOURCE]).fetchone()
    assert holders != ("recovery",)
