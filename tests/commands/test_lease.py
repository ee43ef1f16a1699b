"""`ledger lease list`, `break`: who holds what, and how it is taken from them."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from ledger.errors import StaleToken
from ledger.lease import AdvisoryLease, Lease
from ledger.lease.redis_lock import RedisLock
from tests.commands.conftest import Cli
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, activated, added, unchanged, until

WHY = ("--reason", "its host is gone", "--actor", "carol", "--yes")


def test_breaking_fences_the_holder_out_and_then_clears_its_lease(
    cli: Cli, held: Lease, ledger: Ledger, redis_url: str, admin: Any
) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", held.token)
    shown = cli("lease", "show", RESOURCE, "-o", "json").json["holder"]

    said = cli("lease", "break", RESOURCE, "--holder", shown, *WHY, "-o", "json")

    assert said.code == 0, said.err
    assert said.json == {
        "resource": RESOURCE,
        "holder": held.holder,
        "token": said.json["token"],
        "lease_cleared": True,
    }
    assert RedisLock(redis_url, RESOURCE).peek() is None
    with pytest.raises(StaleToken):
        ledger.confirm_refund(MERCHANT, "r_1", held.token, "re_1")
    assert admin.execute(
        "select previous_holder, actor, reason from ledger.event where event = 'lease_broken'"
    ).fetchall() == [(held.holder, "carol", "its host is gone")]


def test_a_person_goes_on_under_the_token(cli: Cli, held: Lease, ledger: Ledger) -> None:
    added(ledger, "r_1")
    ledger.claim_refund(MERCHANT, "r_1", held.token)
    token = cli("lease", "break", RESOURCE, "--holder", held.holder, *WHY, "-o", "json").json["token"]

    assert cli("claim", MERCHANT, "r_1", "--token", token, *WHY).code == 0
    assert cli("confirm", MERCHANT, "r_1", "--token", token, "--gateway-ref", "re_1", *WHY).code == 0


def test_the_broken_worker_is_told(cli: Cli, dsn: str, redis_url: str) -> None:
    with Lease(RESOURCE, db=dsn, redis=redis_url, ttl=10) as lease:
        cli("lease", "break", RESOURCE, "--holder", lease.holder, *WHY)
        until(lambda: lease.lost, within=6)
        assert lease.lost == "broken"


def test_somebody_else_than_was_shown_is_left_alone(cli: Cli, held: Lease, admin: Any) -> None:
    with unchanged(admin):
        said = cli("lease", "break", RESOURCE, "--holder", ALICE, *WHY, "-o", "json")
    assert said.code == 6
    assert said.error["message"] == f"{RESOURCE} is held by {held.holder}, not by {ALICE}. Nothing was changed"


def test_a_lease_that_passes_on_meanwhile_is_not_cleared(
    cli: Cli, held: Lease, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = RedisLock(redis_url, RESOURCE)
    entry = lock.peek()
    assert entry is not None
    real = Ledger.break_lease

    def passed_on(*arguments: Any) -> int:
        token: int = real(*arguments)
        lock.swap(entry.value, f"{BOB}:99", 30)
        return token

    monkeypatch.setattr(Ledger, "break_lease", passed_on)
    said = cli("lease", "break", RESOURCE, "--holder", held.holder, *WHY, "-o", "json")

    assert (said.code, said.json["lease_cleared"]) == (6, False)
    assert "was left as it is" in said.err
    now = lock.peek()
    assert now is not None
    assert now.value == f"{BOB}:99"


def test_one_whose_lease_has_ended_is_fenced_out_all_the_same(cli: Cli, ledger: Ledger) -> None:
    token = activated(ledger)
    said = cli("lease", "break", RESOURCE, "--holder", ALICE, *WHY, "-o", "json")
    assert (said.code, said.json["lease_cleared"]) == (0, False)
    assert said.json["token"] > token


def test_a_dry_run_changes_nothing(cli: Cli, held: Lease, redis_url: str, admin: Any) -> None:
    with unchanged(admin):
        said = cli("lease", "break", RESOURCE, "--holder", held.holder, *WHY, "--dry-run")
    assert said.code == 0
    assert said.err == "dry run: rolled back, nothing was changed\n"
    assert RedisLock(redis_url, RESOURCE).peek() is not None


def test_it_asks(cli: Cli, held: Lease, admin: Any) -> None:
    with unchanged(admin):
        said = cli("lease", "break", RESOURCE, "--holder", held.holder, "--reason", "why")
    assert said.code == 2
    assert f"Fence out {held.holder} and clear its lease on {RESOURCE}?" in said.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("settle",), 2),
        (("settle:never",), 5),
        ((RESOURCE, "--redis", "redis://127.0.0.1:1"), 4),
        ((RESOURCE, "--dsn", "host=127.0.0.1 port=1"), 4),
    ],
    ids=str,
)
def test_what_goes_wrong(cli: Cli, ledger: Ledger, words: tuple[str, ...], code: int) -> None:
    activated(ledger)
    resource, *more = words
    assert cli("lease", "break", resource, "--holder", ALICE, *WHY, *more).code == code


def test_without_redis_the_fence_is_raised_where_that_is_wanted(cli: Cli, ledger: Ledger) -> None:
    activated(ledger)
    words = ("lease", "break", RESOURCE, "--holder", ALICE, *WHY, "--redis", "redis://127.0.0.1:1", "--without-lease")
    assert cli(*words).code == 0


def test_a_paused_resource_is_not_broken(cli: Cli, ledger: Ledger, operators: Ledger) -> None:
    activated(ledger)
    operators.pause(RESOURCE, "carol", "incident")
    assert cli("lease", "break", RESOURCE, "--holder", ALICE, *WHY).code == 6


def test_an_advisory_holder_is_fenced_out(cli: Cli, dsn: str, ledger: Ledger, operators: Ledger) -> None:
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis")
    added(ledger, "r_1")
    with AdvisoryLease(RESOURCE, db=dsn) as lease:
        ledger.claim_refund(MERCHANT, "r_1", lease.token)
        assert cli("lease", "break", RESOURCE, "--holder", lease.holder, *WHY).code == 0
        with pytest.raises(StaleToken):
            ledger.confirm_refund(MERCHANT, "r_1", lease.token, "re_1")


def test_the_list_tells_who_holds_what(cli: Cli, held: Lease, ledger: Ledger) -> None:
    activated(ledger, BOB, "settle:m_2")
    found = {one["resource"]: one for one in cli("lease", "list", "-o", "json").json}

    assert (found[RESOURCE]["held"], found[RESOURCE]["holder"]) == (True, held.holder)
    assert (found["settle:m_2"]["held"], found["settle:m_2"]["active_holder"]) == (False, BOB)
    assert [one["resource"] for one in cli("lease", "list", "--held", "-o", "json").json] == [RESOURCE]
    assert cli("lease", "list", "--kind", "charges").err == "nothing was ever held\n"


def test_the_list_says_that_there_may_be_more(cli: Cli, ledger: Ledger) -> None:
    activated(ledger, BOB, "settle:m_2")
    activated(ledger, BOB, "settle:m_3")
    said = cli("lease", "list", "--limit", "1")
    assert "settle:m_3" in said.out
    assert said.err == "there may be more: --limit 10\n"


def test_the_list_needs_its_servers(cli: Cli, ledger: Ledger, empty_dsn: str) -> None:
    activated(ledger)
    assert cli("lease", "list", "--redis", "redis://127.0.0.1:1").code == 4
    assert cli("lease", "list", "--dsn", empty_dsn).code == 9
