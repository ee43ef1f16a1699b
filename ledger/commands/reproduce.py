"""`ledger reproduce`: what each way of protecting a refund really guarantees, seen and counted."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ledger import reproduce
from ledger.commands import output
from ledger.commands.app import App, BadInput, command, pass_app
from ledger.commands.exits import UNEXPECTED
from ledger.commands.reproduce_page import page
from ledger.reproduce.place import Unfit
from ledger.reproduce.report import facts
from ledger.reproduce.run import Line, Story
from ledger.reproduce.words import SHOWN_MOMENTS

WIDEST = 110
COLUMNS = ["protection", "fault", "refunds", "movements", "sent_twice", "wrong", "written_over", "as_expected"]


@command(name="reproduce")
@click.option("--protection", type=click.Choice(list(reproduce.PROTECTIONS)), help="What guards the workers.")
@click.option("--fault", type=click.Choice(list(reproduce.FAULTS)), help="What goes wrong.")
@click.option("--all", "everything", is_flag=True, help="Every protection under every fault.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page; it needs no network."
)
@click.option("--embedded", is_flag=True, help="Servers of its own, whatever else is named.")
@click.option("--pg", default="18", show_default=True, help="Major version of the embedded Postgres: 18 or 16.")
@pass_app
def reproduce_command(
    app: App,
    protection: str | None,
    fault: str | None,
    everything: bool,
    html: Path | None,
    embedded: bool,
    pg: str,
) -> int:
    """Two workers, two refunds, one fault: count what is sent twice and recorded wrongly under each protection.

    The protections go from no lock to the ledger's own; docs/reproduce.md explains them and the faults. The gateway is
    the sandbox, without idempotency keys but for fence+key. One protection under one fault is told as a timeline. What
    should fail must fail: a cell that comes out otherwise than expected, also better, ends in exit code 1.

    Without --dsn and --redis it starts servers of its own, which are gone at the end and need the extra `embedded`.
    With both it works there: in a database that it makes and drops (the user needs CREATEDB), with keys of its own. A
    Redis that isn't its own is never flushed or stopped.

    \b
    Example:
      ledger reproduce --all
      ledger reproduce --protection renew --fault pause
      ledger reproduce --all --html matrix.html
    \b
    Exit codes:
      0 as expected       1 something came out otherwise       2 a server or a database can't be made
      4 Postgres or Redis can't be reached
    """
    app.refuse_dry_run("reproduce")
    if everything == bool(protection or fault):
        raise BadInput("what is to be reproduced isn't clear", "Give --all, or --protection, --fault or both")
    protections = [protection] if protection else list(reproduce.PROTECTIONS)
    faults = [fault] if fault else list(reproduce.FAULTS)
    _check_file(html)
    with _place(app, embedded, pg) as place:
        if fault and (reason := place.lacks(fault)):
            raise BadInput(f"{fault} can't be had here: {reason}")
        matrix = (
            _timeline(app, place, protections[0], faults[0])
            if protection and fault
            else _all(place, protections, faults)
        )
    if html is not None:
        html.write_text(page(matrix))
        output.say(f"the matrix is in {html}")
    if app.output == "json":
        click.echo(json.dumps(facts(matrix), indent=2))
    elif app.output == "csv":
        output.rows(app, facts(matrix)["cells"], COLUMNS)
    elif not (protection and fault):
        say_matrix(matrix)
    for failed in matrix.failed:
        click.echo(click.style("not as expected: ", fg="red") + failed, err=True)
    return UNEXPECTED if matrix.failed else 0


def _check_file(html: Path | None) -> None:
    """Better to hear of it now than in a minute."""
    try:
        if html is not None:
            html.touch()
    except OSError as error:
        raise BadInput(f"{html} can't be written: {error.strerror}. Nothing was changed") from None


@contextmanager
def _place(app: App, embedded: bool, pg: str) -> Iterator[reproduce.Place]:
    if embedded or not (app.dsn or app.redis):
        output.say("starting a Postgres and a Redis of its own")
        with reproduce.embedded(pg) as place:
            yield place
        return
    if not (app.dsn and app.redis):
        raise BadInput(
            f"{'Redis' if app.dsn else 'Postgres'} isn't named, and only one of the two is. Nothing was changed",
            "Give --dsn and --redis, or --embedded for servers of its own",
        )
    app.connect().close()
    try:
        with reproduce.yours(app.dsn, app.need_redis("settle"), output.say) as place:
            yield place
    except Unfit as unfit:
        raise BadInput(str(unfit), unfit.hint) from None


def _timeline(app: App, place: reproduce.Place, protection: str, fault: str) -> reproduce.Matrix:
    """One cell, told while it happens: run after run."""
    say = output.say if app.output in {"json", "csv"} else click.echo
    said: list[Story] = []

    def tell(story: Story, line: Line) -> None:
        if not any(each is story for each in said):
            said.append(story)
            say(f"\n{protection} under {fault}, {SHOWN_MOMENTS[story.moment]}:\n")
        say(f"{line.at:6.2f} s  {line.who:<8}  {line.text}")

    say(f"{protection}: {reproduce.PROTECTIONS[protection]}\n{fault}: {reproduce.FAULTS[fault]}")
    matrix = reproduce.run(place, [protection], [fault], at_once=1, tell=tell)
    (cell,) = matrix.cells
    for story in cell.stories:
        reason = cell.expected[story.moment].reason
        say("\n" + textwrap.fill(f"{SHOWN_MOMENTS[story.moment]}: {story.counts}. {reason}", WIDEST))
    return matrix


def _all(place: reproduce.Place, protections: list[str], faults: list[str]) -> reproduce.Matrix:
    cells = len(protections) * sum(place.lacks(fault) is None for fault in faults)
    with click.progressbar(
        length=cells, label="cells", file=sys.stderr, show_eta=False, hidden=not sys.stderr.isatty()
    ) as bar:
        return reproduce.run(place, protections, faults, done=lambda cell: bar.update(1))


def say_matrix(matrix: reproduce.Matrix) -> None:
    """The matrix, and under it what each protection comes to."""
    protections = list(dict.fromkeys(cell.protection for cell in matrix.cells))
    faults = list(dict.fromkeys(cell.fault for cell in matrix.cells))
    click.echo(
        "refunds sent twice / recorded wrongly: of 2, and of 4 under pause and kill, which come at two moments\n"
    )
    click.echo(click.style("  ".join([" " * 9, *faults]), bold=True))
    for protection in protections:
        cells = [_shown(matrix.cell(protection, fault), len(fault)) for fault in faults]
        click.echo("  ".join([f"{protection:<9}", *cells]).rstrip())
    for protection in protections:
        mine = [cell for cell in matrix.cells if cell.protection == protection]
        counts = sum((cell.counts for cell in mine), reproduce.Counts())
        refunds, movements = sum(cell.refunds for cell in mine), sum(cell.movements for cell in mine)
        click.echo("\n" + click.style(protection, bold=True))
        _fold(f"{refunds} refunds, {movements} movements at the gateway; {counts}.")
        _fold(reproduce.GUARANTEES[protection])
    for fault, reason in matrix.skipped.items():
        click.echo(f"\n{fault} is left out: {reason}")


def _shown(cell: reproduce.Cell | None, width: int) -> str:
    assert cell is not None
    counts = cell.counts
    text = f"{counts.sent_twice}/{counts.wrong}{'!' if cell.problems else ''}"
    colour = "red" if counts.wrong else "yellow" if counts.sent_twice else "green"
    return click.style(text, fg=colour) + " " * max(0, width - len(text))


def _fold(text: str) -> None:
    width = min(WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDEST
    click.echo(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
