"""`ledger import`: refunds from a CSV file, all or nothing."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click
from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app
from ledger.errors import InputRefusal

NEEDED = ["merchant_id", "refund_id", "amount", "currency"]
OPTIONAL = ["payment_ref", "gateway", "idempotency_key"]
ROWS_A_CALL = 1000
ROWS_BUFFERED = 20_000


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file; `number` counts from 1, the header included."""

    number: int
    merchant_id: str
    refund_id: str
    amount_minor: int
    currency: str
    payment_ref: str | None
    gateway: str | None
    idempotency_key: str | None


@command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@pass_app
def import_command(app: App, file: Path) -> None:
    """Add the refunds of FILE (- for stdin): all of them, or none if any is wrong. The same file again changes nothing.

    The first line names the columns, in any order: merchant_id, refund_id, amount, currency; and if there are any,
    payment_ref, gateway, idempotency_key. Amounts are decimals by the currency's exponent: 70.25 EUR, 58 JPY.

    \b
    Example:
      ledger import refunds.csv
    Exit codes: 0 done, 2 a line is wrong (it is named; nothing was added), 4 unreachable.
    """
    with app.connect() as connection, _opened(file) as source, connection.transaction(force_rollback=bool(app.dry_run)):
        exponents = {
            str(code): int(digits)
            for code, digits in connection.execute("select currency, exponent from ledger.currency").fetchall()
        }
        lines = parse(source, exponents)
        with _progress(source, lines) as shown:
            added, already = add(connection, shown)
    output.one(app, {"added": added, "already": already, "file": str(file)})
    if app.dry_run:
        output.say("dry run: rolled back, nothing was added")


def parse(source: BinaryIO, exponents: dict[str, int]) -> Iterator[Line]:
    """The lines of a CSV file. Raises BadInput, which names the line, at the first that is wrong."""
    # utf-8-sig: spreadsheets put a byte order mark in front.
    text = io.TextIOWrapper(source, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    number = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        for cells in reader:
            number = reader.line_num
            if cells:
                yield _line(number, header, cells, exponents)
    except UnicodeDecodeError as error:
        raise BadInput(f"after line {number}: the file is not UTF-8 ({error.reason}). Nothing was added.") from None
    except csv.Error as error:
        raise BadInput(f"line {reader.line_num}: {error}. Nothing was added.") from None
    finally:
        text.detach()


def _check_header(header: list[str]) -> None:
    expected = f"The first line must name {', '.join(NEEDED)}, and may name {', '.join(OPTIONAL)}. Nothing was added."
    missing = [name for name in NEEDED if name not in header]
    strange = [name for name in header if name not in NEEDED + OPTIONAL]
    twice = [name for name in set(header) if header.count(name) > 1]
    for what, names in (("lacks the column", missing), ("has the unknown column", strange), ("repeats", twice)):
        if names:
            raise BadInput(f"line 1: the header {what} {', '.join(map(repr, names))}. {expected}")


def _line(number: int, header: list[str], cells: list[str], exponents: dict[str, int]) -> Line:
    if len(cells) != len(header):
        raise BadInput(f"line {number}: {len(cells)} fields, the header has {len(header)}. Nothing was added.")
    row = dict(zip(header, cells, strict=True))
    for name in NEEDED:
        if not row[name].strip():
            raise BadInput(f"line {number}: {name} is empty. Nothing was added.")
    currency = row["currency"].strip()
    if currency not in exponents:
        raise BadInput(
            f"line {number}: the currency {currency!r} is not known. Give an ISO 4217 code. Nothing was added."
        )
    try:
        amount = minor(row["amount"].strip(), exponents[currency])
    except ValueError as error:
        raise BadInput(f"line {number}: the amount {row['amount']!r} {error}. Nothing was added.") from None
    rest = {name: row.get(name, "").strip() or None for name in OPTIONAL}
    return Line(number, row["merchant_id"], row["refund_id"], amount, currency, **rest)


def minor(text: str, exponent: int) -> int:
    """An amount like 70.25 in minor units. Raises ValueError, which says what is wrong with it."""
    match = re.fullmatch(r"([0-9]{1,15})(?:\.([0-9]+))?", text)
    if match is None:
        raise ValueError("is not a plain positive decimal like 70.25")
    fraction = match[2] or ""
    if len(fraction) > exponent:
        raise ValueError(f"has {len(fraction)} decimal places, its currency has {exponent}")
    amount = int(match[1] + fraction.ljust(exponent, "0"))
    if amount == 0:
        raise ValueError("is zero")
    return amount


def add(connection: Connection[Any], lines: Iterable[Line]) -> tuple[int, int]:
    """Add the lines in the connection's transaction: how many were added, how many were there already.

    Raises BadInput, which names the line, where one is refused. Holds a bounded number of lines in memory.
    """
    buffers: dict[str, list[Line]] = defaultdict(list)
    added = already = buffered = 0
    for line in lines:
        buffer = buffers[line.merchant_id]
        buffer.append(line)
        buffered += 1
        if len(buffer) == ROWS_A_CALL:
            full = [buffers.pop(line.merchant_id)]
        elif buffered >= ROWS_BUFFERED:
            full = [buffers.popitem()[1] for _ in list(buffers)]
        else:
            continue
        for chunk in full:
            buffered -= len(chunk)
            new, old = _add(connection, chunk)
            added, already = added + new, already + old
    for chunk in buffers.values():
        new, old = _add(connection, chunk)
        added, already = added + new, already + old
    return added, already


def _add(connection: Connection[Any], lines: list[Line]) -> tuple[int, int]:
    try:
        outcomes = Ledger(connection).add_refunds(
            lines[0].merchant_id,
            [line.refund_id for line in lines],
            [line.amount_minor for line in lines],
            [line.currency for line in lines],
            [line.payment_ref for line in lines],
            [line.gateway for line in lines],
            [line.idempotency_key for line in lines],
        )
    except InputRefusal as refusal:
        position = int(refusal.detail.get("position", 1))
        raise BadInput(
            f"line {lines[position - 1].number}: {refusal.reason or refusal.message}. Nothing was added."
        ) from refusal
    for line, outcome in zip(lines, outcomes, strict=True):
        if outcome.outcome == "LG301":
            raise BadInput(
                f"line {line.number}: refund {line.refund_id} of merchant {line.merchant_id} is recorded, or was named "
                f"before, with other content ({outcome.reason}). Nothing was added.\n"
                f"ledger show {line.merchant_id} {line.refund_id}"
            )
    added = sum(outcome.outcome == "added" for outcome in outcomes)
    return added, len(lines) - added


def _opened(file: Path) -> BinaryIO:
    return open(0, "rb", closefd=False) if str(file) == "-" else file.open("rb")


class _Shown:
    """Lines behind a progress bar on stderr, where that is a terminal."""

    def __init__(self, source: BinaryIO, lines: Iterator[Line]) -> None:
        self._source = source
        self._lines = lines
        size = os.fstat(source.fileno()).st_size
        self._bar = click.progressbar(
            length=size, label="importing", file=sys.stderr, hidden=not (size and sys.stderr.isatty())
        )

    def __enter__(self) -> Iterator[Line]:
        self._bar.__enter__()
        return self._walk()

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(None, None, None)

    def _walk(self) -> Iterator[Line]:
        while chunk := list(itertools.islice(self._lines, ROWS_A_CALL)):
            yield from chunk
            self._bar.update(self._source.tell() - self._bar.pos if self._source.seekable() else 0)


def _progress(source: BinaryIO, lines: Iterator[Line]) -> _Shown:
    return _Shown(source, lines)
