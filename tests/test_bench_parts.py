"""The parts of the benchmarks that need nobody to measure against run, and find what must be so on any machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_house_rules import CHECKOUT


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_round_of_them_finds_what_holds_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "contention", "protected", "cli", "--rounds", "1", "--json", file],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    data = json.loads(file.read_text())
    assert data["deadlocks"] == 0
    assert data["cli_start_show"] > data["cli_start_help"], "show connects, help does not"
    assert data["protected_row"] > 1
    assert data["activate_wait_vs_tx"] < 20
