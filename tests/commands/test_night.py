"""Every state that a fault can leave behind, and the way out: with the command line alone, then with psql alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ledger import dev
from ledger.client import Ledger
from ledger.sandbox import SandboxControl, SandboxProcess
from tests.commands.conftest import Cli
from tests.story import ALICE, MERCHANT, RESOURCE, activated, on_a_new_timeline, refund

WHY = ("--reason", "ticket 91", "--actor", "carol", "--yes")


@dataclass(frozen=True, slots=True)
class Night:
    """A refund, its worker, and its gateway, which is about to misbehave."""

    cli: Cli
    ledger: Ledger
    admin: psycopg.Connection[Any]
    gateway: SandboxProcess
    control: SandboxControl
    key: str

    def settle(self, fault: str | None = None, times: int = 1) -> None:
        """A worker's batch, against a gateway with a fault."""
        if fault:
            self.control.plan(self.key, fault, times)
        self.cli("settle", MERCHANT, "--gateway", self.gateway.url, "--timeout", "2")

    def claim(self) -> int:
        """A worker claims it and dies."""
        token = activated(self.ledger)
        self.ledger.claim_refund(MERCHANT, "r_1", token)
        return token

    @property
    def state(self) -> str:
        """Where the refund stands."""
        return str(refund(self.admin, "r_1", "state"))


@pytest.fixture
def night(cli: Cli, ledger: Ledger, admin: Any, gateway: SandboxProcess) -> Iterator[Night]:
    """A pending refund, under a key that no other test uses."""
    key = f"{uuid4()}/r_1"
    ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", idempotency_key=key)
    with SandboxControl(gateway.url) as control:
        yield Night(cli, ledger, admin, gateway, control, key)


def nothing_happened(night: Night) -> None:
    assert night.state == "pending"


def the_worker_died(night: Night) -> None:
    night.claim()


def the_reply_was_lost(night: Night) -> None:
    night.settle("drop_reply")


def the_final_word_is_to_come(night: Night) -> None:
    night.settle("accept")


def every_attempt_failed(night: Night) -> None:
    for _ in range(5):
        night.ledger.mark_unknown(MERCHANT, "r_1", night.claim(), "timeout")
    night.settle()


def the_gateway_has_forgotten(night: Night) -> None:
    night.claim()
    night.cli("kind", "set", "settle", "--key-window", "1ms", *WHY)
    night.settle()
    night.cli("kind", "set", "settle", "--key-window", "23h", *WHY)


def it_was_taken_over_and_given_back(night: Night) -> None:
    night.claim()
    night.ledger.release_refund(MERCHANT, "r_1", night.claim(), "shutting down")


def it_was_sent(night: Night) -> None:
    night.settle()


def it_was_declined(night: Night) -> None:
    night.settle("decline")


Fault = Callable[[Night], None]

FAULTS: dict[str, tuple[Fault, str]] = {
    "nothing": (nothing_happened, "pending"),
    "died": (the_worker_died, "sending"),
    "lost reply": (the_reply_was_lost, "unknown"),
    "given back": (it_was_taken_over_and_given_back, "unknown"),
    "accepted": (the_final_word_is_to_come, "accepted"),
    "attempts": (every_attempt_failed, "review"),
    "forgotten": (the_gateway_has_forgotten, "review"),
    "sent": (it_was_sent, "sent"),
    "declined": (it_was_declined, "failed"),
}

# What a person types, and where that leads.
BY_CLI: list[tuple[str, list[str], str]] = [
    ("nothing", ["cancel"], "cancelled"),
    ("nothing", ["review", "requeue --not-at-gateway", "confirm --gateway-ref re_1"], "sent"),
    ("nothing", ["review", "cancel"], "cancelled"),
    ("died", ["confirm --gateway-ref re_1"], "sent"),
    ("died", ["fail"], "failed"),
    ("died", ["unknown", "review", "resolve --to returned --evidence seen"], "returned"),
    ("died", ["release", "confirm --gateway-ref re_1"], "sent"),
    ("lost reply", ["confirm --gateway GATEWAY"], "sent"),
    ("lost reply", ["review", "resolve --to sent --gateway GATEWAY"], "sent"),
    ("given back", ["fail"], "failed"),
    ("accepted", ["resolve --to failed --evidence seen"], "failed"),
    ("accepted", ["unknown", "fail"], "failed"),
    ("accepted", ["review", "resolve --to failed --evidence seen"], "failed"),
    ("attempts", ["requeue --gateway GATEWAY", "SETTLE"], "sent"),
    ("attempts", ["resolve --to failed --evidence seen"], "failed"),
    ("forgotten", ["resolve --to pending --not-at-gateway", "SETTLE"], "sent"),
    ("sent", ["return --evidence seen"], "returned"),
    ("declined", [], "failed"),
]


@pytest.mark.parametrize(("fault", "typed", "end"), BY_CLI, ids=lambda value: str(value)[:60])
def test_out_of_every_state_by_the_command_line(night: Night, fault: str, typed: list[str], end: str) -> None:
    happen, state = FAULTS[fault]
    happen(night)
    assert night.state == state

    for line in typed:
        name, *options = line.replace("GATEWAY", night.gateway.url).split()
        if name == "SETTLE":
            night.settle()
            continue
        said = night.cli(name, MERCHANT, "r_1", *options, *WHY)
        assert said.code == 0, (line, said)

    assert night.state == end
    assert night.cli("stuck").code == 0
    assert night.cli("verify").code == 0
    assert len(night.control.movements(key=night.key).items) <= 1


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_fault_left_is_listed_until_it_is_put_right(night: Night, fault: str) -> None:
    happen, state = FAULTS[fault]
    happen(night)
    said = night.cli("stuck", "--accepted-after", "0", "-o", "json")
    expected = ["r_1"] if state in {"sending", "unknown", "accepted", "review"} else []
    assert [one["refund_id"] for one in said.json] == expected
    assert said.code == (10 if expected else 0)


PERSON = "set local ledger.actor = 'carol'; set local ledger.reason = 'ticket 91';"
BREAK = f"begin; {PERSON} select ledger.break_lease('{RESOURCE}', '{ALICE}') as token \\gset\n"
CLAIM = "select outcome from ledger.claim_refund('m_1', 'r_1', :token);\n"


def by_person(call: str) -> str:
    """A person's move."""
    return f"begin; {PERSON} select ledger.{call}; commit;\n"


def by_token(call: str) -> str:
    """A break, a claim and what settles it, in one transaction."""
    return f"{BREAK}{CLAIM}select ledger.{call}; commit;\n"


# The same without a lease: who breaks in fences a live holder out. A first claim is committed before it is settled,
# for it must be durable when the gateway is called; a takeover may share the transaction.
CONFIRM = "confirm_refund('m_1', 'r_1', :token, 're_1')"
SEEN = """evidence => '{"seen": true}'"""
ABSENT = """evidence => '{"not_at_gateway": true}'"""
BY_PSQL: list[tuple[str, str, str]] = [
    ("nothing", by_person("cancel_refund('m_1', 'r_1')"), "cancelled"),
    ("nothing", f"{BREAK}{CLAIM}commit;\n{by_person(CONFIRM)}", "sent"),
    ("nothing", by_person("review_refund('m_1', 'r_1')"), "review"),
    ("died", by_token(CONFIRM), "sent"),
    ("died", by_token("fail_refund('m_1', 'r_1', :token, 'declined')"), "failed"),
    ("died", by_token("mark_unknown('m_1', 'r_1', :token, 'no answer')"), "unknown"),
    ("lost reply", by_token(CONFIRM), "sent"),
    ("given back", by_person("review_refund('m_1', 'r_1')"), "review"),
    ("accepted", by_person(f"resolve_refund('m_1', 'r_1', 'failed', {SEEN})"), "failed"),
    ("attempts", by_person(f"requeue_refund('m_1', 'r_1', {ABSENT})"), "pending"),
    ("forgotten", by_person(f"resolve_refund('m_1', 'r_1', 'sent', 're_1', {SEEN})"), "sent"),
    ("sent", by_person(f"return_refund('m_1', 'r_1', {SEEN})"), "returned"),
]


@pytest.fixture
def psql(running: dev.Servers, operator_dsn: str) -> Callable[[str], str]:
    """An operator's psql, and nothing else."""

    def run(script: str) -> str:
        done = subprocess.run(
            [running.pg_bin / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", operator_dsn],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(("fault", "script", "end"), BY_PSQL, ids=lambda value: str(value)[-60:])
def test_out_of_every_state_by_psql(
    night: Night, psql: Callable[[str], str], fault: str, script: str, end: str
) -> None:
    happen, state = FAULTS[fault]
    happen(night)
    assert night.state == state

    psql(script)

    assert night.state == end
    assert psql("select count(*) from ledger.verify()") == "0\n"
    if end != state:
        ((actor, reason),) = night.admin.execute(
            "select actor, reason from ledger.journal order by number desc limit 1"
        ).fetchall()
        assert (actor, bool(reason)) == ("carol", True)


def test_a_first_claim_by_psql_is_not_settled_in_its_own_transaction(night: Night, psql: Callable[[str], str]) -> None:
    with pytest.raises(AssertionError, match="its claim is part of this same transaction"):
        psql(f"{BREAK}{CLAIM}select ledger.confirm_refund('m_1', 'r_1', :token, 're_1'); commit;")
    assert night.state == "pending"


def test_psql_pauses_resumes_and_recovers(night: Night, psql: Callable[[str], str]) -> None:
    psql(by_person("pause('settle')"))
    assert night.cli("claim", MERCHANT, "r_1", *WHY).code == 6
    psql(by_person("resume('settle')"))
    assert night.cli("claim", MERCHANT, "r_1", *WHY).code == 0
    on_a_new_timeline(night.admin)
    psql(by_person("set_failover('lift')"))
    psql(by_person("recover_failover()"))
    assert refund(night.admin, "r_1", "maybe_sent") is True


def test_psql_is_refused_without_actor_and_reason(night: Night, psql: Callable[[str], str]) -> None:
    for call in (
        "ledger.cancel_refund('m_1', 'r_1')",
        "ledger.pause('settle')",
        f"ledger.break_lease('{RESOURCE}', '{ALICE}')",
        "ledger.recover_failover()",
    ):
        with pytest.raises(AssertionError, match="actor and reason are needed"):
            psql(f"select {call};")
    assert night.state == "pending"
