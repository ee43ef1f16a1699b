"""Data to stdout as a table, JSON or CSV. Words go to stderr."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from ledger.commands.app import App

Row = Mapping[str, Any]


def say(text: str) -> None:
    """Words for a person."""
    click.echo(text, err=True)


def as_row(record: Any) -> dict[str, Any]:
    """A record as a mapping."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def rows(app: App, data: Sequence[Row], columns: Sequence[str], *, empty: str = "nothing") -> None:
    """Many rows. JSON: a list of objects, with all their fields; table and CSV: the columns named."""
    if app.output == "json":
        click.echo(json.dumps([dict(row) for row in data], default=_plain, indent=2))
    elif app.output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row.get(column)) for column in columns] for row in data)
    elif data:
        _table([[_cell(row.get(column)) for column in columns] for row in data], columns)
    else:
        say(empty)


def one(app: App, data: Row) -> None:
    """One thing, a field a line. JSON: one object."""
    if app.output == "json":
        click.echo(json.dumps(dict(data), default=_plain, indent=2))
    elif app.output == "csv":
        rows(app, [data], list(data))
    else:
        width = max(len(name) for name in data)
        for name, value in data.items():
            if value not in (None, "", [], {}):
                click.echo(f"{name.replace('_', ' '):<{width}}  {_cell(value)}")


def money(amount_minor: int, currency: str, exponent: int) -> str:
    """An amount for a person: 70.25 EUR."""
    sign, digits = ("-" if amount_minor < 0 else ""), str(abs(amount_minor)).zfill(exponent + 1)
    whole, fraction = (digits[:-exponent], "." + digits[-exponent:]) if exponent else (digits, "")
    return f"{sign}{whole}{fraction} {currency}"


def _table(cells: list[list[str]], columns: Sequence[str]) -> None:
    if sys.stdout.isatty() and _rich_table(cells, columns):
        return
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    for row in [list(columns), *cells]:
        click.echo("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(cells: list[list[str]], columns: Sequence[str]) -> bool:
    """On a terminal, with the extra `rich`: a table that folds long cells to the width. False without it."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    ctx = click.get_current_context(silent=True)
    Console(no_color=bool(ctx is not None and ctx.color is False), markup=False, highlight=False).print(table)
    return True


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, dict | list):
        return json.dumps(value, default=_plain)
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _cell(value)
