"""The benchmarks measure what was promised, under the promised names, and their page says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import page
from bench.measuring import all_measures
from bench.svg import Plot
from bench.targets import TARGETS
from tests.test_house_rules import CHECKOUT

PROMISED = {
    "single_cpu_vs_raw": ">= 0.50",
    "single_wall_vs_raw": ">= 0.62",
    "single_vs_client_txn": ">= 1.6",
    "batch100_vs_raw_on": "<= 0.14",
    "batch100_vs_raw_off": "<= 0.25",
    "batch_linear": "<= 1.1",
    "settle_overhead": "<= 1.5",
    "settle_latency_bound": "<= 1.10",
    "scale_10m": "<= 1.2",
    "scale_held_snapshot": "<= 1.3",
    "wal_vs_raw": "<= 2.1",
    "refusal_wal": "<= 64",
    "activate_wait_vs_tx": "<= 3",
    "protected_bulk": "<= 0.5",
    "protected_row": "<= 2.0",
    "lease_round_trips": "= 2",
    "lease_vs_redispy": ">= 1.15",
    "lease_vs_redispy_8": ">= 1.15",
    "lease_vs_pottery": ">= 4",
    "handover_p50_ms": "<= 1.5",
    "handover_p99_ms": "<= 5",
    "watchdog_1000": "<= 2",
    "vs_procrastinate": ">= 50",
    "vs_pgqueuer_psycopg": ">= 10",
    "vs_pgqueuer_asyncpg": ">= 3",
    "deadlocks": "= 0",
    "workers8_vs_1": ">= 1.3",
    "import_rate": ">= 0.5",
    "import_rss_mb": "<= 80",
    "cli_start_help": "<= 2",
    "cli_start_show": "<= 6",
}


def test_the_targets_are_those_that_were_promised() -> None:
    assert {target.name: target.bound for target in TARGETS} == PROMISED


def test_each_target_is_measured_by_one_measure() -> None:
    assert sorted(name for measure in all_measures() for name in measure.names) == sorted(PROMISED)


def test_each_measure_says_what_it_measures() -> None:
    assert [measure.key for measure in all_measures() if len(measure.text) < 80] == []


@pytest.mark.parametrize(("bound", "met", "missed"), [(">= 0.50", 0.5, 0.499), ("<= 1.1", 1.1, 1.101), ("= 0", 0, 1)])
def test_a_bound_is_met_up_to_its_very_number(bound: str, met: float, missed: float) -> None:
    target = next(target for target in TARGETS if target.bound == bound)
    assert target.is_met_by(met)
    assert not target.is_met_by(missed)


def test_the_page_is_what_its_json_and_the_measures_say() -> None:
    """After a change of a docstring, a target or a limit: `python -m bench.page`."""
    data = json.loads((CHECKOUT / "docs" / page.KEPT).read_text())
    assert (CHECKOUT / "docs/performance.md").read_text() == page.page(data)
    for name, plot in page.plots(data).items():
        assert (CHECKOUT / "docs/performance" / name).read_text() == plot
    assert [name for name in PROMISED if f"| `{name}` |" not in page.page(data)] == []


def test_a_plot_shows_each_series_from_zero_upwards() -> None:
    drawn = Plot("A title", "size", "time").draw({"ours": [(10, 40.0), (100, 80.0)], "theirs": [(10, 20.0)]})
    root = ET.fromstring(drawn)
    told = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"A title", "size", "time", "ours", "theirs", "0", "10", "100"} <= set(told)
    dots = [float(dot.attrib["cy"]) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert dots[0] > dots[1], "what took longer is higher up"
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", ""), "it needs no network"


def test_a_part_runs_and_its_json_is_flat_with_the_rounds_beside(tmp_path: Path) -> None:
    file = tmp_path / "build" / "bench.json"
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "wal", "--rounds", "1", "--json", file],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    data = json.loads(file.read_text())
    for name in ("wal_vs_raw", "refusal_wal"):
        assert data[f"{name}.min"] <= data[name] <= data[f"{name}.max"]
        assert name in ran.stdout
    assert data["environment"]["rounds"] == 1
    assert 1 < data["wal_vs_raw"] < 4, "a fenced call writes its journal too"
    assert data["refusal_wal"] < 64 < data["wal_bytes"]
    assert (
        f"| `wal_vs_raw` | WAL bytes of a fenced call, over those of a plain UPDATE | {data['wal_vs_raw']:.3g} |"
        in (page.page(data))
    )
