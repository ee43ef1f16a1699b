"""A refund's story as one HTML page: a timeline for each holder, and every event below. It needs no network."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Any

Row = dict[str, Any]

PIXELS_AN_EVENT = 22
PIXELS_AN_EVENT_OF_MANY = 8
NARROWEST = 280
LANE_HEIGHT = 34
NUMBERED_UP_TO = 60
"""More events than this, and their numbers would run into each other: the tooltip has them."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5d6b7c; --line: #d8dee6; --paper: #fff; --card: #f5f7fa;
  --move: #2563a8; --sent: #1c7c4a; --refusal: #c2352b; --fence: #8a5a00; --person: #7a3fa0; --span: #cfe0f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b6; --line: #36404d; --paper: #14181e;
  --card: #1d232c; --move: #6aa9ea; --sent: #53c18a; --refusal: #f0776d; --fence: #d9a441; --person: #c08be0;
  --span: #24405f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.25rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); }
code, .mono { font: .86em ui-monospace, monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .75rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.lanes { overflow: auto; max-height: 75vh; border: 1px solid var(--line); border-radius: 8px; padding: .5rem 0;
  background: var(--card); }
.lane { padding: .15rem .75rem; } .lane + .lane { border-top: 1px solid var(--line); }
.lane b { position: sticky; left: .75rem; display: inline-block; max-width: 88vw; font-weight: 600; font-size: .85rem;
  overflow-wrap: anywhere; }
svg { display: block; width: 100%; overflow: visible; }
svg text { font: 10px ui-monospace, monospace; fill: var(--soft); }
.dot { stroke: var(--card); stroke-width: 1.5; fill: var(--move); } .span { fill: var(--span); }
.sent { fill: var(--sent); } .refusal { fill: var(--refusal); } .fence { fill: var(--fence); }
.person { fill: var(--person); }
.rail { stroke: var(--line); } ul.key { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0;
  font-size: .85rem; color: var(--soft); } ul.key i { display: inline-block; width: .7em; height: .7em;
  border-radius: 50%; margin-right: .35em; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--soft); font-weight: 500; }
td, th { padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; } td:first-child { color: var(--soft); }
td:nth-child(3) { min-width: 9rem; } td:nth-child(4) { min-width: 15rem; } tr:target { background: var(--span); }
.when { white-space: nowrap; } .badge { border-left: .3rem solid var(--move); padding-left: .5rem; }
.badge.sent { border-color: var(--sent); } .badge.refusal { border-color: var(--refusal); }
.badge.fence { border-color: var(--fence); } .badge.person { border-color: var(--person); }
@media (max-width: 44rem) { body { padding: .75rem; } thead { display: none; } tr { display: block; padding: .4rem 0;
  border-bottom: 1px solid var(--line); } td { display: block; border: 0; padding: .1rem 0; }
  td:empty { display: none; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; } }
"""

KINDS = {
    "move": "a move",
    "sent": "recorded as sent",
    "refusal": "a refusal",
    "fence": "the fence was raised",
    "person": "a person",
}


def page(found: Row, amount: str) -> str:
    """The page of what `ledger why` found; `amount` as money. Whatever others wrote is escaped."""
    refund, story = found["refund"], found["story"]
    title = f"{refund['merchant_id']} {refund['refund_id']}"
    facts = {
        "amount": amount,
        "idempotency key": refund["idempotency_key"],
        "gateway reference": refund["gateway_ref"],
        "active token": _with(refund["active_token"], refund["active_holder"]),
        "lease now": _lease(found["lease"]),
        "the gateway says": (found["gateway"] or {}).get("text"),
    }
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}: {escape(refund['state'])}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}: {escape(refund['state'])}</h1>",
            _facts(facts),
            f"<h2>Who did what when</h2>{_lanes(story)}",
            f"<h2>What may be done now</h2>{_steps(found['next'])}",
            f"<h2>Every event, in order</h2>{_table(story)}",
            "</body></html>\n",
        ]
    )


def _with(token: Any, holder: Any) -> str | None:
    return None if token is None else f"{token}, {holder}"


def _lease(lease: Row) -> str:
    if not lease["seen"]:
        return "not looked at"
    return f"{lease['holder']}" if lease["held"] else "nobody has it"


def _facts(facts: Row) -> str:
    shown = (f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value is not None)
    return f"<dl>{''.join(shown)}</dl>"


def _steps(steps: list[str]) -> str:
    if not steps:
        return "<p>Nothing: it is final.</p>"
    return "".join(f"<p><code>{escape(step)}</code></p>" for step in steps)


def _places(times: list[datetime]) -> list[float]:
    """Where each event stands, in percent. A long pause takes more room than a short one, but not in proportion."""
    steps = [0.0]
    for before, after in pairwise(times):
        steps.append(steps[-1] + 1 + math.log1p(max(0.0, (after - before).total_seconds())) / 4)
    whole = steps[-1] or 1.0
    return [2 + 96 * step / whole for step in steps] if len(times) > 1 else [50.0]


def _lane_of(row: Row) -> str:
    if row.get("holder"):
        return f"token {row['token']}: {row['holder']}" if row.get("token") else str(row["holder"])
    if row.get("token"):
        return f"token {row['token']}"
    return f"{row['actor']}, by hand" if row.get("actor") else "without a token"


def _kind(row: Row) -> str:
    if row["what"] == "refusal":
        return "refusal"
    if row["what"] == "move":
        return "sent" if row["to_state"] == "sent" else "person" if row.get("actor") else "move"
    return "person" if row.get("actor") else "fence"


def _lanes(story: list[Row]) -> str:
    places = _places([row["at"] for row in story])
    lanes: dict[str, list[int]] = {}
    for number, row in enumerate(story):
        lanes.setdefault(_lane_of(row), []).append(number)
    raised = [number for number, row in enumerate(story) if row["what"] == "activated"]
    each = PIXELS_AN_EVENT if len(story) <= NUMBERED_UP_TO else PIXELS_AN_EVENT_OF_MANY
    width = max(NARROWEST, each * len(story))
    strips = "".join(
        f'<div class="lane" style="min-width:{width}px"><b>{escape(name)}</b>'
        f"{_strip(story, places, numbers, _span(story, numbers, raised))}</div>"
        for name, numbers in lanes.items()
    )
    key = "".join(f'<li><i style="background:var(--{kind})"></i>{text}</li>' for kind, text in KINDS.items())
    return (
        f'<div class="lanes" tabindex="0">{strips}{_axis(story, places, width)}</div><ul class="key">{key}'
        "<li>shaded: its token was the active one</li><li>pauses aren't to scale</li></ul>"
    )


def _span(story: list[Row], numbers: list[int], raised: list[int]) -> tuple[int, int] | None:
    """From which event to which the lane's token was the active one; the last one where it still is."""
    begin = next((number for number in numbers if story[number]["what"] == "activated"), None)
    if begin is None:
        return None
    return begin, next((number for number in raised if number > begin), len(story) - 1)


def _strip(story: list[Row], places: list[float], numbers: list[int], span: tuple[int, int] | None) -> str:
    middle = LANE_HEIGHT // 2
    size = 6 if len(story) <= NUMBERED_UP_TO else 4
    shapes = [f'<line class="rail" x1="0" x2="100%" y1="{middle}" y2="{middle}"/>']
    if span is not None:
        begin, end = places[span[0]], places[span[1]]
        width = max(0.5, end - begin)
        shapes.append(f'<rect class="span" x="{begin:.2f}%" width="{width:.2f}%" y="{middle - 7}" height="14" rx="4"/>')
    for number in numbers:
        row, place = story[number], f"{places[number]:.2f}%"
        hint = escape(f"{number + 1}. {_when(row['at'])} {row['text']}")
        shapes.append(
            f'<a href="#e{number + 1}"><circle class="dot {_kind(row)}" cx="{place}" cy="{middle}" r="{size}">'
            f"<title>{hint}</title></circle></a>"
        )
        if len(story) <= NUMBERED_UP_TO:
            shapes.append(f'<text x="{place}" y="{LANE_HEIGHT - 1}" text-anchor="middle">{number + 1}</text>')
    return f'<svg height="{LANE_HEIGHT}" role="img" aria-label="events of this holder">{"".join(shapes)}</svg>'


def _axis(story: list[Row], places: list[float], width: int) -> str:
    """Times below the lanes, so far apart that they don't touch."""
    marks: list[str] = []
    free_from = -1.0
    for number, row in enumerate(story):
        at = places[number] * width / 100
        if at < free_from:
            continue
        anchor = "start" if places[number] < 15 else "end" if places[number] > 85 else "middle"
        if anchor == "end" and marks:
            continue
        time = f"{row['at'].astimezone(UTC):%H:%M:%S}"
        marks.append(f'<text x="{places[number]:.2f}%" y="12" text-anchor="{anchor}">{time}</text>')
        free_from = at + 90
    axis = f'<svg height="16" aria-hidden="true">{"".join(marks)}</svg>'
    return f'<div class="lane" style="min-width:{width}px">{axis}</div>'


def _table(story: list[Row]) -> str:
    rows = "".join(_line(number, row) for number, row in enumerate(story, start=1))
    head = "".join(f"<th>{name}</th>" for name in ("", "when, UTC", "what", "under", "more"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _line(number: int, row: Row) -> str:
    more = [escape(str(row[name])) for name in ("money", "gateway_ref", "reason") if row.get(name)]
    if row.get("actor"):
        more.append(f"by {escape(row['actor'])}")
    more += [
        f'<span class="mono">{escape(json.dumps(row[name], default=str, ensure_ascii=False))}</span>'
        for name in ("evidence", "detail")
        if row.get(name)
    ]
    return (
        f'<tr id="e{number}"><td>{number}</td><td class="when mono">{_when(row["at"])}</td>'
        f'<td><span class="badge {_kind(row)}">{escape(row["text"])}</span></td>'
        f'<td class="mono">{escape(_lane_of(row))}</td><td>{"<br>".join(more)}</td></tr>'
    )


def _when(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
