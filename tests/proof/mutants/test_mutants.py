"""The mutants are made the same way each time, and each is one change."""

from __future__ import annotations

import json

import pytest

from ledger import schema
from ledger.client import Ledger
from tests.proof.mutants import generate, instrument, killers
from tests.proof.mutants.generate import Mutant
from tests.proof.mutants.tokens import Function
from tests.proof.sql_files import file_of
from tests.story import MERCHANT, Connection, activated, added


@pytest.fixture(scope="module")
def mutants() -> dict[str, Mutant]:
    made = generate.mutants()
    assert len({mutant.id for mutant in made}) == len(made), "two mutants share an id"
    return {mutant.id: mutant for mutant in made}


def test_the_same_mutants_are_made_each_time(mutants: dict[str, Mutant]) -> None:
    again = generate.of_function("claim_outcome")
    assert again
    assert all(mutants[mutant.id] == mutant for mutant in again)


def test_an_id_stays_the_same_when_a_comment_is_written_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = generate.of_function("claim_outcome")
    read = Function.read
    longer = "return case -- one more line\n"
    monkeypatch.setattr(Function, "read", lambda p: Function(p.stem, read(p).text.replace("return case", longer)))
    assert [mutant.id for mutant in generate.of_function("claim_outcome")] == [mutant.id for mutant in before]


@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [
        ("claim_outcome:compare(>=):1:>", "when row_token > token", "when row_token >= token"),
        ("claim_outcome:list without:1:'sent'", "state in ('sent', 'failed'", "state in ('failed'"),
        ("lock_to_settle:unlocked:1:for no key update", "for no key update;", "refund_id'\n    ;"),
        ("claim_refund:unset:1:fence", "fence = claim_refund.token,", "attempts = was_attempts + 1"),
        ("claim_refund:attribute:1:security definer", "security definer\n", "language plpgsql\n\n"),
        ("pass_gate:lock none:1:pg_try_advisory_xact_lock_shared", "hashtextextended(resource, 0)", "if not true then"),
    ],
)
def test_a_mutant_is_one_change(name: str, was: str, becomes: str, mutants: dict[str, Mutant]) -> None:
    mutant = mutants[name]
    original = Function.read(file_of(mutant.function)).text
    assert original.count(was) - mutant.sql.count(was) == 1
    assert becomes in mutant.sql


def test_a_function_tells_where_it_has_been_and_does_what_it_did(ledger: Ledger, admin: Connection) -> None:
    instrument.prepare(admin)
    token = activated(ledger)
    added(ledger, "r_1")
    instrument.reached(admin)
    assert ledger.claim_refund(MERCHANT, "r_1", token).outcome == "claimed"
    came = {place.partition(".")[0] for place in instrument.reached(admin)}
    assert {"claim_refund", "pass_gate", "guard_write"} <= came
    assert not came & {"claim_or_refuse", "refuse_token"}
    assert instrument.reached(admin) == []


def test_a_condition_behind_elsif_is_come_to_by_its_if() -> None:
    text = "create function f() as $$ begin if a then b := 1; elsif c then d := 2; end if; e := 3; end; $$"
    owners = instrument.owners_of(Function("f", text))
    words = [token.text for token in Function("f", text).tokens]
    assert [words[owners[words.index(name)]] for name in "abcde"] == ["if", "b", "if", "d", "e"]


def test_guard_triggers_and_constraints_have_their_mutants(mutants: dict[str, Mutant]) -> None:
    assert {
        "trigger:missing:1:refund_is_guarded",
        "trigger:ordinary:1:journal_is_archived",
        "trigger:missing:1:event_is_pruned",
        "constraint:missing:1:idempotency_key_is_used_once",
    } <= set(mutants)


def test_at_most_three_are_equivalent_and_each_has_its_reason(mutants: dict[str, Mutant]) -> None:
    spared = killers.spared()
    assert len(spared) <= 3
    assert set(spared) <= set(mutants)
    assert all(len(reason) > 15 for reason in spared.values())


def test_the_files_of_the_tests_that_are_remembered_are_there() -> None:
    files = {name.partition("::")[0] for name in json.loads(killers.FILE.read_text(encoding="utf-8"))}
    assert [file for file in files if not (schema.HOME / file).is_file()] == []
