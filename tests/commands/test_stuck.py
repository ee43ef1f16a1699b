"""`ledger stuck`: what needs a person, why, how old, and what may be typed next."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.client import Ledger
from ledger.commands.next_steps import STEPS
from ledger.lease import AdvisoryLease, Lease
from tests.commands.conftest import Cli
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, activated, added, as_ledger_fn, in_state


def stuck(cli: Cli, *more: str) -> Any:
    return cli("stuck", "-o", "json", *more)


def why(cli: Cli, *more: str) -> dict[str, str]:
    return {one["refund_id"]: one["why"] for one in stuck(cli, *more).json}


def test_nothing_is_stuck_while_work_goes_on(cli: Cli, dsn: str, redis_url: str, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_pending")
    with Lease(RESOURCE, db=dsn, redis=redis_url) as lease:
        for state in ("sending", "accepted", "sent", "failed", "cancelled"):
            in_state(state, state, lease.token, ledger, admin)

        said = cli("stuck")

    assert (said.code, said.out, said.err) == (0, "", "nothing is stuck\n")


@pytest.mark.parametrize(
    ("state", "because"), [("unknown", "nobody knows whether it was sent"), ("review", "a person must look")]
)
def test_what_nobody_works_on_is(cli: Cli, ledger: Ledger, admin: Any, state: str, because: str) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)

    said = stuck(cli)

    assert said.code == 10
    (one,) = said.json
    assert (one["refund_id"], one["state"], one["why"], one["amount"]) == ("r_1", state, because, "70.25")
    assert (one["holder"], one["active_holder"]) == (ALICE, ALICE)
    assert all(step.startswith("ledger ") and MERCHANT in step for step in one["next"])


def test_one_whose_lease_is_gone(cli: Cli, dsn: str, redis_url: str, ledger: Ledger, admin: Any) -> None:
    with Lease(RESOURCE, db=dsn, redis=redis_url) as lease:
        in_state("sending", "r_1", lease.token, ledger, admin)
        assert stuck(cli).code == 0

    assert why(cli) == {"r_1": "its lease is gone"}


def test_one_whose_holder_was_fenced_out_though_a_live_one_is_there(
    cli: Cli, dsn: str, redis_url: str, ledger: Ledger, admin: Any
) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)
    with Lease(RESOURCE, db=dsn, redis=redis_url):
        assert why(cli) == {"r_1": "its holder was fenced out"}


def test_one_under_an_advisory_lease(cli: Cli, dsn: str, ledger: Ledger, operators: Ledger, admin: Any) -> None:
    operators.set_kind("settle", lock="advisory", actor="tests", reason="no Redis")
    with AdvisoryLease(RESOURCE, db=dsn) as lease:
        in_state("sending", "r_1", lease.token, ledger, admin)
        assert stuck(cli).code == 0
    assert why(cli) == {"r_1": "its lease is gone"}


def test_the_gateways_final_word_may_take_a_while(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("accepted", "r_1", activated(ledger), ledger, admin)

    assert stuck(cli).code == 0
    assert why(cli, "--accepted-after", "0") == {"r_1": "the gateway's final word is late"}


def test_leases_that_cannot_be_seen_are_called_gone_once_they_must_be(
    cli: Cli, ledger: Ledger, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)
    monkeypatch.delenv("LEDGER_REDIS_URL")

    said = cli("stuck")
    assert said.code == 0
    assert "leases weren't looked at: no Redis was named" in said.err
    as_ledger_fn(admin, "update ledger.refund set changed_at = changed_at - interval '31 seconds'")
    assert why(cli) == {"r_1": "its lease can't be seen, and it is late"}


def test_a_redis_that_is_down_is_said_and_the_rest_is_told(cli: Cli, ledger: Ledger, admin: Any) -> None:
    token = activated(ledger)
    in_state("sending", "r_1", token, ledger, admin)
    in_state("review", "r_2", token, ledger, admin)

    said = cli("stuck", "--redis", "redis://127.0.0.1:1", "-o", "json")

    assert [one["refund_id"] for one in said.json] == ["r_2"]
    assert "leases weren't looked at" in said.err


def test_the_oldest_comes_first_and_only_so_many(cli: Cli, ledger: Ledger, admin: Any) -> None:
    token = activated(ledger)
    for refund_id in ("r_2", "r_1", "r_3"):
        in_state("review", refund_id, token, ledger, admin)

    said = stuck(cli, "--limit", "2")

    assert [one["refund_id"] for one in said.json] == ["r_2", "r_1"]
    assert said.err == "1 more: --limit 3\n"


def test_one_merchant_at_a_time(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)

    assert stuck(cli, "m_2").code == 0
    assert stuck(cli, MERCHANT).code == 10


def test_the_last_word_about_it_is_told(cli: Cli, ledger: Ledger, admin: Any) -> None:
    token = activated(ledger)
    in_state("unknown", "r_1", token, ledger, admin)
    activated(ledger, BOB)
    cli("confirm", MERCHANT, "r_1", "--gateway-ref", "x", "--token", str(token), "--reason", "late")

    (one,) = stuck(cli).json

    assert one["reason"] == "timeout"
    assert one["last_refusal"].startswith("LG101 confirm_refund of m_1 r_1 refused")


def test_a_table_names_age_money_and_where_to_look(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("unknown", "r_1", activated(ledger), ledger, admin)

    head, row = cli("stuck").out.splitlines()

    assert head.split()[:5] == ["age", "merchant_id", "refund_id", "state", "why"]
    assert "70.25 EUR" in row
    assert "timeout" in row
    assert row.endswith("ledger why m_1 r_1")


def test_every_next_step_is_a_legal_move(admin: Any) -> None:
    legal = set(admin.execute("select from_state, to_state from ledger.transition").fetchall())
    claimed = {("pending", to) for _, to in legal} | {("unknown", "sent"), ("unknown", "failed")}
    for state, steps in STEPS.items():
        for text, to_state in steps:
            assert to_state is None or (state, to_state) in legal | claimed, text


def test_every_next_step_can_be_typed(nowhere: Cli) -> None:
    for steps in STEPS.values():
        for text, _ in steps:
            name = text.split()[0]
            assert nowhere(name, "--help").code == 0
            options = [word for word in text.split() if word.startswith("--")]
            said = nowhere(name, "--help").out + nowhere("--help").out
            assert all(option in said for option in options), text
