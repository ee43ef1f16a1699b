"""`ledger resolve`, `requeue`, `cancel`, `review`, `return`: what a person records, on what evidence."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from ledger.client import Ledger
from ledger.sandbox import SandboxGateway, SandboxProcess
from tests.commands.conftest import Cli, moves, refusals
from tests.story import MERCHANT, activated, added, in_state, raised, refund, unchanged

WHY = ("--reason", "ticket 91", "--actor", "carol")
SEEN = ("--evidence", "seen in the dashboard")

MOVES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "resolve as sent": ("review", ("resolve", "--to", "sent", "--gateway-ref", "re_r_1", *SEEN), "sent"),
    "resolve as failed": ("review", ("resolve", "--to", "failed", *SEEN), "failed"),
    "resolve as returned": ("review", ("resolve", "--to", "returned", *SEEN, "--yes"), "returned"),
    "resolve as pending": ("review", ("resolve", "--to", "pending", "--not-at-gateway"), "pending"),
    "resolve as cancelled": ("pending", ("resolve", "--to", "cancelled", "--yes"), "cancelled"),
    "requeue": ("review", ("requeue", "--not-at-gateway"), "pending"),
    "cancel": ("pending", ("cancel", "--yes"), "cancelled"),
    "review": ("unknown", ("review",), "review"),
    "return": ("sent", ("return", *SEEN, "--yes"), "returned"),
}
every_move = pytest.mark.parametrize(("state", "words", "to_state"), MOVES.values(), ids=MOVES)


def typed(words: tuple[str, ...], *refunds: str) -> list[str]:
    name, *options = words
    return [name, MERCHANT, *refunds, *options]


@every_move
def test_it_is_done_and_on_record(
    cli: Cli, ledger: Ledger, admin: Any, state: str, words: tuple[str, ...], to_state: str
) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)

    said = cli(*typed(words, "r_1"), *WHY, "-o", "json")

    assert said.code == 0, said.err
    assert (said.json[0]["state"], said.json[0]["previous_state"]) == (to_state, state)
    assert moves(admin, "r_1")[-1] == (state, to_state, None, "carol", "ticket 91")
    assert cli("verify").code == 0


@every_move
def test_a_dry_run_is_a_real_call_that_is_taken_back(
    cli: Cli, ledger: Ledger, admin: Any, state: str, words: tuple[str, ...], to_state: str
) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)
    with unchanged(admin):
        said = cli(*typed(words, "r_1"), *WHY, "--dry-run", "-o", "json")
    assert (said.code, said.json[0]["state"]) == (0, to_state)
    assert said.err.endswith("dry run: rolled back, nothing was changed\n")


@every_move
def test_it_needs_a_reason_a_right_and_a_server(
    cli: Cli, dsn: str, empty_dsn: str, ledger: Ledger, admin: Any, state: str, words: tuple[str, ...], to_state: str
) -> None:
    in_state(state, "r_1", activated(ledger), ledger, admin)
    with unchanged(admin):
        assert cli(*typed(words, "r_1")).code == 2
        assert cli(*typed(words, "r_1"), *WHY, "--dsn", dsn).code == 4
        assert cli(*typed(words, "r_1"), *WHY, "--dsn", empty_dsn).code == 9
    assert cli(*typed(words, "r_9"), *WHY).code == 5
    assert to_state


@every_move
def test_one_that_is_sending_is_refused_with_what_is_legal(
    cli: Cli, ledger: Ledger, admin: Any, state: str, words: tuple[str, ...], to_state: str
) -> None:
    in_state("sending", "r_1", activated(ledger), ledger, admin)

    said = cli(*typed(words, "r_1"), *WHY)

    assert said.code == 3
    assert "moves from there: accepted, failed, pending, review, sending, sent, unknown" in said.err
    assert [code for code, _ in refusals(admin)] == ["LG204"]
    assert state != to_state


def test_one_bad_row_does_not_stop_the_rest(cli: Cli, ledger: Ledger, admin: Any) -> None:
    token = activated(ledger)
    for refund_id, state in (("r_1", "review"), ("r_2", "sending"), ("r_3", "review")):
        in_state(state, refund_id, token, ledger, admin)

    said = cli("requeue", MERCHANT, "-", "--not-at-gateway", *WHY, "-o", "json", stdin="r_1\nr_2\nr_9\nr_3\n")

    assert said.code == 8
    assert [(one["refund_id"], one["outcome"]) for one in said.json] == [
        ("r_1", "requeued"),
        ("r_2", "LG204"),
        ("r_9", "LG201"),
        ("r_3", "requeued"),
    ]


def test_all_in_a_state_are_counted_and_summed_before_the_question(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1", "r_2", amount_minor=421_500)
    ledger.add_refund(MERCHANT, "r_3", 58, "JPY")

    said = cli("cancel", MERCHANT, "--all", "--state", "pending", *WHY)
    assert said.code == 2
    assert "3 refunds of m_1 that are pending: 8,430.00 EUR, 58 JPY" in said.err
    assert "There is no terminal to ask on. Nothing was changed" in said.err
    assert refund(admin, "r_1", "state") == "pending"

    assert cli("cancel", MERCHANT, "--all", "--state", "pending", *WHY, "--yes").code == 0
    assert {refund(admin, one, "state") for one in ("r_1", "r_2", "r_3")} == {"cancelled"}
    again = cli("cancel", MERCHANT, "--all", "--state", "pending", *WHY, "--yes")
    assert (again.code, again.err) == (0, "merchant m_1 has no refund that is pending: nothing to do\n")


@pytest.mark.parametrize(
    "words", [(), ("r_1", "--all", "--state", "review"), ("--all",), ("r_1", "--state", "review")], ids=str
)
def test_what_is_meant_must_be_clear(cli: Cli, words: tuple[str, ...]) -> None:
    said = cli("review", MERCHANT, *words, *WHY)
    assert said.code == 2
    assert "Nothing was changed" in said.err


def test_evidence_is_words_json_or_a_file(cli: Cli, ledger: Ledger, admin: Any, tmp_path: Any) -> None:
    (tmp_path / "proof.json").write_text('{"page": 7}')
    given = {"r_1": "seen it", "r_2": '{"case": 4}', "r_3": f"@{tmp_path}/proof.json"}
    token = activated(ledger)
    for refund_id, words in given.items():
        in_state("review", refund_id, token, ledger, admin)
        assert cli("resolve", MERCHANT, refund_id, "--to", "failed", "--evidence", words, *WHY).code == 0
    found = admin.execute("select evidence from ledger.journal where to_state = 'failed' order by refund_id").fetchall()
    assert found == [({"note": "seen it"},), ({"case": 4},), ({"page": 7},)]


@pytest.mark.parametrize("words", ["{", "@/nowhere/proof.json", ""])
def test_evidence_that_is_none_is_bad_input(cli: Cli, ledger: Ledger, admin: Any, words: str) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)
    assert cli("resolve", MERCHANT, "r_1", "--to", "failed", "--evidence", words, *WHY).code == 2
    assert refund(admin, "r_1", "state") == "review"


def test_pending_needs_somebody_who_looked(cli: Cli, ledger: Ledger, admin: Any) -> None:
    in_state("review", "r_1", activated(ledger), ledger, admin)
    said = cli("resolve", MERCHANT, "r_1", "--to", "pending", *SEEN, *WHY)
    assert (said.code, refund(admin, "r_1", "state")) == (2, "review")
    assert "look there first" in said.err


class TestWithAGateway:
    """The gateway is asked, and what it says must bear the move out."""

    @pytest.fixture
    def key(self, ledger: Ledger, operators: Ledger) -> str:
        """A refund in review, under a key that no other test's gateway calls know."""
        key = f"{uuid4()}/r_1"
        ledger.add_refund(MERCHANT, "r_1", 7025, "EUR", idempotency_key=key)
        operators.review_refund(MERCHANT, "r_1", "carol", "looks odd")
        return key

    @pytest.fixture
    def moved(self, key: str, gateway: SandboxProcess) -> str:
        """The reference under which the gateway moved its money."""
        with SandboxGateway(gateway.url) as client:
            answer: Any = client.refund(Payment(key), 1, 5.0)
        return str(answer.ref)

    def test_what_was_sent_is_recorded_under_the_gateways_reference(
        self, cli: Cli, admin: Any, gateway: SandboxProcess, key: str, moved: str
    ) -> None:
        said = cli("resolve", MERCHANT, "r_1", "--to", "sent", "--gateway", gateway.url, *WHY, "-o", "json")
        assert said.code == 0, said.err
        assert said.json[0]["gateway_ref"] == moved
        ((proof,),) = admin.execute("select evidence from ledger.journal where to_state = 'sent'").fetchall()
        assert (proof["asked_about"], proof["gateway_said"], proof["ref"]) == (key, "sent", moved)

    @pytest.mark.parametrize("to", [("failed",), ("pending",), ("sent", "--gateway-ref", "re_other")])
    def test_what_the_gateway_denies_is_not(
        self, cli: Cli, admin: Any, gateway: SandboxProcess, moved: str, to: tuple[str, ...]
    ) -> None:
        with unchanged(admin):
            said = cli("resolve", MERCHANT, "r_1", "--to", *to, *SEEN, "--gateway", gateway.url, *WHY)
        assert said.code == 3
        assert f"but the gateway says: sent under reference {moved}. Nothing was changed" in said.err

    @pytest.mark.usefixtures("key")
    def test_nothing_there_bears_out_requeueing_and_nothing_else(
        self, cli: Cli, admin: Any, gateway: SandboxProcess
    ) -> None:
        for to in ("failed", "sent"):
            said = cli("resolve", MERCHANT, "r_1", "--to", to, *SEEN, "--gateway", gateway.url, *WHY)
            assert said.code == 3
            assert "it has nothing under that key" in said.err
        assert cli("requeue", MERCHANT, "r_1", "--gateway", gateway.url, *WHY).code == 0
        assert refund(admin, "r_1", "state") == "pending"

    @pytest.mark.usefixtures("key")
    def test_confirming_by_hand_takes_the_reference_from_the_gateway(
        self, cli: Cli, operators: Ledger, admin: Any, gateway: SandboxProcess, moved: str
    ) -> None:
        operators.requeue_refund(MERCHANT, "r_1", "carol", "ticket", {"not_at_gateway": True})
        assert cli("confirm", MERCHANT, "r_1", "--gateway-ref", "re_x", "--gateway", gateway.url, *WHY).code == 3
        said = cli("confirm", MERCHANT, "--all", "--state", "pending", "--gateway", gateway.url, "--yes", *WHY)
        assert said.code == 0, said.err
        assert refund(admin, "r_1", "state", "gateway_ref") == ("sent", moved)

    @pytest.mark.usefixtures("key")
    def test_a_gateway_that_is_gone_is_said(self, cli: Cli, admin: Any) -> None:
        with unchanged(admin):
            said = cli("requeue", MERCHANT, "r_1", "--gateway", "http://127.0.0.1:1", *WHY)
        assert said.code == 4

    @pytest.mark.usefixtures("key")
    def test_without_one_it_is_said_that_nothing_was_checked(self, cli: Cli) -> None:
        said = cli("requeue", MERCHANT, "r_1", "--not-at-gateway", *WHY)
        assert said.err == "not checked: no gateway was named (--gateway or LEDGER_GATEWAY)\n"

    @pytest.mark.usefixtures("key")
    def test_one_that_gives_no_answer_is_said_and_the_persons_word_counts(
        self, cli: Cli, tmp_path: Any, admin: Any
    ) -> None:
        (tmp_path / "shop_without_route.py").write_text(
            "class Gateway:\n"
            "    def refund(self, refund, token, timeout): raise NotImplementedError\n"
            "    def find(self, key, timeout): raise OSError('no route')\n"
        )
        said = cli("requeue", MERCHANT, "r_1", "--gateway", "shop_without_route:Gateway", "--not-at-gateway", *WHY)
        assert said.code == 0, said.err
        assert "not checked: the gateway gave no answer" in said.err
        assert "OSError: no route" in said.err
        assert refund(admin, "r_1", "state") == "pending"


class Payment:
    """What the gateway is asked to move."""

    merchant_id, refund_id, amount_minor, currency, payment_ref = MERCHANT, "r_1", 7025, "EUR", None

    def __init__(self, key: str) -> None:
        self.idempotency_key = key


def test_returning_keeps_the_reference_and_says_no_when_asked_about_another(
    cli: Cli, ledger: Ledger, admin: Any
) -> None:
    in_state("sent", "r_1", activated(ledger), ledger, admin)
    said = cli("return", MERCHANT, "r_1", "--gateway-ref", "re_other", *SEEN, *WHY, "--yes", "-o", "json")
    assert (said.code, said.error["code"]) == (3, "LG303")
    assert json.loads(json.dumps(said.error["detail"]))["recorded_gateway_ref"] == "re_r_1"


def test_what_is_final_is_asked_about(cli: Cli, ledger: Ledger, admin: Any) -> None:
    added(ledger, "r_1")
    with unchanged(admin):
        said = cli("cancel", MERCHANT, "r_1", *WHY)
    assert said.code == 2
    assert "Record r_1 as cancelled, for good?" in said.err


def test_a_worker_alone_may_not(ledger: Ledger) -> None:
    added(ledger, "r_1")
    with raised("42501"):
        ledger.cancel_refund(MERCHANT, "r_1", "w", "w")
