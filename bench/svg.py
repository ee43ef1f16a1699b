"""Plots as SVG files: lines over a logarithmic axis, readable on light and on dark, with no script and no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 40, 56, 48
COLOURS = ("#2f7fd1", "#d9822b", "#3d9a57", "#a357c2")

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #57606a }
.title { font-size: 14px; font-weight: 600; fill: #24292f }
.grid { stroke: #8c959f; stroke-opacity: .3 }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #9198a1 } .title { fill: #e6edf3 } }
"""

Point = Sequence[float]


@dataclass(frozen=True, slots=True)
class Plot:
    """What a plot says: its title, and what its axes are."""

    title: str
    x: str
    y: str

    def draw(self, series: Mapping[str, Sequence[Point]]) -> str:
        """The file: one line for each series of points (x, y), from zero upwards."""
        xs = sorted({point[0] for points in series.values() for point in points})
        top = _round_up(max(point[1] for points in series.values() for point in points))
        low, high = math.log(xs[0]), math.log(xs[-1])

        def place(point: Point) -> tuple[float, float]:
            across = (math.log(point[0]) - low) / ((high - low) or 1)
            return (
                LEFT + across * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - point[1] / top * (HEIGHT - TOP - BOTTOM),
            )

        parts = [_text(LEFT, 20, self.title, "start", "title")]
        for step in range(5):
            value = top * step / 4
            _, y = place((xs[0], value))
            parts += [_rule(y), _text(LEFT - 8, y + 4, f"{value:g}", "end")]
        for x in xs:
            parts.append(_text(place((x, 0))[0], HEIGHT - BOTTOM + 18, f"{x:,.0f}", "middle"))
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, self.x, "middle"))
        parts.append(_text(LEFT, TOP - 8, self.y, "start"))
        for (name, points), colour, row in zip(series.items(), COLOURS, range(len(COLOURS)), strict=False):
            placed = [place(point) for point in points]
            parts += [_line(placed, colour), *(_dot(spot, colour) for spot in placed), _key(row, name, colour)]
        size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>'
        return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _round_up(value: float) -> float:
    """The next number whose quarters are short to write."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _rule(y: float) -> str:
    return f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _line(placed: Sequence[tuple[float, float]], colour: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    return f'<polyline class="line" stroke="{colour}" points="{points}"/>'


def _dot(spot: tuple[float, float], colour: str) -> str:
    return f'<circle cx="{spot[0]:.1f}" cy="{spot[1]:.1f}" r="3" fill="{colour}"/>'


def _key(row: int, name: str, colour: str) -> str:
    y = TOP - 8 + 16 * row
    return _text(WIDTH - RIGHT - 18, y, name, "end") + _dot((WIDTH - RIGHT - 6, y - 4), colour)
