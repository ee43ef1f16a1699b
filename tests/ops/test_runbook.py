"""The runbook: each alarm's fault raises that alarm, and the commands of its page end it, with the output it shows.

LEDGER_WRITE_RUNBOOK=1 writes the output that the commands have now into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from psycopg import conninfo

from ledger import dev
from ledger.client import Ledger
from ledger.lease import Lease
from ledger.process_metrics import ProcessMetrics
from tests.commands.conftest import Cli
from tests.ops.conftest import CHECKOUT, Firing, alarms
from tests.settle.conftest import redis_proxy, server
from tests.story import activated, as_ledger_fn, limited, on_a_new_timeline, raised, until

pytestmark = pytest.mark.heavy

__all__ = ["redis_proxy", "server"]

PAGE = CHECKOUT / "docs/runbook.md"
WRITING = bool(os.environ.get("LEDGER_WRITE_RUNBOOK"))

MERCHANT, RESOURCE = "m_4471", "settle:m_4471"
DEAD, OTHER = "worker-2/731/5f0c3f9a1b2d4e67", "worker-5/88/c01dcafe00112233"
BLOCK = re.compile(r"^```console\n(.*?)^```\n", re.MULTILINE | re.DOTALL)

Connection = psycopg.Connection[Any]


# The page


def sections() -> dict[str, str]:
    """The pages of the runbook by their headings."""
    parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a block, and what the page says that they print."""
    steps: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif line.startswith("> ") and not steps[-1][1]:
            steps[-1] = (f"{steps[-1][0]}\n{line[2:]}", "")
        else:
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}{line}\n")
    return steps


TELLING = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00(?::00)?)?", "2026-11-29 03:12:07.184Z"),
    (r"[\w.-]+/\d+/[0-9a-f]{16}", "ops-1/4242/0123456789abcdef"),
    (r"\bsb_[0-9a-f]{16}\b", "sb_9f7cc69803708ff3"),
    (r"(127\.0\.0\.1):\d+", r"\1:40719"),
    (r"\bin \d+\.\d+s\b", "in 29.9s"),
    (r"for \d+\.\d s more", "for 29.9 s more"),
    (r"\b0000000\d\b", "00000002"),
)
"""What differs each time: times, holders, ports."""


def plain(text: str) -> str:
    """Output with everything that differs from run to run made alike."""
    for pattern, same in TELLING:
        text = re.sub(pattern, same, text)
    return "\n".join(re.sub(r"[ -]{2,}", " ", line).rstrip() for line in text.strip().splitlines())


def shown(text: str) -> str:
    """Output as the page has it: of this run, but with no machine's name."""
    for pattern, same in TELLING[1:]:
        text = re.sub(pattern, lambda it, same=same: it[0] if it[0] in (DEAD, OTHER) else it.expand(same), text)
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


@dataclass
class Shell:
    """Runs the commands of a page and compares what they print, or writes it down."""

    cli: Cli
    environment: dict[str, str]

    def run(self, section: str) -> None:
        page = sections()[section]
        assert BLOCK.search(page), "a page has commands"
        rewritten = BLOCK.sub(lambda block: f"```console\n{self._block(block[1])}```\n", page)
        if WRITING:
            PAGE.write_text(PAGE.read_text().replace(page, rewritten))

    def _block(self, block: str) -> str:
        lines = []
        for command, said in commands(block):
            told = self._run(command)
            assert WRITING or plain(told) == plain(said), command
            lines.append("$ " + command.replace("\n", "\n> ") + "\n" + shown(told))
        return "".join(lines)

    def _run(self, command: str) -> str:
        words = shlex.split(command.replace("\\\n", " "))
        if words[0] == "ledger":
            done = self.cli(*words[1:])
            return done.out + done.err + (f"[exit code {done.code}]\n" if done.code else "")
        result = subprocess.run(
            ["bash", "-c", command], env=self.environment, text=True, capture_output=True, check=False, timeout=30
        )
        return result.stdout + result.stderr


@pytest.fixture
def shell(
    cli: Cli, running: dev.Servers, operator_dsn: str, admin_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """A shell of the one on call, with psql on its path."""
    monkeypatch.setenv("LEDGER_ACTOR", "carol")
    place = conninfo.conninfo_to_dict(operator_dsn)
    environment = {
        **os.environ,
        "PATH": f"{running.pg_bin}:{os.environ['PATH']}",
        "PGHOST": str(place["host"]), "PGPORT": str(place["port"]), "PGDATABASE": str(place["dbname"]),
        "PGUSER": "ledger_operator", "PGTZ": "UTC", "PSQLRC": os.devnull, "PAGER": "cat", "OWNER_DSN": admin_dsn,
    }  # fmt: skip
    return Shell(cli, environment)


# The night


@dataclass
class Night:
    """What a fault needs, and what it leaves behind to be looked at."""

    ledger: Ledger
    operators: Ledger
    admin: Connection
    dsn: str
    redis_url: str
    redis_proxy: Any
    registry: CollectorRegistry
    shell: Shell
    leases: list[Lease] = field(default_factory=list)
    scrapes: list[str] = field(default_factory=list)

    def scrape(self) -> None:
        """A minute's numbers, of the database and of this process."""
        told = self.shell.cli("metrics", "--verify-every", "1h").out + generate_latest(self.registry).decode()
        # promtool's clock begins at zero.
        stamp = r"(?<=^ledger_verify_timestamp_seconds )\S+"
        self.scrapes.append(re.sub(stamp, lambda at: str(float(at[0]) - time.time()), told, flags=re.MULTILINE))

    def goes_by(self, minutes: float) -> None:
        """Everything on record becomes so much older."""
        times = {"refund": ("added_at", "first_claimed_at", "changed_at", "settled_at"), "journal": ("at",),
                 "event": ("at",), "refusal": ("at",), "fence": ("activated_at",)}  # fmt: skip
        for table, columns in times.items():
            self.admin.execute(f"grant update on ledger.{table} to ledger_fn")  # type: ignore[arg-type]
            older = ", ".join(f"{name} = {name} - make_interval(mins => {minutes})" for name in columns)
            as_ledger_fn(self.admin, f"update ledger.{table} set {older}")  # type: ignore[arg-type]

    def added(self, *refund_ids: str) -> None:
        for refund_id in refund_ids:
            self.ledger.add_refund(MERCHANT, refund_id, 7025, "EUR", payment_ref=f"pay_{refund_id[2:]}")

    def claimed(self, *refund_ids: str) -> int:
        """Refunds that a worker has claimed; it is gone by now, and its lease has ended."""
        self.added(*refund_ids)
        token = activated(self.ledger, DEAD, RESOURCE)
        self.ledger.claim_refunds(MERCHANT, token, 100)
        return token


@pytest.fixture
def night(
    ledger: Ledger, operators: Ledger, admin: Connection, dsn: str, redis_url: str, redis_proxy: Any, shell: Shell
) -> Iterator[Night]:
    registry = CollectorRegistry()
    counting = ProcessMetrics(registry).listen()
    night = Night(ledger, operators, admin, dsn, redis_url, redis_proxy, registry, shell)
    yield night
    redis_proxy.mode = "pass"
    for lease in night.leases:
        lease.release()
    counting.close()


# The faults, by the alarm that they raise. What each returns goes on between the page's commands and the last look.

Fault = Callable[[Night], Callable[[], object]]


def nothing() -> None:
    """The page's commands were all."""


def a_worker_died_in_mid_batch(night: Night) -> Callable[[], object]:
    night.claimed("r_815", "r_816")
    night.goes_by(20)
    return nothing


def the_gateway_gave_no_answer(night: Night) -> Callable[[], object]:
    token = night.claimed("r_815")
    night.ledger.mark_unknown(MERCHANT, "r_815", token, "no answer within 10 s")
    night.goes_by(45)
    return nothing


def the_gateway_never_said_its_final_word(night: Night) -> Callable[[], object]:
    token = night.claimed("r_815")
    night.ledger.accept_refund(MERCHANT, "r_815", token, "re_815")
    night.goes_by(25 * 60)
    return nothing


def the_gateway_sent_another_amount(night: Night) -> Callable[[], object]:
    token = night.claimed("r_815")
    night.ledger.confirm_refund(MERCHANT, "r_815", token, "re_815", {"amount_minor": 7052, "currency": "EUR"})
    night.goes_by(5 * 60)
    return nothing


def a_worker_does_not_take_no_for_an_answer(night: Night) -> Callable[[], object]:
    stale = night.claimed("r_815")
    activated(night.ledger, OTHER, RESOURCE)
    with psycopg.connect(night.dsn, autocommit=True, application_name="settle-nightly") as connection:
        deaf = Ledger(connection, refusals=connection)
        for _ in range(12):
            with raised("LG101"):
                deaf.claim_refunds(MERCHANT, stale, 10)
    # It is stopped where it runs, and the five minutes pass.
    return lambda: night.goes_by(6)


def two_workers_fight(night: Night) -> Callable[[], object]:
    for _ in range(4):
        activated(night.ledger, DEAD, RESOURCE)
        activated(night.ledger, OTHER, RESOURCE)

    def paused_so_neither_goes_on() -> None:
        night.goes_by(6)

    return paused_so_neither_goes_on


def redis_is_cut_off(night: Night) -> Callable[[], object]:
    limited(night.operators, idle=0.2)
    proxied = f"redis://{night.redis_proxy.host}:{night.redis_proxy.port}"
    lease = Lease(RESOURCE, db=night.dsn, redis=proxied, ttl=2, holder=DEAD).acquire()
    night.leases.append(lease)

    def renewals(outcome: str) -> float:
        labels = {"kind": "settle", "outcome": outcome}
        return night.registry.get_sample_value("ledger_lease_renewals_total", labels) or 0

    night.redis_proxy.mode = "refuse"
    for count in (1, 4):
        until(lambda count=count: renewals("failed") >= count)  # type: ignore[misc]
        night.scrape()
    night.redis_proxy.mode = "pass"
    until(lambda: renewals("on_time"))
    assert lease.lost is None

    def five_minutes_of_renewals() -> None:
        for _ in range(6):
            night.scrape()

    return five_minutes_of_renewals


def the_gateway_forgot_the_key(night: Night) -> Callable[[], object]:
    token = night.claimed("r_815")
    night.ledger.confirm_refund(MERCHANT, "r_815", token, "re_815")
    with psycopg.connect(night.dsn, autocommit=True) as connection, raised("LG303"):
        Ledger(connection, refusals=connection).confirm_refund(MERCHANT, "r_815", token, "re_999")
    return lambda: night.goes_by(6)


def a_standby_was_promoted(night: Night) -> Callable[[], object]:
    night.claimed("r_815")
    night.added("r_816")
    on_a_new_timeline(night.admin)
    return nothing


def a_standby_was_promoted_where_the_ledger_goes_on_alone(night: Night) -> Callable[[], object]:
    night.operators.set_failover("lift", "carol", "the managed service fails over by itself")
    a_standby_was_promoted(night)
    night.ledger.draw_token(RESOURCE)

    def an_hour_later() -> None:
        night.goes_by(61)
        night.scrapes.clear()

    return an_hour_later


def somebody_switched_a_guard_off(night: Night) -> Callable[[], object]:
    night.admin.execute("alter table ledger.refund disable trigger refund_is_guarded")
    return nothing


def verify_has_not_run(night: Night) -> Callable[[], object]:
    night.scrape()
    stamp = r"(?<=^ledger_verify_timestamp_seconds )\S+"
    night.scrapes[-1] = re.sub(stamp, "-200000", night.scrapes[-1], flags=re.MULTILINE)
    return nothing


FAULTS: dict[str, Fault] = {
    "LedgerRefundsStuck": a_worker_died_in_mid_batch,
    "LedgerRefundsUnknown": the_gateway_gave_no_answer,
    "LedgerRefundsAccepted": the_gateway_never_said_its_final_word,
    "LedgerRefundsInReview": the_gateway_sent_another_amount,
    "LedgerStaleWrites": a_worker_does_not_take_no_for_an_answer,
    "LedgerFenceFought": two_workers_fight,
    "LedgerRenewalsFailing": redis_is_cut_off,
    "LedgerMovedTwice": the_gateway_forgot_the_key,
    "LedgerRecoveryNeeded": a_standby_was_promoted,
    "LedgerRecoveredByItself": a_standby_was_promoted_where_the_ledger_goes_on_alone,
    "LedgerVerifyNotClean": somebody_switched_a_guard_off,
    "LedgerVerifyOld": verify_has_not_run,
}
TELLS_ITSELF = {"LedgerVerifyOld"}
"""Those whose fault is in the numbers themselves: another look would end it."""


@pytest.mark.parametrize("alarm", list(FAULTS))
def test_the_fault_raises_the_alarm_and_its_page_ends_it(alarm: str, night: Night, firing: Firing) -> None:
    night.scrape()
    assert firing(night.scrapes) == set()

    then = FAULTS[alarm](night)
    if alarm not in TELLS_ITSELF:
        night.scrape()
    assert alarm in firing(night.scrapes)

    night.shell.run(alarm)
    then()
    night.scrape()
    assert alarm not in firing(night.scrapes)


def test_every_alarm_has_its_page_and_every_page_that_is_named_exists() -> None:
    rules = (CHECKOUT / "docs/ops/ledger.rules.yml").read_text()
    anchors = re.findall(r"runbook: docs/runbook\.md#(\S+)", rules)
    assert anchors == [alarm.lower() for alarm in alarms()] == [alarm.lower() for alarm in FAULTS]
    assert set(alarms()) <= set(sections())


def test_promtool_accepts_the_rules_and_their_tests(promtool: Any) -> None:
    checked = promtool("check", "rules", CHECKOUT / "docs/ops/ledger.rules.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", CHECKOUT / "docs/ops/ledger.rules.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_each_alarm_is_tested_on_a_series_that_fires_and_on_one_that_does_not() -> None:
    tests = re.findall(r"^  - name: (.+)$", (CHECKOUT / "docs/ops/ledger.rules.test.yml").read_text(), re.MULTILINE)
    assert sorted(tests) == sorted(f"{alarm} {how}" for alarm in alarms() for how in ("fires", "is silent"))


# The pages without an alarm


def a_planned_switchover(night: Night) -> None:
    night.claimed("r_815")
    on_a_new_timeline(night.admin)


def an_unplanned_failover(night: Night) -> None:
    night.claimed("r_815")
    on_a_new_timeline(night.admin)


def an_upgraded_cluster(night: Night) -> None:
    night.claimed("r_815")
    as_ledger_fn(
        night.admin,
        "update ledger.server"
        " set system_identifier = system_identifier - 1, started_at = started_at - interval '1 day'",
    )


def a_restored_backup(night: Night) -> None:
    night.claimed("r_815")
    night.added("r_816")
    on_a_new_timeline(night.admin)


SCENES = {
    "A planned switchover": a_planned_switchover,
    "A failover of a managed service": an_unplanned_failover,
    "pg_upgrade": an_upgraded_cluster,
    "A point-in-time restore": a_restored_backup,
    "From psql alone": lambda night: night.claimed("r_814", "r_815"),
    "Stop everything": lambda night: night.added("r_815"),
}


@pytest.mark.parametrize("page", list(SCENES))
def test_the_page_is_as_it_happens(page: str, night: Night) -> None:
    SCENES[page](night)
    night.shell.run(page)
    assert Ledger(night.admin).verify() == []


def test_every_command_of_the_runbook_is_run_by_a_test() -> None:
    with_commands = {name for name, text in sections().items() if BLOCK.search(text)}
    assert with_commands == set(FAULTS) | set(SCENES)
    assert not re.search(r"^```(?!console$|$)", PAGE.read_text(), re.MULTILINE)


