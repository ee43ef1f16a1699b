"""The demo as a user sees it: the timeline, the proof, and what a script gets."""

from __future__ import annotations

import re
import time

import pytest

from ledger import demo

pytestmark = pytest.mark.heavy


def test_both_acts_come_out_as_promised(pytestconfig: pytest.Config) -> None:
    said: list[str] = []
    began = time.monotonic()

    result = demo.run(pytestconfig.getoption("pg"), said.append)

    assert time.monotonic() - began < 40
    assert result.holds
    (refusal,) = result.refusals
    assert refusal["active"] > refusal["token"]
    assert result.as_json() == {
        "refunds": 1200,
        "movements": 1200,
        "sent_twice": 0,
        "amount_minor": 8_430_000,
        "currency": "EUR",
        "refusals": [{"code": "LG101", "token": refusal["token"], "active": refusal["active"]}],
        "verify": [],
    }

    text = "\n".join(said)
    act_1, act_2 = text.split("Act 2.")
    assert re.search(r"sent twice +1: r_005\n", act_1)
    assert re.search(r"recorded wrongly +1: the row names A's movement", act_1)
    in_this_order = [
        r"1200 refunds, 84,300\.00 EUR",
        r"A +has the lease on settle:m_4471 and token \d+; claims r_001 \(claimed\)",
        r"A +claimed r_815, looked at its lease, and freezes before its gateway call \(SIGSTOP\)",
        r"Redis +A's lease has ended",
        r"B +has the lease on settle:m_4471 and token \d+; claims r_815 \(taken_over\)",
        r"B +asks the gateway about m_4471/r_815: nothing",
        r"A +wakes up \(SIGCONT\)",
        r"A +sends r_815 under the same key; the gateway answers with B's movement \(sent\)",
        r"A +tries to confirm it and is refused: LG101",
        r"movements at the gateway +1200 for 1200 refunds",
        r"amount +84,300\.00 EUR of 84,300\.00",
        r"sent twice +0\n",
        rf"refused +LG101: token {refusal['token']}, active is {refusal['active']}",
        r"verify +nothing is wrong",
        r"The key at the gateway prevented",
        r"The fence in Postgres prevented",
    ]
    place = 0
    for line in in_this_order:
        found = re.compile(line).search(act_2, place)
        assert found, f"{line} is missing after:\n{act_2[:place]}"
        place = found.end()
