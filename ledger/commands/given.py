"""Which refunds a command is about: named, read from stdin, or all of a merchant's that are in a state."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from ledger.commands import output
from ledger.commands.app import App, BadInput
from ledger.commands.look import STATES

SELECTED = """
    select r.refund_id, r.state, r.currency, c.exponent, r.amount_minor
    from ledger.refund as r
    join ledger.currency as c on c.currency = r.currency
    where r.merchant_id = %s and r.state = any(%s)
    order by r.refund_id
"""


@dataclass(frozen=True, slots=True)
class Given:
    """A merchant, and its refunds as they were typed."""

    merchant: str
    refunds: tuple[str, ...]
    everything: bool
    states: tuple[str, ...]

    def ids(self, app: App, verb: str, *, references: bool = False) -> dict[str, str | None]:
        """Refund ids, each once, with the reference that stands beside it; none where there is nothing to do.

        With --all their number and sums are shown, and the person is asked. Raises BadInput.
        """
        self._check()
        if self.everything:
            return dict.fromkeys(_selected(app, self.merchant, self.states, verb))
        found: dict[str, str | None] = {}
        for argument in self.refunds:
            pairs = _from_stdin(references) if argument == "-" else [(argument, None)]
            for refund, ref in pairs:
                if found.setdefault(refund, ref) != ref:
                    raise BadInput(
                        f"{refund} is given twice, with references {found[refund]} and {ref}. Nothing was changed"
                    )
        if not found:
            output.say("no refund ids came from stdin: nothing to do")
        return found

    def _check(self) -> None:
        if self.everything and self.refunds:
            raise BadInput("--all and refund ids exclude each other. Nothing was changed", "Give one of the two")
        if self.everything != bool(self.states):
            raise BadInput(
                "--all and --state belong together. Nothing was changed", "Give, for example, --all --state unknown"
            )
        if not (self.everything or self.refunds):
            raise BadInput(
                "no refund was named. Nothing was changed", "Give refund ids, - to read them, or --all --state STATE"
            )


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that make a `Given`: merchant, refunds, everything, states."""
    for decorate in (
        click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="For --all; repeatable."),
        click.option("--all", "everything", is_flag=True, help="All that are in --state; asks first."),
        click.argument("refunds", nargs=-1, metavar="[REFUND... | -]"),
        click.argument("merchant"),
    ):
        function = decorate(function)
    return function


def _selected(app: App, merchant: str, states: tuple[str, ...], verb: str) -> list[str]:
    with app.connect() as connection:
        rows = connection.execute(SELECTED, (merchant, list(states))).fetchall()
    if not rows:
        output.say(f"merchant {merchant} has no refund that is {' or '.join(states)}: nothing to do")
        return []
    sums: dict[tuple[str, int], int] = {}
    for _, _, currency, exponent, amount_minor in rows:
        sums[currency, exponent] = sums.get((currency, exponent), 0) + amount_minor
    money = ", ".join(output.money(total, currency, exponent) for (currency, exponent), total in sorted(sums.items()))
    number = f"{len(rows)} refund{'s' if len(rows) > 1 else ''}"
    output.say(f"{number} of {merchant} that {'are' if len(rows) > 1 else 'is'} {' or '.join(states)}: {money}")
    if not app.dry_run:
        app.confirm(f"{verb} {number}, {money}?")
    return [row[0] for row in rows]


def _from_stdin(references: bool) -> Iterator[tuple[str, str | None]]:
    """One id a line, with a reference after a comma where references are wanted; or a CSV that names its columns."""
    lines = ([cell.strip() for cell in row] for row in csv.reader(sys.stdin))
    columns = ["refund_id", "gateway_ref"]
    for number, cells in enumerate(lines, start=1):
        if not any(cells) or cells[0].startswith("#"):
            continue
        if number == 1 and "refund_id" in cells:
            columns = cells
            continue
        if len(cells) > len(columns) or (not references and len(cells) > 1 and columns[1:] == ["gateway_ref"]):
            wanted = "REFUND,REF" if references else "one refund id"
            raise BadInput(
                f"line {number} of stdin holds {len(cells)} fields; {wanted} was expected. Nothing was changed"
            )
        row = dict(zip(columns, cells, strict=False))
        yield row["refund_id"], (row.get("gateway_ref") or None) if references else None
