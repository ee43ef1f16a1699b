"""The runs with real faults find a fault, say how to meet it again, and miss nothing that they should have met."""

from __future__ import annotations

import re

import pytest

from ledger import dev
from tests.proof.chaos import sometimes
from tests.proof.chaos.controls import no_keys
from tests.proof.chaos.report import REPLAY, failures, table
from tests.proof.chaos.runs import run
from tests.proof.chaos.scenario import Scenario, scenarios
from tests.proof.chaos.world import Stage
from tests.proof.parts import CHECKOUT


@pytest.fixture(scope="module")
def stage(servers: dev.Servers) -> Stage:
    servers.start_postgres()
    servers.start_redis()
    return Stage(servers)


def test_a_run_breaks_something_and_everything_holds(stage: Stage) -> None:
    outcome = run(stage, scenarios()["worker-killed"], 1)

    assert outcome.breaches == []
    assert outcome.faults
    assert outcome.movements
    assert any("A is killed" in line for line in outcome.story)


def test_a_run_without_idempotency_keys_is_a_double_send_and_says_how_to_see_it_again(stage: Stage) -> None:
    outcome = run(stage, Scenario("no-keys", "", no_keys), 1)

    assert any(breach.startswith("I1: money moved 2 times for r_") for breach in outcome.breaches)
    assert all(failure.endswith(REPLAY.format("no-keys", 1)) for failure in failures([outcome]))


def test_a_scenario_that_fails_in_itself_is_a_failure_and_never_passes(stage: Stage) -> None:
    def breaks_down(_: object) -> None:
        raise RuntimeError("nothing was tried")

    outcome = run(stage, Scenario("breaks-down", "", breaks_down), 1)
    assert "nothing was tried" in outcome.breaches[0]


def test_what_never_happened_is_named() -> None:
    legal: set[tuple[str | None, str]] = {("pending", "sending"), ("sending", "sent")}
    seen = sometimes.codes() - {"LG101"}
    missing = sometimes.missing(seen, {("pending", "sending")}, legal, sometimes.BRANCHES[1:])

    assert missing == [
        "no call was refused with LG101",
        "no refund went from sending to sent",
        f"never: {sometimes.BRANCHES[0]}",
    ]
    assert sometimes.missing(sometimes.codes(), legal, legal, sometimes.BRANCHES) == []


def test_every_code_of_the_page_of_errors_must_happen() -> None:
    assert {"LG101", "LG107", "LG204", "LG304", "55P03", "40001", "25P03"} <= sometimes.codes()


def test_the_page_lists_the_scenarios() -> None:
    page = (CHECKOUT / "docs" / "proof.md").read_text()
    section = page.partition("\n## Real faults\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `[a-z-]+` \| .* \|$", section, re.MULTILINE)
    assert listed == table(scenarios().values())[2:]
