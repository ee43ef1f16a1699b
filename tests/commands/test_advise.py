"""`ledger lease advise`: a TTL from how long leases were held."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from ledger.client import Ledger
from ledger.lease import Lease
from tests.commands.conftest import Cli
from tests.story import RESOURCE, activated

Held = Callable[..., None]


@pytest.fixture
def held(ledger: Ledger) -> Held:
    """Leases were held for so many seconds each."""

    def hold(*durations: float, renewals: int = 0, late: int = 0, resource: str = "report:daily") -> None:
        for seconds in durations:
            token = activated(ledger, resource=resource)
            ledger.record_hold(resource, token, timedelta(seconds=seconds), renewals, late)

    return hold


def test_the_ttl_is_twice_the_99th_percentile_and_renewed_at_a_third(cli: Cli, held: Held) -> None:
    held(*[10] * 98, 45, 600)

    advice = cli("lease", "advise", "report", "-o", "json").json

    assert (advice["holds"], advice["median"], advice["p99"], advice["longest"]) == (100, 10, 45, 600)
    assert (advice["lease_ttl"], advice["advised_ttl"], advice["renew_every"]) == (30, 90, 30)


def test_how_often_a_renewal_was_late_is_said(cli: Cli, held: Held) -> None:
    held(60, renewals=30, late=0)
    held(60, renewals=10, late=2)
    advice = cli("lease", "advise", "report", "-o", "json").json
    assert (advice["renewals"], advice["late_renewals"], advice["late_share"]) == (40, 2, 0.05)


def test_a_lease_outlasts_the_idle_limit_however_short_the_job(cli: Cli, held: Held) -> None:
    held(0.2, 0.3)
    assert cli("lease", "advise", "report", "-o", "json").json["advised_ttl"] == 10


def test_a_person_gets_the_next_command_and_a_warning_when_it_rests_on_little(cli: Cli, held: Held) -> None:
    held(45)
    said = cli("lease", "advise", "report")
    assert said.code == 0
    assert "advised ttl" in said.out
    assert "1m 30s" in said.out
    assert "only 1 are on record: a first guess" in said.err
    assert "next: ledger kind set report --lease-ttl 90s --reason" in said.err


def test_the_advice_can_be_taken(cli: Cli, held: Held) -> None:
    held(*[45] * 20)
    assert cli("kind", "set", "report", "--lease-ttl", "90s", "--reason", "ledger lease advise").code == 0
    said = cli("lease", "advise", "report")
    assert said.err == "its TTL is that already\n"


def test_other_kinds_do_not_count(cli: Cli, held: Held) -> None:
    held(500, resource=RESOURCE)
    held(45)
    assert cli("lease", "advise", "report", "-o", "json").json["holds"] == 1


def test_a_real_lease_is_counted(cli: Cli, dsn: str, redis_url: str) -> None:
    with Lease("report:daily", db=dsn, redis=redis_url):
        pass
    assert cli("lease", "advise", "report", "-o", "json").json["holds"] == 1


def test_a_kind_without_records_is_not_found(cli: Cli, held: Held) -> None:
    said = cli("lease", "advise", "report")
    assert said.code == 5
    assert "Run the job a few times" in said.err
