"""Write docs/performance.md and its plots from the JSON of a run, which is kept beside the plots.

`python -m bench.page build/bench.json`; without a file, from the one that is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.limits import LIMITS
from bench.measuring import Measure, all_measures
from bench.svg import Plot
from bench.targets import TARGETS, Target

KEPT = Path("performance/bench.json")
PLOTS = {
    "batch": Plot("Claim and confirm, by the size of the batch", "refunds a call", "µs a refund"),
    "size": Plot("One claim, by the size of the table", "refunds in the table", "µs a claim"),
    "in_flight": Plot("Settling, by the calls in flight", "calls in flight at once", "ms a refund"),
}
SHARES = {
    "backend": "The backend, by function of ours (µs a claim)",
    "statements": "The statements for its row, each in a loop by itself (µs)",
    "client": "The client, by module, as cProfile sees it (µs a claim)",
}

HEAD = """\
# Performance

What the fence costs, and what the batches give back. What is compared takes turns in one run, in shuffled order; a
figure is the median of its rounds, with the least and the greatest beside it. Ratios carry over to other machines,
times don't.

```
make bench               # everything, in less than 15 minutes on two cores, on servers of its own; build/bench.json
make bench ONLY=batch    # a part: {parts}
make bench-page          # everything, and this page from it
```

What this page was made from: [bench.json](performance/bench.json).
"""


def page(data: Mapping[str, Any]) -> str:
    """The page, from the JSON of a whole run."""
    measures = all_measures()
    parts = ", ".join(dict.fromkeys(measure.part for measure in measures))
    sections = [
        HEAD.format(parts=parts),
        _environment(data["environment"]),
        "## Targets\n",
        _table(data),
        _limits(data),
        "## Where the time of a claim goes\n",
        *(_share(title, data["shares"][name]) for name, title in SHARES.items() if name in data["shares"]),
        "## Plots\n",
        *(f"![{plot.title}](performance/{name}.svg)\n" for name, plot in PLOTS.items() if name in data["curves"]),
        "## What was measured, on what\n",
        *(_measure(measure, data) for measure in measures),
    ]
    return "\n".join(section for section in sections if section)


def plots(data: Mapping[str, Any]) -> dict[str, str]:
    """The files of the plots, by name."""
    return {f"{name}.svg": PLOTS[name].draw(curve) for name, curve in data["curves"].items()}


def _environment(found: Mapping[str, Any]) -> str:
    return (
        f"Measured on {found['day']}: PostgreSQL {found['postgres']}, Python {found['python']}, psycopg "
        f"{found['psycopg']}, redis-py {found['redis_py']}; {found['cores']} cores ({found['cpu']}), "
        f"{found['system']}; {found['rounds']} rounds, {found['seconds']} s in all. Client and server share the "
        "cores.\n"
    )


def _table(data: Mapping[str, Any]) -> str:
    rows = ["| name | what | figure | rounds | target | met |", "|---|---|---|---|---|---|"]
    rows += [_row(target, data) for target in TARGETS]
    return "\n".join(rows) + "\n"


def _row(target: Target, data: Mapping[str, Any]) -> str:
    start = f"| `{target.name}` | {target.what} |"
    if target.name not in data:
        return f"{start} not measured: {data['not_measured'].get(target.name, 'not asked for')} | | {target.bound} | |"
    met = "yes" if target.is_met_by(data[target.name]) else "**no**"
    return f"{start} {_shown(data[target.name])} | {_spread(target.name, data)} | {target.bound} | {met} |"


def _spread(name: str, data: Mapping[str, Any]) -> str:
    return f"{_shown(data[f'{name}.min'])} .. {_shown(data[f'{name}.max'])}"


def _limits(data: Mapping[str, Any]) -> str:
    missed = [target for target in TARGETS if target.name in data and not target.is_met_by(data[target.name])]
    if not missed:
        return ""
    told = [f"- `{target.name}`: {LIMITS.get(target.name, 'missed in this run alone.')}" for target in missed]
    return "\n".join(["### Where a target isn't met\n", *told]) + "\n"


def _share(title: str, pieces: Mapping[str, float]) -> str:
    whole = sum(pieces.values())
    rows = [f"| {title} | | |", "|---|---|---|"]
    rows += [f"| {name} | {value:.1f} | {value / whole:.0%} |" for name, value in pieces.items()]
    return "\n".join(rows) + "\n"


def _measure(measure: Measure, data: Mapping[str, Any]) -> str:
    names = ", ".join(f"`{name}`" for name in measure.names) or f"`{measure.part}`, {measure.run.__name__}"
    others = data["beside"].get(measure.key, ())
    beside = [f"| `{name}` | {_shown(data[name])} | {_spread(name, data)} |" for name in others]
    table = "\n".join(["\n| beside it | figure | rounds |", "|---|---|---|", *beside, ""]) if beside else ""
    return f"### {names}\n\n{measure.text}\n{table}"


def _shown(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def write(data: Mapping[str, Any], docs: Path) -> None:
    """The page, its plots, and what they were made from."""
    folder = docs / KEPT.parent
    folder.mkdir(parents=True, exist_ok=True)
    (docs / KEPT).write_text(json.dumps(data, indent=1) + "\n")
    (docs / "performance.md").write_text(page(data))
    for name, text in plots(data).items():
        (folder / name).write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Write the page and the plots."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description="Write the page of the benchmarks.")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the folder of the page (default docs)")
    parser.add_argument("json", type=Path, nargs="?", help="what a run wrote (default: what the page was made from)")
    options = parser.parse_args(arguments)
    source = options.json or options.docs / KEPT
    write(json.loads(source.read_text()), options.docs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
