"""`-o json` has one shape per command: docs/cli.schemas.json, which programs may rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # its stubs are another package

from ledger import demo, dev
from ledger.client import Ledger
from ledger.demo.acts import Result
from ledger.sandbox import Movements, SandboxProcess
from tests.commands.conftest import Cli
from tests.commands.test_usage import LEAVES
from tests.story import (
    ALICE,
    MERCHANT,
    RESOURCE,
    activated,
    added,
    as_ledger_fn,
    drawn,
    in_state,
    on_a_new_timeline,
)

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


@pytest.mark.parametrize("command", TYPED)
def test_what_a_command_about_refunds_answers(cli: Cli, ledger: Ledger, admin: Any, command: str) -> None:
    for number, (state, words) in enumerate(TYPED[command]):
        refund = f"r_{number}"
        in_state(state, refund, activated(ledger), ledger, admin)
        typed = [word.replace("r_1", refund) for word in words]
        said = cli(command, MERCHANT, *typed, *(() if command in WITHOUT_REASON else WHY), "-o", "json")
        assert said.out, said.err
        fits(command, said.json)


def test_a_finding_of_verify(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    as_ledger_fn(admin, "update ledger.refund set amount_minor = 1")
    fits("verify", cli("verify", "-o", "json").json)


def test_settling(cli: Cli, refund: str, gateway: SandboxProcess) -> None:
    assert refund
    fits("settle", cli("settle", MERCHANT, "--gateway", gateway.url, "-o", "json").json)


@pytest.mark.parametrize("command", ["history", "why"])
def test_a_story_with_refusals_and_a_broken_lease(
    cli: Cli, ledger: Ledger, operators: Ledger, admin: Any, command: str
) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)
    operators.break_lease(RESOURCE, ALICE, "carol", "ticket 91")
    drawn(ledger)
    assert cli("cancel", MERCHANT, "r_1", *WHY).code == 3
    story = cli(command, MERCHANT, "r_1", "-o", "json").json
    fits(command, story)
    told = json.dumps(story)
    assert "refused LG204 cancel_refund" in told
    assert ("lease of alice" in told) == (command == "why")


# The shop's own table, and a write to it that presents no token.
CHARGE = """
    create table charge (org_id text not null);
    select ledger.set_mode('charges', 'shadow', 'carol', 'roll-out');
    select ledger.protect_table('charge', kind => 'charges', column_name => 'org_id');
    insert into charge (org_id) values ('org_7');
"""

Prepare = Callable[[Ledger, Any], object]


def held(ledger: Ledger, _: Any) -> None:
    """A lease was given back."""
    ledger.record_hold("report:daily", activated(ledger, resource="report:daily"), timedelta(seconds=10), 3, 0)


def charged(_: Ledger, admin: Any) -> None:
    """A protected table under shadow, with a write that would have been refused."""
    with admin.transaction():
        admin.execute(CHARGE)


def finished(ledger: Ledger, admin: Any) -> None:
    """A refund that was settled long ago."""
    in_state("failed", "r_old", activated(ledger), ledger, admin)
    as_ledger_fn(admin, "update ledger.refund set changed_at = now() - interval '1 year' where refund_id = 'r_old'")


# In this order, on one database: what to prepare, and what a person types then.
OTHERS: dict[str, tuple[Prepare | None, list[tuple[str, ...]]]] = {
    "import": (None, [("import", "refunds.csv")]),
    "pause": (None, [("pause", "charges", *WHY), ("pause",)]),
    "resume": (None, [("resume", "charges", *WHY)]),
    "recover setting": (None, [("recover", "setting"), ("recover", "setting", "hold", *WHY)]),
    "export": (
        lambda ledger, _: added(ledger, "r_1"),
        [("export", "--from", "2020-01-01", "--to", "2099-01-01")],
    ),
    "kind list": (None, [("kind", "list")]),
    "kind set": (None, [("kind", "set", "settle", "--max-attempts", "7", *WHY)]),
    "mode set": (
        charged,
        [("mode", "set", "charges", "enforce", *WHY), ("mode", "set", "reports", "shadow", *WHY)],
    ),
    "mode list": (None, [("mode", "list")]),
    "refusals": (None, [("refusals",), ("refusals", "--totals")]),
    "lease list": (lambda ledger, _: activated(ledger), [("lease", "list")]),
    "lease show": (None, [("lease", "show", RESOURCE)]),
    "lease break": (None, [("lease", "break", RESOURCE, "--holder", ALICE, *WHY)]),
    "lease advise": (held, [("lease", "advise", "report")]),
    "archive": (finished, [("archive", "--older-than", "300d", *WHY)]),
    "prune": (None, [("prune", "--draws", "7d", *WHY),
                     ("prune", "--refusals", "90d", "--draws", "7d", "--events", "40d", "--work", "40d", *WHY)]),
    "metrics": (None, [("metrics",), ("metrics", "--verify-every", "1h")]),
    "doctor": (None, [("doctor",)]),
    "db current": (None, [("db", "current")]),
    "recover failover": (
        lambda _, admin: on_a_new_timeline(admin),
        [("recover", "failover", *WHY), ("recover", "failover", *WHY)],
    ),
}


def test_what_the_others_answer(cli: Cli, ledger: Ledger, admin: Any, tmp_path: Path) -> None:
    (tmp_path / "refunds.csv").write_text("merchant_id,refund_id,amount,currency\nm_3,r_1,70.25,EUR\n")
    for command, (prepare, calls) in OTHERS.items():
        if prepare is not None:
            prepare(ledger, admin)
        for words in calls:
            said = cli(*words, "-o", "json")
            assert said.out, (command, said.err)
            assert said.json, command
            fits(command, said.json)


def test_what_an_empty_database_answers(cli: Cli, empty_dsn: str) -> None:
    for command in ("db current", "doctor"):
        fits(command, cli(*command.split(), "--dsn", empty_dsn, "-o", "json").json)


def test_what_starts_servers_answers(nowhere: Cli, monkeypatch: pytest.MonkeyPatch, servers: dev.Servers) -> None:
    """The servers of the tests stand in for new ones; test_demo.py has a performance."""
    monkeypatch.setattr(dev, "up", lambda folder, pg: servers)
    performed = Result(1200, Movements(()), [{"code": "LG101", "token": 1, "active": 2}], ["sums: they differ"])
    monkeypatch.setattr(demo, "run", lambda pg, say: performed)
    for command in ("dev up", "demo"):
        fits(command, nowhere(*command.split(), "-o", "json").json)


# What has no data to print: SQL, a shell's line, words, or what another program prints.
WITHOUT_DATA = {
    "run", "gateway serve", "dev down", "dev env", "db upgrade", "db downgrade", "db sql", "db grants", "db docs",
}  # fmt: skip


def test_each_command_has_a_schema_that_is_tried_or_says_that_it_prints_no_data(nowhere: Cli) -> None:
    assert set(SCHEMAS) == set(TYPED) | set(OTHERS) | {"settle", "dev up", "demo", "reproduce"}
    assert set(SCHEMAS) | WITHOUT_DATA == set(LEAVES)
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    for command in WITHOUT_DATA:
        said = nowhere(*command.split(), "--help").out
        assert "With -o json its errors are JSON, and nothing else is." in " ".join(said.split()), command
        assert nowhere(*command.split(), "--nope", "-o", "json").error["exit_code"] == 2
