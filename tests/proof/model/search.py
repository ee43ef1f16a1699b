"""One exhaustive search of one model by SPIN: built, run, and what it found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
MEMORY = 2500
"""Megabytes that one search may take."""
DEPTH = 1_000_000
SECONDS = 900
EVENTUALLY = "gate_opens"
"""The one property that says that something comes to pass; the others say that something never does."""

HOW_TO_GET_THEM = "on Debian and Ubuntu: apt-get install spin gcc libc6-dev; on macOS: brew install spin gcc"


class NotThere(Exception):
    """A program that the search needs isn't on this machine."""


class NotBuilt(Exception):
    """SPIN or the compiler refused the model; what they said."""


@dataclass(frozen=True)
class Control:
    """A line of controls.txt: a search, and the properties that it has to find broken."""

    level: str
    model: str
    flags: tuple[str, ...]
    broken: frozenset[str]
    words: str

    @property
    def name(self) -> str:
        """How the search is asked for."""
        return " ".join((self.model, *self.flags))


@dataclass(frozen=True)
class Found:
    """What a search saw. It counts only when it is complete."""

    broken: frozenset[str]
    reached: frozenset[str]
    states: int
    complete: bool
    seconds: float = 0.0
    said: str = field(default="", repr=False)


def controls(text: str | None = None) -> list[Control]:
    """The lines of controls.txt."""
    lines = (FOLDER / "controls.txt").read_text() if text is None else text
    return [_control(line) for line in lines.splitlines() if line.strip() and not line.startswith("#")]


def _control(line: str) -> Control:
    level, model, flags, broken, words = (part.strip() for part in line.split("|"))
    return Control(level, model, tuple(flags.split()), frozenset(broken.replace("-", "").split()), words)


def source(model: str) -> str:
    """The text of a model."""
    return (FOLDER / f"{model}.pml").read_text()


def flags_of(model: str) -> dict[str, str]:
    """What may be changed in a model, and its usual value."""
    return dict(re.findall(r"^#ifndef (\w+)\n(?:/\*.*\*/\n)?#define \1 +(\w+)", source(model), re.MULTILINE))


def branches_of(model: str) -> set[str]:
    """The branches that searches of a model have to reach."""
    return set(re.findall(r"\bREACHED\((\w+)\)", source(model)))


def properties_of(model: str) -> set[str]:
    """The properties that a model checks."""
    return set(re.findall(r"\bVIOLATED\((\w+)\)", source(model))) | set(
        re.findall(r"^ltl (\w+)", source(model), re.MULTILINE)
    )


def read(said: str) -> Found:
    """What a search printed, understood. An error that isn't the one of an eventual property leaves it incomplete."""
    broken = set(re.findall(r"^violated (\w+) ", said, re.MULTILINE))
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored", said)
    complete = errors is not None and not re.search(r"max search depth too small|out of memory|aborted", said)
    if errors and int(errors[1]):
        if "acceptance cycle" in said:
            broken.add(EVENTUALLY)
        else:
            complete = False
    return Found(
        frozenset(broken),
        frozenset(re.findall(r"^reached (\w+) ", said, re.MULTILINE)),
        int(float(states[1])) if states else 0,
        complete,
        said=said,
    )


def search(model: str, flags: tuple[str, ...], *, is_large: bool = False, seconds: float = SECONDS) -> Found:
    """Search a model in every state that it can be in. Raises NotThere, NotBuilt.

    The compiler takes longer to optimise a search than a small one takes, so that is for large ones.
    """
    eventual = "LIVENESS=1" in flags
    kind = ["-DNFAIR=3"] if eventual else ["-DSAFETY", "-DNOFAIR"]
    with _built(model, flags, "-O2" if is_large else "-O0", *kind) as program:
        options = ["-a", "-f", "-N", EVENTUALLY] if eventual else []
        began = time.monotonic()
        try:
            said = _run([program, *options, "-E", f"-m{DEPTH}"], timeout=seconds)
        except subprocess.TimeoutExpired:
            said = f"aborted: not finished after {seconds:.0f} s"
        found = read(said)
    return Found(found.broken, found.reached, found.states, found.complete, time.monotonic() - began, found.said)


def trace(model: str, flags: tuple[str, ...], broken: str) -> str:
    """The shortest way to break a property, one statement a line; empty when nothing breaks it."""
    eventual = broken == EVENTUALLY
    kind = ["-DNFAIR=3"] if eventual else ["-DSAFETY", "-DNOFAIR", "-DBFS"]
    with _built(model, flags, "-O0", *kind) as program:
        options = ["-a", "-f", "-N", EVENTUALLY] if eventual else []
        _run([program, *options, "-E", f"-m{DEPTH}"], PROPERTY=broken)
        if not list(Path(program).parent.glob("*.trail")):
            return ""
        shown = _run(["spin", "-t", "-p", *(f"-D{flag}" for flag in flags), "model.pml"], cwd=Path(program).parent)
    return "\n".join(_steps(shown))


def _steps(shown: str) -> Iterator[str]:
    step = re.compile(r"^ *(\d+):\s+proc +\d+ \((\w+):\d+\) model\.pml:(\d+) \(state \d+\)\s+\[(.*)\]$")
    for line in shown.splitlines():
        match = step.match(line)
        if match and not re.match(r"\(1\)|else|static struct|goto|\(*\d", match[4].strip()):
            yield f"{match[1]:>5}  {match[2]:10} line {match[3]:>4}  {match[4]}"


@contextmanager
def _built(model: str, flags: tuple[str, ...], optimised: str, *kind: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="model-") as name:
        folder = Path(name)
        shutil.copy(FOLDER / "checks.inc", folder)
        shutil.copy(FOLDER / f"{model}.pml", folder / "model.pml")
        said = _run(["spin", *(f"-D{flag}" for flag in flags), "-a", "model.pml"], cwd=folder)
        if "Error" in said or not (folder / "pan.c").exists():
            raise NotBuilt(said)
        sizes = ("-DCOLLAPSE", "-DVECTORSZ=4096", f"-DMEMLIM={MEMORY}")
        said = _run(["gcc", optimised, "-w", *sizes, *kind, "-o", "pan", "pan.c"], cwd=folder)
        if not (folder / "pan").exists():
            raise NotBuilt(said)
        yield str(folder / "pan")


def _run(command: list[str], cwd: Path | None = None, timeout: float | None = None, **variables: str) -> str:
    if not shutil.which(command[0]):
        raise NotThere(f"{command[0]} isn't on this machine. {HOW_TO_GET_THEM}")
    done = subprocess.run(
        command, cwd=cwd or Path(command[0]).parent, env={**os.environ, **variables}, timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    return done.stdout
