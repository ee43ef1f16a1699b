"""`ledger import`: refunds from a CSV file, all or nothing."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import re
import stat
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from ledger import calls
from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app
from ledger.errors import InputRefusal
from ledger.records import RowOutcome

NEEDED = ["merchant_id", "refund_id", "amount", "currency"]
OPTIONAL = ["payment_ref", "gateway", "idempotency_key"]
ROWS_A_CALL = 1000
ROWS_BUFFERED = 20_000
DECIMAL = re.compile(r"([0-9]+)(?:\.([0-9]+))?")
LARGEST = 2**63 - 1
"""What a bigint holds."""


class Line(NamedTuple):
    """A refund of the file; `number` is the line it begins on, counted from 1, the header included."""

    number: int
    merchant_id: str
    refund_id: str
    amount_minor: int
    currency: str
    payment_ref: str | None
    gateway: str | None
    idempotency_key: str | None


class BadLine(BadInput):
    """A line of the file can't be used."""

    def __init__(self, number: int, problem: str, hint: str | None = None) -> None:
        super().__init__(f"line {number}: {problem}. Nothing was added", hint)


@command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@pass_app
def import_command(app: App, file: Path) -> None:
    """Add the refunds of FILE (- for stdin): all of them, or none if any is wrong. The same file again changes nothing.

    A CSV in UTF-8 whose first line names the columns, in any order: merchant_id, refund_id, amount, currency; and if
    there are any, payment_ref, gateway, idempotency_key. Amounts are decimals by the currency's exponent: 70.25 EUR,
    58 JPY.

    \b
    Example:
      ledger import refunds.csv
      ledger import refunds.csv --dry-run
    \b
    Exit codes:
      0 done       2 a line is wrong (it is named; nothing was added)
      4 Postgres can't be reached      9 schema missing or behind
    """
    with app.connect() as connection, _opened(file) as source, connection.transaction(force_rollback=bool(app.dry_run)):
        exponents = {
            str(code): int(digits)
            for code, digits in connection.execute("select currency, exponent from ledger.currency").fetchall()
        }
        lines = _watched(parse(source, exponents), source)
        with _read_ahead(_chunks(lines), source) as chunks:
            added, already = add(app.ledger(connection), chunks)
    output.one(app, {"added": added, "already": already, "file": "stdin" if str(file) == "-" else str(file)})
    if app.dry_run:
        output.say("dry run: rolled back, nothing was added")


def parse(source: BinaryIO, exponents: dict[str, int]) -> Iterator[Line]:
    """The refunds of a CSV file. Raises BadLine at the first line that is wrong."""
    # utf-8-sig: spreadsheets put a byte order mark in front.
    text = io.TextIOWrapper(source, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    number = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        pick = itemgetter(*(header.index(name) if name in header else -1 for name in NEEDED + OPTIONAL))
        number = reader.line_num + 1
        for cells in reader:
            if cells:
                if len(cells) != len(header):
                    raise BadLine(number, f"it has {len(cells)} fields, the header has {len(header)}")
                cells.append("")  # a column that the file lacks, for pick
                yield _line(number, pick(cells), exponents)
            number = reader.line_num + 1
    except UnicodeDecodeError as error:
        # The decoder reads ahead, so the line is known only roughly.
        raise BadInput(
            f"the file is not UTF-8, somewhere after line {number}: {error.reason}. Nothing was added",
            "Save it as CSV UTF-8",
        ) from None
    except csv.Error as error:
        raise BadLine(number, f"it is no CSV: {error}") from None
    finally:
        text.detach()


def _check_header(header: list[str]) -> None:
    columns = f"The first line names {', '.join(NEEDED)}, and may name {', '.join(OPTIONAL)}; with commas between"
    if not header:
        raise BadInput("the file is empty. Nothing was added", columns)
    missing = [name for name in NEEDED if name not in header]
    strange = [name for name in header if name not in NEEDED + OPTIONAL]
    twice = sorted({name for name in header if header.count(name) > 1})
    for what, names in (("names the unknown column", strange), ("lacks the column", missing), ("repeats", twice)):
        if names:
            raise BadLine(1, f"the header {what} {', '.join(map(repr, names))}", columns)


def _line(number: int, cells: tuple[str, ...], exponents: dict[str, int]) -> Line:
    merchant_id, refund_id, amount, currency, payment_ref, gateway, key = cells
    code = currency.strip()
    if "\0" in "".join(cells) or not (merchant_id.strip() and refund_id.strip() and amount.strip() and code):
        raise _bad_cell(number, cells)
    if code not in exponents:
        raise BadLine(number, f"the currency {code!r} is not known", "Give its ISO 4217 code, like EUR")
    try:
        amount_minor = minor(amount.strip(), exponents[code])
    except ValueError as error:
        raise BadLine(number, f"the amount {amount!r} {error}") from None
    return Line(
        number, merchant_id, refund_id, amount_minor, code,
        payment_ref.strip() or None, gateway.strip() or None, key.strip() or None,
    )  # fmt: skip


def _bad_cell(number: int, cells: tuple[str, ...]) -> BadLine:
    problems = [
        f"{name} holds a NUL character" if "\0" in value else f"{name} is empty"
        for name, value in zip(NEEDED + OPTIONAL, cells, strict=True)
        if "\0" in value or (name in NEEDED and not value.strip())
    ]
    return BadLine(number, problems[0])


def minor(text: str, exponent: int) -> int:
    """An amount like 70.25 in minor units. Raises ValueError, which says what is wrong with it."""
    match = DECIMAL.fullmatch(text)
    if match is None:
        raise ValueError("is no plain positive decimal like 70.25")
    whole, fraction = match[1], match[2] or ""
    if len(fraction) > exponent:
        raise ValueError(f"has {len(fraction)} decimal places, and its currency has {exponent}")
    if len(whole) > len(str(LARGEST)) or (amount := int(whole + fraction.ljust(exponent, "0"))) > LARGEST:
        raise ValueError("is larger than the ledger holds")
    if amount == 0:
        raise ValueError("is zero")
    return amount


def add(ledger: Ledger, chunks: Iterable[list[Line]]) -> tuple[int, int]:
    """Add the lines in the connection's transaction: how many were added, how many were there already.

    Raises BadLine where one is refused.
    """
    added = already = 0
    for chunk in chunks:
        new, old = _add(ledger, chunk)
        added, already = added + new, already + old
    return added, already


@contextlib.contextmanager
def _read_ahead(chunks: Iterator[list[Line]], source: BinaryIO) -> Iterator[Iterator[list[Line]]]:
    """The same chunks; of a file, the next is read by another thread while Postgres works on the one before."""
    if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        yield chunks  # whoever writes into a pipe may take their time, and Ctrl-C shouldn't wait for them
        return
    with ThreadPoolExecutor(1, "ledger-import") as reader:

        def ahead() -> Iterator[list[Line]]:
            coming = reader.submit(next, chunks, None)
            while (chunk := coming.result()) is not None:
                coming = reader.submit(next, chunks, None)
                yield chunk

        yield ahead()


def _chunks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines by merchant, as many as a call takes; what is held back is bounded."""
    buffers: dict[str, list[Line]] = defaultdict(list)
    buffered = 0
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
            yield chunk
    yield from buffers.values()


def _add(ledger: Ledger, lines: list[Line]) -> tuple[int, int]:
    call = calls.add_refunds(
        lines[0].merchant_id,
        [line.refund_id for line in lines],
        [line.amount_minor for line in lines],
        [line.currency for line in lines],
        _given([line.payment_ref for line in lines]),
        _given([line.gateway for line in lines]),
        _given([line.idempotency_key for line in lines]),
    )
    # Of a million rows that were added, none needs to be told.
    others = dataclasses.replace(call, statement=f"{call.statement} where outcome <> 'added'")
    try:
        outcomes = ledger.send(others)
    except InputRefusal as refusal:
        number = lines[int(refusal.detail.get("position", 1)) - 1].number
        raise BadLine(number, _problem(refusal)) from refusal
    for outcome in outcomes:
        if outcome.outcome == "LG301":
            raise _conflict(lines[outcome.position - 1], outcome)
    return len(lines) - len(outcomes), len(outcomes)


def _given(values: list[str | None]) -> list[str | None] | None:
    """A column of the file, or None where nothing stands in it."""
    return values if any(values) else None


def _conflict(line: Line, outcome: RowOutcome) -> BadLine:
    if outcome.state is None:
        key = line.idempotency_key or f"{line.merchant_id}/{line.refund_id}"
        return BadLine(line.number, f"the idempotency key {key} belongs to another refund")
    return BadLine(
        line.number,
        f"{line.merchant_id} {line.refund_id} is recorded, or stands on an earlier line, with another "
        + str(outcome.reason).replace("amount_minor", "amount"),
        f"ledger show {line.merchant_id} {line.refund_id} tells what is recorded. Another refund needs another id",
    )


def _problem(refusal: InputRefusal) -> str:
    """What is wrong, out of `add_refunds of m_1 r_1 refused: what is wrong; nothing was changed`."""
    return refusal.message.partition(" refused: ")[2].removesuffix("; nothing was changed") or refusal.message


def _opened(file: Path) -> BinaryIO:
    try:
        return open(0, "rb", closefd=False) if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise BadInput(f"{file} can't be read: {error.strerror}. Nothing was added") from None


def _watched(lines: Iterator[Line], source: BinaryIO) -> Iterator[Line]:
    """The same lines, behind a progress bar on stderr where that is a terminal and the file's size is known."""
    about = os.fstat(source.fileno())
    hidden = not (stat.S_ISREG(about.st_mode) and about.st_size and sys.stderr.isatty())
    bar: Any
    with click.progressbar(length=about.st_size, label="importing", file=sys.stderr, hidden=hidden) as bar:
        for position, line in enumerate(lines):
            if not hidden and position % ROWS_A_CALL == 0:
                bar.update(source.tell() - bar.pos)
            yield line
        if not hidden:
            bar.update(source.tell() - bar.pos)
