"""The matrix of `ledger reproduce` as one HTML page. It needs no network."""

from __future__ import annotations

from html import escape

from ledger.reproduce import FAULTS, GUARANTEES, PROTECTIONS, Cell, Counts, Matrix
from ledger.reproduce.run import Story
from ledger.reproduce.words import SHOWN_MOMENTS

STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5d6b7c; --line: #d8dee6; --paper: #fff; --card: #f5f7fa;
  --ok: #e3f4ea; --ok-ink: #14613a; --warn: #fdf1d5; --warn-ink: #6e4800; --bad: #fbe3e0; --bad-ink: #9c2219; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b6; --line: #36404d; --paper: #14181e;
  --card: #1d232c; --ok: #16372a; --ok-ink: #7fdcab; --warn: #3d3013; --warn-ink: #f0c878; --bad: #43201d;
  --bad-ink: #f6a49d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1.25rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: .25rem 0; }
p { margin: .25rem 0; max-width: 75ch; } .soft { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--soft); padding-bottom: .5rem; }
th, td { border: 1px solid var(--line); padding: .4rem .55rem; text-align: left; vertical-align: top; }
thead th { background: var(--card); } td a { color: inherit; } td small { display: block; }
.ok { background: var(--ok); color: var(--ok-ink); } .warn { background: var(--warn); color: var(--warn-ink); }
.bad { background: var(--bad); color: var(--bad-ink); } td.ok b, td.warn b, td.bad b { font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; max-width: 75ch; }
section { border-top: 1px solid var(--line); padding: .4rem 0; } summary { cursor: pointer; color: var(--soft); }
section:target { background: var(--card); }
ol { list-style: none; margin: .25rem 0 .75rem; padding: 0; font: .83rem/1.5 ui-monospace, monospace; }
li { display: grid; grid-template-columns: 5rem 5.5rem 1fr; } li span { overflow-wrap: anywhere; }
@media print { :root { --ink: #000; --paper: #fff; } body { max-width: none; font-size: 11px; padding: 0; }
  td, th { print-color-adjust: exact; -webkit-print-color-adjust: exact; } tr, section { break-inside: avoid; }
  details { display: none; } }
"""

WORDS = (
    "Two worker processes, two refunds, a real Postgres, a real Redis; the gateway is a sandbox with a log of its own. "
    "Sent twice: the gateway moved money for the refund more than once. Recorded wrongly: the movements that the "
    "database names (in the refund, and in what it refused) aren't those that the gateway counted. Written over: of "
    "these, a movement had been recorded, and another worker's write removed it."
)


def page(matrix: Matrix) -> str:
    """The page of a matrix."""
    faults = list(dict.fromkeys(cell.fault for cell in matrix.cells))
    protections = list(dict.fromkeys(cell.protection for cell in matrix.cells))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>What each protection guarantees</title><style>{STYLE}</style></head><body>",
            "<h1>What each protection guarantees</h1>",
            f"<p>{escape(WORDS)}</p>{_verdict(matrix)}",
            f'<div class="scroll" tabindex="0">{_table(matrix, protections, faults)}</div>',
            f"<h2>What each comes to</h2>{_guarantees(matrix, protections)}",
            f"<h2>The protections</h2>{_list({name: PROTECTIONS[name] for name in protections})}",
            f"<h2>The faults</h2>{_list({name: FAULTS[name] for name in faults})}",
            f"<h2>Every cell</h2>{''.join(_details(cell) for cell in matrix.cells)}",
            "</body></html>\n",
        ]
    )


def _verdict(matrix: Matrix) -> str:
    notes = [f"{len(matrix.cells)} cells in {matrix.seconds:.0f} seconds."]
    notes += [f"{fault} is left out: {reason}." for fault, reason in matrix.skipped.items()]
    if not matrix.failed:
        return f'<p class="soft">{escape(" ".join(notes))} Every cell came out as expected.</p>'
    failed = "".join(f"<p>{escape(each)}</p>" for each in matrix.failed)
    return f'<p class="soft">{escape(" ".join(notes))}</p><div class="bad"><p><b>Not as expected:</b></p>{failed}</div>'


def _table(matrix: Matrix, protections: list[str], faults: list[str]) -> str:
    head = "".join(f'<th scope="col">{escape(fault)}</th>' for fault in faults)
    rows = "".join(
        f'<tr><th scope="row">{escape(protection)}</th>'
        f"{''.join(_cell(matrix.cell(protection, fault)) for fault in faults)}</tr>"
        for protection in protections
    )
    caption = "Protections by faults: refunds sent twice and recorded wrongly, and what the gateway counted"
    return (
        f'<table><caption>{caption}</caption><thead><tr><th scope="col">protection</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    counts = cell.counts
    over = f", {counts.written_over} written over" if counts.written_over else ""
    return (
        f'<td class="{_class(counts)}"><a href="#{_id(cell)}"><b>{counts.sent_twice} sent twice</b></a>'
        f"<small>{counts.wrong} wrong{over}</small>"
        f"<small>{cell.movements} movements, {cell.refunds} refunds</small>"
        f"{'<small><b>not as expected</b></small>' if cell.problems else ''}</td>"
    )


def _class(counts: Counts) -> str:
    return "bad" if counts.wrong else "warn" if counts.sent_twice else "ok"


def _id(cell: Cell) -> str:
    return f"{cell.protection.replace('+', '-and-')}-under-{cell.fault}"


def _guarantees(matrix: Matrix, protections: list[str]) -> str:
    shown = {}
    for protection in protections:
        counts = sum((cell.counts for cell in matrix.cells if cell.protection == protection), Counts())
        shown[protection] = f"{GUARANTEES[protection]} (Here: {counts}.)"
    return _list(shown)


def _list(items: dict[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in items.items())}</dl>"


def _details(cell: Cell) -> str:
    stories = "".join(_story(story, cell.expected[story.moment].reason) for story in cell.stories)
    return f'<section id="{_id(cell)}"><h3>{escape(cell.protection)} under {escape(cell.fault)}</h3>{stories}</section>'


def _story(story: Story, reason: str) -> str:
    lines = "".join(
        f"<li><span>{line.at:.2f} s</span><span>{escape(line.who)}</span><span>{escape(line.text)}</span></li>"
        for line in story.lines
    )
    came = f"{SHOWN_MOMENTS[story.moment]}: {story.counts}"
    return (
        f"<p><b>{escape(came)}.</b> {escape(reason)}</p>"
        f"<details><summary>what happened</summary><ol>{lines}</ol></details>"
    )
