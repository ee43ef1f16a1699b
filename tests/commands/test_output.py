from __future__ import annotations

import csv
import io
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from ledger.commands import durations, output
from ledger.commands.app import App

AT = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("minor", "exponent", "shown"),
    [(8_430_000, 2, "84,300.00"), (7, 2, "0.07"), (58, 0, "58"), (1234, 3, "1.234"), (-7025, 2, "-70.25")],
)
def test_money_is_shown_by_its_currency(minor: int, exponent: int, shown: str) -> None:
    assert output.money(minor, "XXX", exponent) == f"{shown} XXX"
    assert output.decimal(minor, exponent) == shown.replace(",", "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (AT, "2026-03-01 12:30:00.123Z"),
        (timedelta(hours=23), "23h"),
        ({"EUR": 5, "JPY": 6}, "EUR 5, JPY 6"),
        ({"kind": "settle", "reason": ""}, "kind settle"),
        (timedelta(seconds=20) / 3, "6.667s"),
        (["a", "b"], "a; b"),
        ("\x1b[2Jgone\n", r"\x1b[2Jgone\n"),
    ],
)
def test_values_are_shown_for_people(value: Any, shown: str) -> None:
    assert output.cell(value) == shown


@pytest.mark.parametrize(
    ("typed", "seconds", "shown"),
    [
        ("30", 30, "30s"),
        ("1.5s", 1.5, "1.5s"),
        ("500ms", 0.5, "0.5s"),
        ("90 s", 90, "1m 30s"),
        ("5m", 300, "5m"),
        ("23h", 82800, "23h"),
        ("24h", 86400, "24h"),
        ("7d", 604800, "7d"),
    ],
)
def test_durations_are_read_and_shown_in_units(typed: str, seconds: float, shown: str) -> None:
    duration = durations.DURATION.convert(typed, None, None)

    assert duration == timedelta(seconds=seconds)
    assert durations.readable(duration) == shown


@pytest.mark.parametrize("typed", ["", "x", "-1", "1e3", "NaN", "1h30m", "5x", "0", "٣s"])
def test_what_is_no_duration_is_refused(typed: str) -> None:
    with pytest.raises(click.BadParameter):
        durations.DURATION.convert(typed, None, None)


def test_csv_is_quoted_where_it_has_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"a": 'x,"y"', "b": None, "c": {"k": timedelta(seconds=1)}, "d": True, "e": AT}

    output.rows(App(output="csv"), [row], list(row))

    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1] == [
        'x,"y"', "", '{"k": 1.0}', "true", "2026-03-01T12:30:00.123456+00:00",
    ]  # fmt: skip


def test_json_has_what_the_columns_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows(App(output="json"), [{"a": 1, "b": timedelta(seconds=2)}], ["a"])

    assert json.loads(capsys.readouterr().out) == [{"a": 1, "b": 2.0}]


ROWS = [{"name": "r_1", "text": "word " * 30}, {"name": "r_2", "text": "short"}]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A terminal of some width."""

    def of(columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return of


def test_a_table_that_fits_is_a_table(capsys: pytest.CaptureFixture[str], terminal: Any) -> None:
    terminal(200)
    output.rows(App(), ROWS, ["name", "text"])

    assert len(click.unstyle(capsys.readouterr().out).splitlines()) == 3


def test_a_table_too_wide_for_a_narrow_terminal_has_a_field_a_line(
    capsys: pytest.CaptureFixture[str], terminal: Any
) -> None:
    terminal(80)
    output.rows(App(), ROWS, ["name", "text"])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if line[:1] != " "] == ["name", "text", "", "name", "text"]
    assert max(map(len, lines)) <= 80


def test_a_table_too_wide_for_a_wide_terminal_folds_where_rich_is_installed(
    capsys: pytest.CaptureFixture[str], terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(120)
    output.rows(App(), ROWS, ["name", "text"])
    folded = click.unstyle(capsys.readouterr().out).splitlines()
    monkeypatch.setitem(sys.modules, "rich.console", None)
    output.rows(App(), ROWS, ["name", "text"])
    plain = capsys.readouterr().out.splitlines()

    assert folded[0].split() == ["name", "text"]
    assert max(map(len, folded)) <= 120
    assert plain[0] == "name  r_1"


HOLDER = "refunds-worker-7/4711/0123456789abcdef"
STEP = "ledger why m_1 r_1"
STUCK = [{"holder": HOLDER, "at": AT, "why": "its holder was fenced out", "reason": "said " * 30, "next": STEP}]


def test_folding_breaks_no_id_no_time_and_nothing_that_is_copied(
    capsys: pytest.CaptureFixture[str], terminal: Any
) -> None:
    terminal(140)
    output.rows(App(), STUCK, list(STUCK[0]))
    lines = click.unstyle(capsys.readouterr().out).splitlines()

    assert max(map(len, lines)) <= 140
    for whole in (HOLDER, output.cell(AT), "its holder was fenced", STEP):
        assert whole in lines[1]
    assert len(lines) > 3


def test_where_ids_leave_no_room_there_is_a_field_a_line(capsys: pytest.CaptureFixture[str], terminal: Any) -> None:
    terminal(120)
    output.rows(App(), STUCK, list(STUCK[0]))

    assert capsys.readouterr().out.startswith(f"holder  {HOLDER}\n")


def test_a_long_field_is_folded_beside_its_name_and_a_command_is_not(
    capsys: pytest.CaptureFixture[str], terminal: Any
) -> None:
    terminal(40)
    output.one(App(), {"reason": "said " * 12, "next": "ledger " * 12})

    assert capsys.readouterr().out.splitlines() == [
        "reason  said said said said said said",
        "        said said said said said said",
        "next    " + "ledger " * 12,
    ]


def test_a_folded_table_is_plain_where_no_colours_are_wanted(capsys: pytest.CaptureFixture[str], terminal: Any) -> None:
    terminal(120)
    with click.Context(click.Command("list")) as ctx:
        ctx.color = False
        output.rows(App(), ROWS, ["name", "text"])

    assert "\x1b" not in capsys.readouterr().out


def test_a_pipe_gets_whole_lines_whatever_their_length(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows(App(), ROWS, ["name", "text"])

    assert len(capsys.readouterr().out.splitlines()) == 3
