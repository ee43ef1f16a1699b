"""The models are in step with the SQL, and their runner believes no search that isn't complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ledger.client import Ledger
from tests.proof.model import __main__ as model
from tests.proof.model import search as spin
from tests.proof.model.search import Control, Found
from tests.story import MERCHANT, Connection, activated, added, refund, refused

SQL = Path(__file__).parents[3] / "sql"
MODELS = ("refund", "batch", "transaction")
LINES = [
    [part.strip() for part in line.split("|")]
    for line in (spin.FOLDER / "guards.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]
FOR_THE_SQL = {line[0]: line[1].replace("-", "").split() for line in LINES if not line[0].startswith("= ")}
BESIDE_IT = {line[0].removeprefix("= ") for line in LINES if line[0].startswith("= ")}

SAID = """
State-vector 92 byte, depth reached 211, errors: 0
   356369 states, stored
violated one_writer 12
violated one_writer 3
reached released 8844
"""


def body(path: Path) -> str:
    """A function without its header and its comment."""
    return re.sub(r"--.*", "", path.read_text()).partition("\ncomment on function")[0]


def guards(name: str) -> set[str]:
    """What may be taken away from a model: what is 1 there, or is off by default as the SQL has it."""
    text = spin.source(name).partition("---- The guards")[2].partition("mtype = ")[0]
    return set(re.findall(r"^#define (\w+) +[01]\b", text, re.MULTILINE))


def subjects() -> dict[str, str]:
    """Everything in sql/ that needs its line (files, refusals, what a claim decides on), and its general line."""
    found = {}
    for path in (*SQL.glob("guards/*.sql"), *SQL.glob("functions/*.sql")):
        found[path.stem] = path.stem
        for refusal in set(re.findall(r"ledger\.(refuse_\w+)\(", body(path))) - {path.stem}:
            found[f"{path.stem}: {refusal}"] = f"* {refusal}"
    for when in re.findall(r"when (.+) then", body(SQL / "guards/claim_outcome.sql")):
        found[f"claim_outcome: when {when}"] = ""
    return found


def test_every_guard_of_the_sql_has_its_control_or_says_why_not() -> None:
    missing = [name for name, general in subjects().items() if not {name, general} & set(FOR_THE_SQL)]
    assert missing == [], "no line in tests/proof/model/guards.txt"


def test_every_line_has_its_subject() -> None:
    assert set(FOR_THE_SQL) - set(subjects()) - set(subjects().values()) == set()


def test_a_line_without_a_control_gives_its_reason() -> None:
    assert [line[0] for line in LINES if len(line) == 3 and line[1] == "-" and not line[2]] == []


def test_every_guard_of_a_model_stands_for_something_and_is_taken_away_by_a_search() -> None:
    known = {flag for name in MODELS for flag in guards(name)}
    named = {flag for flags in FOR_THE_SQL.values() for flag in flags} | BESIDE_IT
    assert named == known
    taken_away = {flag.partition("=")[0] for control in spin.controls() for flag in control.flags}
    assert known - taken_away == set()


@pytest.mark.parametrize("name", MODELS)
def test_every_property_of_a_model_is_broken_by_a_control(name: str) -> None:
    broken = {one for control in spin.controls() if control.model == name for one in control.broken}
    assert spin.properties_of(name) == broken


@pytest.mark.parametrize("control", spin.controls(), ids=lambda control: control.name)
def test_a_control_changes_what_its_model_has(control: Control) -> None:
    assert control.level in ("quick", "full")
    assert {flag.partition("=")[0] for flag in control.flags} <= set(spin.flags_of(control.model))
    assert control.broken <= spin.properties_of(control.model)
    assert control.words


def test_no_search_is_made_twice() -> None:
    names = [control.name for control in spin.controls()]
    assert sorted(set(names)) == sorted(names)


def test_the_page_names_every_property() -> None:
    page = (SQL.parent / "docs/proof.md").read_text()
    assert {name for model in MODELS for name in spin.properties_of(model) if f"`{name}`" not in page} == set()


def test_what_a_search_prints_is_understood() -> None:
    assert spin.read(SAID) == Found(
        frozenset({"one_writer"}), frozenset({"released"}), 356369, complete=True, said=SAID
    )


@pytest.mark.parametrize(
    "said",
    [
        "",
        SAID + "error: max search depth too small",
        SAID + "pan: out of memory",
        SAID.replace("errors: 0", "errors: 1"),
        "aborted: not finished after 900 s",
    ],
)
def test_a_search_that_did_not_see_everything_is_not_complete(said: str) -> None:
    assert not spin.read(said).complete


def test_an_acceptance_cycle_breaks_the_eventual_property() -> None:
    found = spin.read("pan:1: acceptance cycle (at depth 12)\n" + SAID.replace("errors: 0", "errors: 1"))
    assert found.complete
    assert spin.EVENTUALLY in found.broken


def found(*broken: str, complete: bool = True) -> Found:
    return Found(frozenset(broken), frozenset(), 7, complete, said="pan: out of memory")


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (found("one_writer"), ""),
        (found(), "one_writer should break and doesn't"),
        (found("one_writer", "claim_tells"), "claim_tells breaks and shouldn't"),
        (found("one_writer", complete=False), "the search isn't complete: pan: out of memory"),
    ],
)
def test_less_broken_than_listed_fails_and_so_does_more(result: Found, problem: str) -> None:
    control = Control("quick", "refund", ("FENCE=0",), frozenset({"one_writer"}), "only the row's token")
    assert model.judge(control, result) == problem


def test_a_failure_says_how_to_see_it_again_and_is_in_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = "quick | batch | GATE=0 | one_writer | no gate\nfull | batch | | - | more"
    chosen = spin.controls(lines)
    monkeypatch.setattr(spin, "controls", lambda: chosen)
    monkeypatch.setattr(spin, "branches_of", lambda name: {"taken_over"})
    monkeypatch.setattr(spin, "search", lambda *args, **more: found("claim_tells"))

    assert model.main(["quick", "--json", str(tmp_path / "report")]) == 1
    assert "python -m tests.proof.model trace claim_tells batch GATE=0" in capsys.readouterr().out
    report: dict[str, Any] = json.loads((tmp_path / "report").read_text())
    assert report["checked"] == {"searches": 1, "states": 7}
    assert report["controls"] == {"expected": 1, "found": 0}
    assert len(report["failed"]) == 2
    assert report["failed"][1] == "batch: no search reached taken_over"
    assert report["skipped"] == []


def test_without_spin_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert model.main(["quick"]) == 1
    assert "apt-get install spin gcc" in capsys.readouterr().err


# What honest clients never do breaks nothing in the models when its guard is away. Here it is done.


def test_the_newest_holder_cannot_confirm_what_it_has_not_claimed(ledger: Ledger, admin: Connection) -> None:
    added(ledger, "r_1")
    older = activated(ledger)
    ledger.claim_refund(MERCHANT, "r_1", older)
    newest = activated(ledger)

    with refused("LG203", admin) as refusal:
        ledger.confirm_refund(MERCHANT, "r_1", newest, "re_1")
    assert refusal.tells(reason="not_claimed", state="sending", row_token=older, token=newest)
    assert [row.outcome for row in ledger.confirm_refunds(MERCHANT, newest, ["r_1"], ["re_1"])] == ["LG203"]
    assert refund(admin, "r_1", "state", "fence") == ("sending", older)
