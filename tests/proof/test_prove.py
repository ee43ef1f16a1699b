"""What runs the proof believes no part that failed, skipped, died, or found nothing where it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.proof import __main__ as proof
from tests.proof.parts import CHECKOUT, Part, judge, run

GOOD: dict[str, Any] = {
    "part": "schedules",
    "checked": {"schedules": 12, "states": 7},
    "controls": {"expected": 3, "found": 3},
    "seconds": 1.0,
    "failed": [],
    "skipped": [],
}
PART = Part("schedules", "nothing")


def against(**changes: Any) -> list[str]:
    return list(judge(PART, {**GOOD, **changes}, 1.0).against)


def test_a_part_that_checked_something_and_found_its_planted_faults_holds() -> None:
    assert against() == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"failed": ["claim, claim, confirm"]}, "claim, claim, confirm"),
        ({"skipped": ["no spin here"]}, "skipped: no spin here"),
        ({"checked": {}}, "checked nothing"),
        ({"checked": {"schedules": 12, "states": 0}}, "checked no states"),
        ({"controls": {"expected": 3, "found": 2}}, "found 2 of 3 planted faults"),
        ({"controls": {"expected": 3, "found": 4}}, "found 4 of 3 planted faults"),
        ({"controls": {"expected": 0, "found": 0}}, "planted no fault to find"),
    ],
)
def test_a_part_is_not_believed_when(changes: dict[str, Any], complaint: str) -> None:
    assert against(**changes) == [complaint]


def test_a_part_without_controls_must_say_so_beforehand() -> None:
    report = {key: value for key, value in GOOD.items() if key != "controls"}
    assert judge(PART, report, 1.0).against == ["planted no fault to find"]
    assert judge(Part("matrix", "nothing", has_controls=False), report, 1.0).holds


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("raise SystemExit(3)", "exited with 3 and reported nothing"),
        ("import sys; open(sys.argv[-1], 'w').write('{')", "its report isn't JSON"),
        (f"import json, sys; json.dump({GOOD!r}, open(sys.argv[-1], 'w')); sys.exit(1)", "exited with 1"),
        ("import time; time.sleep(60)", "was ended after 1 s and reported nothing"),
    ],
)
def test_a_part_that_dies_or_hangs_does_not_hold(
    program: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_part.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run(Part("schedules", "a_part", time_limit=1), tmp_path)
    assert not outcome.holds
    assert complaint in outcome.against[0]


def test_one_part_that_fails_fails_the_whole_and_the_table_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.py").write_text(f"import json, sys; json.dump({GOOD!r}, open(sys.argv[-1], 'w'))")
    (tmp_path / "bad.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert proof.prove([Part("one", "good"), Part("two", "bad")], tmp_path / "out") == 1
    printed = capsys.readouterr().out
    assert "one   12 schedules" in printed
    assert "two: exited with 1 and reported nothing" in printed
    assert [part["holds"] for part in json.loads((tmp_path / "out" / "proof.json").read_text())] == [True, False]
    assert proof.prove([Part("one", "good")], tmp_path / "out") == 0


def test_every_part_is_a_program_of_the_tests() -> None:
    for part in proof.PARTS:
        module = CHECKOUT / Path(*part.module.split("."))
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), part.module
