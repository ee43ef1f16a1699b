"""`-o json` has one shape per command: docs/cli.schemas.json, which programs may rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # its stubs are another package

from ledger.client import Ledger
from ledger.sandbox import SandboxProcess
from tests.commands.conftest import Cli
from tests.story import ALICE, MERCHANT, RESOURCE, activated, added, as_ledger_fn, in_state, on_a_new_timeline

SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "cli.schemas.json").read_text())["commands"]
WHY = ("--reason", "ticket 91", "--yes")
SEEN = ("--evidence", "seen")

# What a person types to have each command answer about a refund in a state.
TYPED: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "show": [(state, ("r_1",)) for state in ("pending", "sending", "review", "sent", "returned")],
    "list": [("sent", ())],
    "history": [("sent", ("r_1",)), ("unknown", ("r_1",))],
    "verify": [("sent", ())],
    "claim": [("pending", ("r_1",)), ("unknown", ("r_1",))],
    "confirm": [("pending", ("r_1", "--gateway-ref", "re_r_1")), ("sent", ("r_1", "--gateway-ref", "re_r_1"))],
    "fail": [("sending", ("r_1",)), ("failed", ("r_1", "r_9"))],
    "release": [("pending", ("r_1",)), ("sending", ("r_1", "r_9"))],
    "unknown": [("sending", ("r_1",)), ("sent", ("r_1", "r_9"))],
    "stuck": [("sending", ()), ("unknown", ()), ("review", ()), ("accepted", ("--accepted-after", "0"))],
    "why": [("pending", ("r_1",)), ("sending", ("r_1",)), ("sent", ("r_1",)), ("returned", ("r_1",))],
    "resolve": [("review", ("r_1", "--to", "sent", "--gateway-ref", "re_r_1", *SEEN))],
    "requeue": [("review", ("r_1", "r_9", "--not-at-gateway"))],
    "cancel": [("pending", ("r_1",))],
    "review": [("unknown", ("r_1",))],
    "return": [("sent", ("r_1", *SEEN))],
}
WITHOUT_REASON = {"show", "list", "history", "verify", "stuck", "why"}


def fits(command: str, answer: Any) -> None:
    """The answer has the shape that is written down, and nothing else."""
    problems = [error.message for error in Draft202012Validator(SCHEMAS[command]).iter_errors(answer)]
    assert problems == []


@pytest.mark.parametrize(("command", "typed"), [(name, one) for name, calls in TYPED.items() for one in calls], ids=str)
def test_what_a_command_about_refunds_answers(
    cli: Cli, ledger: Ledger, admin: Any, command: str, typed: tuple[str, tuple[str, ...]]
) -> None:
    state, words = typed
    in_state(state, "r_1", activated(ledger), ledger, admin)
    said = cli(command, MERCHANT, *words, *(() if command in WITHOUT_REASON else WHY), "-o", "json")
    assert said.out, said.err
    fits(command, said.json)


def test_a_finding_of_verify(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    as_ledger_fn(admin, "update ledger.refund set amount_minor = 1")
    fits("verify", cli("verify", "-o", "json").json)


def test_settling(cli: Cli, refund: str, gateway: SandboxProcess) -> None:
    assert refund
    fits("settle", cli("settle", MERCHANT, "--gateway", gateway.url, "-o", "json").json)


Prepare = Callable[[Ledger, Any], None]

OTHERS: dict[str, tuple[Prepare, list[tuple[str, ...]]]] = {
    "pause": (lambda _, __: None, [("pause", "settle", *WHY), ("pause",)]),
    "resume": (lambda _, __: None, [("resume", "settle", *WHY)]),
    "recover failover": (
        lambda _, admin: on_a_new_timeline(admin),
        [("recover", "failover", *WHY), ("recover", "failover", *WHY)],
    ),
    "recover setting": (lambda _, __: None, [("recover", "setting"), ("recover", "setting", "lift", *WHY)]),
    "export": (lambda ledger, _: added(ledger, "r_1"), [("export", "--from", "2020-01-01", "--to", "2099-01-01")]),
    "kind list": (lambda _, __: None, [("kind", "list")]),
    "kind set": (lambda _, __: None, [("kind", "set", "settle", "--max-attempts", "7", *WHY)]),
    "lease list": (lambda ledger, _: void(activated(ledger)), [("lease", "list")]),
    "lease show": (lambda ledger, _: void(activated(ledger)), [("lease", "show", RESOURCE)]),
    "lease break": (
        lambda ledger, _: void(activated(ledger)),
        [("lease", "break", RESOURCE, "--holder", ALICE, *WHY)],
    ),
    "db current": (lambda _, __: None, [("db", "current")]),
}


def void(_: object) -> None:
    """For what is done for its effect alone."""


@pytest.mark.parametrize("command", OTHERS)
def test_what_the_others_answer(cli: Cli, ledger: Ledger, admin: Any, command: str) -> None:
    prepare, calls = OTHERS[command]
    prepare(ledger, admin)
    for words in calls:
        said = cli(*words, "-o", "json")
        assert said.out, said.err
        fits(command, said.json)


def test_each_schema_is_one_and_each_is_tried() -> None:
    assert set(SCHEMAS) == set(TYPED) | set(OTHERS) | {"settle"}
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
