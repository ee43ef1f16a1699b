"""Data to stdout as a table, JSON or CSV. Words go to stderr."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from ledger.commands import durations
from ledger.commands.app import App

Row = Mapping[str, Any]

FOLDS_FROM = 100
"""The narrowest terminal on which folded columns read better than a field a line."""

TIME = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+Z")

NARROWEST = 20
"""Text is folded to no less than that."""

COPIED = ("next", "mend")
"""What a person copies has no line breaks of ours in it; a terminal folds it by itself."""

EMPTY: tuple[Any, ...] = (None, "", [], {})
"""What a table says nothing of. (False and 0 are something.)"""


def say(text: str) -> None:
    """Words for a person."""
    click.echo(text, err=True)


def as_row(record: Any) -> dict[str, Any]:
    """A record as a mapping."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def rows(
    app: App, data: Sequence[Row], columns: Sequence[str], *, csv_columns: Sequence[str] = (), empty: str = "nothing"
) -> None:
    """Many rows: JSON as a list of objects with all their fields, CSV with the columns named.

    A table leaves out columns in which nothing stands. Without rows CSV is its header, and a table is the words
    `empty` on stderr.
    """
    if app.output == "json":
        click.echo(json.dumps([dict(row) for row in data], default=plain, indent=2))
    elif app.output == "csv":
        _csv(data, csv_columns or columns)
    elif not data:
        say(empty)
    else:
        filled = [column for column in columns if any(_is_something(row.get(column)) for row in data)]
        _table([[cell(row.get(column)) for column in filled] for row in data], filled)


def one(app: App, data: Row, *, human: Row | None = None) -> None:
    """One thing: JSON as an object, CSV as a header and a line, a table as a field a line.

    `human` is what a table says in place of `data`.
    """
    if app.output == "json":
        click.echo(json.dumps(dict(data), default=plain, indent=2))
    elif app.output == "csv":
        _csv([data], list(data))
    else:
        _fields(data if human is None else human)


def money(amount_minor: int, currency: str, exponent: int) -> str:
    """An amount for a person: 84,300.00 EUR."""
    return f"{decimal(amount_minor, exponent, ',')} {currency}"


def decimal(amount_minor: int, exponent: int, thousands: str = "") -> str:
    """An amount as a decimal: 70.25."""
    sign, digits = ("-" if amount_minor < 0 else ""), str(abs(amount_minor)).zfill(exponent + 1)
    whole, fraction = (digits[:-exponent], "." + digits[-exponent:]) if exponent else (digits, "")
    return f"{sign}{int(whole):,}{fraction}".replace(",", thousands)


def cell(value: Any) -> str:
    """A value for a person."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds") + "Z"
    if isinstance(value, timedelta):
        return durations.readable(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell(each)}" for name, each in value.items() if each != "")
    if isinstance(value, list | tuple):
        return "; ".join(cell(each) for each in value)
    return _on_one_line(str(value))


def plain(value: Any) -> Any:
    """A value for a program: times in ISO 8601, durations in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def _is_something(value: Any) -> bool:
    return not any(value == nothing for nothing in EMPTY)


def _on_one_line(text: str) -> str:
    # What others wrote, such as a gateway's reason, mustn't move the cursor of a terminal.
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def _csv(data: Sequence[Row], columns: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(row.get(column)) for column in columns] for row in data)


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool | dict | list | tuple):
        return json.dumps(value, default=plain)
    return plain(value)


def _fields(data: Row) -> None:
    shown = {name.replace("_", " "): value for name, value in data.items() if _is_something(value)}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(f"{name:<{width}}  {_hanging(name, cell(value), width + 2)}")


def _hanging(name: str, text: str, indent: int) -> str:
    """A field's text, folded beside its name where a terminal is too narrow for it."""
    room = shutil.get_terminal_size().columns - indent
    if name in COPIED or not sys.stdout.isatty() or room < NARROWEST:
        return text
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(lines)


def _table(cells: list[list[str]], columns: Sequence[str]) -> None:
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    terminal = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) - 2 > terminal:
        if terminal >= FOLDS_FROM and _folded(cells, columns, widths, terminal):
            return
        # As psql's \x auto does it.
        for number, row in enumerate(cells):
            if number:
                click.echo("")
            _fields(dict(zip(columns, row, strict=True)))
        return
    click.echo(click.style(_line(columns, widths), bold=True))
    for row in cells:
        click.echo(_line(row, widths))


def _folded(cells: list[list[str]], columns: Sequence[str], widths: Sequence[int], terminal: int) -> bool:
    """With the extra `rich`: a table that folds prose between words. False without it, or where that isn't enough."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    least = [_least(name, [row[i] for row in cells]) for i, name in enumerate(columns)]
    room = terminal - 2 * len(columns) + 2
    if sum(least) > room:
        return False
    # The widest give way first.
    cap = max(widths)
    while sum(folded := [min(width, max(cap, needed)) for width, needed in zip(widths, least, strict=True)]) > room:
        cap -= 1
    ctx = click.get_current_context(silent=True)
    plain_only = ctx is not None and ctx.color is False
    table = Table(box=None, pad_edge=False, header_style=None if plain_only else "bold")
    for name, width in zip(columns, folded, strict=True):
        table.add_column(name, overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    Console(no_color=plain_only, markup=False, highlight=False).print(table)
    return True


def _least(name: str, texts: Sequence[str]) -> int:
    """How narrow a column may become: no id, time or word is broken, and nothing that is copied."""
    least = len(name)
    for text in texts:
        whole = max(NARROWEST, *map(len, text.split())) if _is_prose(name, text) else len(text)
        least = max(least, whole)
    return least


def _is_prose(name: str, text: str) -> bool:
    return name not in COPIED and len(text) > NARROWEST and TIME.fullmatch(text) is None


def _line(values: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)).rstrip()
