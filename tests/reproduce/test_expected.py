"""What is expected of each cell, and how a cell that comes out otherwise is told."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

from ledger.reproduce import FAULTS, GUARANTEES, PROTECTIONS, Counts
from ledger.reproduce.words import MOMENTS
from tests.commands.conftest import CHECKOUT, Cli
from tests.reproduce import made_up

NOTHING = Counts()


def failing(protection: str) -> set[str]:
    """The faults under which a protection lets something happen."""
    return {fault for fault in FAULTS if made_up.cell(protection, fault).wanted != NOTHING}


def test_nothing_happens_in_any_cell_under_the_fence_with_a_key_and_under_nothing_else() -> None:
    assert [protection for protection in PROTECTIONS if not failing(protection)] == ["fence+key"]


def test_without_a_lock_every_fault_sends_twice_and_records_wrongly() -> None:
    for fault in FAULTS:
        counts = made_up.cell("none", fault).wanted
        assert counts.sent_twice > 0, fault
        assert counts.wrong > 0, fault


def test_no_protection_of_the_ledger_lets_a_record_be_written_over() -> None:
    for fault in FAULTS:
        for protection in ("fence", "fence+key"):
            assert made_up.cell(protection, fault).wanted.written_over == 0


def test_what_the_fence_alone_records_wrongly_is_the_call_of_a_dead_worker() -> None:
    assert {fault for fault in FAULTS if made_up.cell("fence", fault).wanted.wrong} == {"kill"}


def test_everything_is_explained() -> None:
    assert list(GUARANTEES) == list(PROTECTIONS)
    assert list(MOMENTS) == list(FAULTS)
    for cell in made_up.matrix().cells:
        assert all(each.reason.endswith(".") for each in cell.expected.values())


@pytest.mark.parametrize(
    ("protection", "fault"), [("none", "lost-reply"), ("renew", "slow"), ("fence", "kill"), ("fence+key", "pause")]
)
def test_a_cell_that_comes_out_otherwise_is_told_whichever_way_it_differs(protection: str, fault: str) -> None:
    cell = made_up.cell(protection, fault)
    cell.judge()
    assert cell.problems == []
    found = cell.stories[0].found[0]
    found.moved = ["sb_1"] if len(found.moved) > 1 else ["sb_1", "sb_2"]
    cell.judge()
    (problem,) = cell.problems
    assert re.search(r": expected sent twice \d.*; came sent twice \d", problem)


def test_the_pages_show_the_matrix_as_it_must_come_out(nowhere: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole matrix is run by test_the_whole_matrix_comes_out_as_it_must."""
    monkeypatch.setattr("ledger.reproduce.embedded", lambda pg: nullcontext())
    monkeypatch.setattr("ledger.commands.reproduce._all", lambda *_: made_up.matrix())
    said = nowhere("reproduce", "--all")
    assert said.code == 0
    shown, readme = ((CHECKOUT / name).read_text() for name in ("docs/reproduce.md", "README.md"))
    table = said.out.partition("\n\nnone\n")[0]
    assert f"```\n{table}\n```" in shown
    assert table.partition("\n\n")[2] in readme
    for words in (*PROTECTIONS.values(), *GUARANTEES.values(), *FAULTS.values()):
        assert words in shown, words
