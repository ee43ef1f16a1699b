"""What the tests of seeing share: the command line, Prometheus' promtool, and numbers as series."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import cli, gateway, held, nowhere, quiet_shell, refund, start

__all__ = ["cli", "gateway", "held", "nowhere", "quiet_shell", "refund", "start"]

CHECKOUT = Path(__file__).parents[2]
RULES = CHECKOUT / "docs/ops/ledger.rules.yml"

Promtool = Callable[..., "subprocess.CompletedProcess[str]"]
Firing = Callable[[list[str]], set[str]]


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Prometheus' own judge of numbers and rules."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool here")

    def call(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, arguments)], input=stdin, text=True, capture_output=True, check=False, timeout=30
        )

    return call


@pytest.fixture
def firing(promtool: Promtool, tmp_path: Path) -> Firing:
    """Which alarms fire a minute after the last of these scrapes, which came a minute apart.

    promtool only says whether what is expected came true, so it is asked about each alarm whether it is silent.
    """

    def look(scrapes: list[str]) -> set[str]:
        minutes = len(scrapes)
        series = [
            {"series": name, "values": " ".join(values(scrapes, name))}
            for name in sorted({name for scrape in scrapes for name in named(scrape)})
        ]
        group = {
            "interval": "1m",
            "input_series": series,
            "alert_rule_test": [
                {"eval_time": f"{minutes}m", "alertname": alarm, "exp_alerts": []} for alarm in alarms()
            ],
        }
        file = tmp_path / "firing.json"
        file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [group]}))
        said = promtool("test", "rules", file)
        report = said.stdout + said.stderr
        fired = {alarm for alarm in alarms() if f"alertname: {alarm}," in report}
        assert said.returncode == 0 or fired, report
        return fired

    return look


def alarms() -> list[str]:
    """The alarms of the rule file, in order."""
    lines = RULES.read_text().splitlines()
    return [line.split("alert:")[1].strip() for line in lines if "- alert:" in line]


def named(scrape: str) -> dict[str, str]:
    """A scrape's series and their values."""
    return dict(line.rsplit(" ", 1) for line in scrape.splitlines() if line and not line.startswith("#"))


def values(scrapes: list[str], name: str) -> list[str]:
    """A series in promtool's words, and once more as it is in the end; one that has gone is `stale`."""
    seen: list[str] = []
    for scrape in [*scrapes, scrapes[-1]]:
        gone = "stale" if any(value != "_" for value in seen) else "_"
        seen.append(named(scrape).get(name, gone))
    return seen


def series(scrape: str, name: str, **labels: Any) -> float:
    """One value of a scrape: of the series with exactly these labels, zero where there is none."""
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return float(named(scrape).get(f"{name}{{{pairs}}}" if pairs else name, 0))
