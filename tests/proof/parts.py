"""A part of the proof: a program that writes what it checked as JSON, and the judgement on what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Part:
    """`module` is run with `arguments` and `--json FILE`; `has_controls` when it must also find planted faults."""

    name: str
    module: str
    arguments: Sequence[str] = ()
    has_controls: bool = True
    time_limit: float = 1200


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a part checked, how many of its planted faults it found, and what speaks against it."""

    name: str
    seconds: float
    checked: Mapping[str, int] = field(default_factory=dict)
    controls: tuple[int, int] | None = None
    against: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        return not self.against


def run(part: Part, folder: Path) -> Outcome:
    """Run a part in a process of its own. Its words go to `folder`, and so does its JSON."""
    written, log = folder / f"{part.name}.json", folder / f"{part.name}.log"
    written.unlink(missing_ok=True)
    command = [sys.executable, "-m", part.module, *part.arguments, "--json", str(written)]
    began = time.monotonic()
    with log.open("w") as words:
        try:
            code = subprocess.run(
                command, cwd=CHECKOUT, stdout=words, stderr=subprocess.STDOUT, timeout=part.time_limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    seconds = time.monotonic() - began
    ended = f"was ended after {part.time_limit:.0f} s" if code is None else f"exited with {code}"
    try:
        report = json.loads(written.read_text())
    except FileNotFoundError:
        return Outcome(part.name, seconds, against=[f"{ended} and reported nothing; its last words are in {log}"])
    except ValueError:
        return Outcome(part.name, seconds, against=[f"{ended} and its report isn't JSON: {written}"])
    return judge(part, report, seconds, None if code == 0 else f"{ended}; its words are in {log}")


def judge(part: Part, report: Mapping[str, Any], seconds: float, ended: str | None = None) -> Outcome:
    """A part holds when it ended well, checked something, skipped nothing and found every planted fault."""
    checked = {label: int(count) for label, count in report.get("checked", {}).items()}
    against = [str(failure) for failure in report.get("failed", [])]
    against += [f"skipped: {what}" for what in report.get("skipped", [])]
    if not checked:
        against.append("checked nothing")
    against += [f"checked no {label}" for label, count in checked.items() if count <= 0]
    controls = None
    if "controls" in report:
        controls = int(report["controls"]["found"]), int(report["controls"]["expected"])
        if controls[0] != controls[1]:
            against.append(f"found {controls[0]} of {controls[1]} planted faults")
    if part.has_controls and (controls is None or controls[1] <= 0):
        against.append("planted no fault to find")
    if ended and not against:
        against.append(ended)
    return Outcome(part.name, seconds, checked, controls, against)
