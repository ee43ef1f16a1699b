"""What was checked, counted and told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.proof.schedules import controls, waits
from tests.proof.schedules.explore import Findings, Violation
from tests.proof.schedules.replay import COMMAND, code_of


@dataclass
class Result:
    """Counts, and what is wrong; of a task, and of all."""

    HEADER: ClassVar[str] = (
        f"{'programs/refunds, faults':44}{'schedules':>17}{'states':>9}{'met again':>11}{'seconds':>9}"
    )

    schedules: int = 0
    worlds: int = 0
    met_again: int = 0
    calls: int = 0
    states: int = 0
    walks: int = 0
    orders: int = 0
    waited: int = 0
    expected: int = 0
    found: int = 0
    failed: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether all is as it should be."""
        return not self.failed and self.found == self.expected

    def add(self, other: Result) -> None:
        """Add another's counts."""
        for name in (
            "schedules", "worlds", "met_again", "calls", "states", "walks", "orders", "waited", "expected", "found",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failed += other.failed

    def explored(self, findings: Findings) -> None:
        """An exploration."""
        self.schedules += findings.schedules
        self.worlds += findings.worlds
        self.met_again += findings.met_again
        self.lines.append(
            f"{findings.bounds!s:44}{findings.schedules:17,}{findings.worlds:9,}{findings.met_again:11,}"
            f"{findings.seconds:9.1f}"
        )
        for violation in findings.violations:
            self._fail(f"{violation.invariant}: {COMMAND} '{violation.code}'")

    def walked(self, difference: str | None) -> None:
        """A schedule that was made again on the server, call after call."""
        self.walks += 1
        if difference:
            self._fail(f"walked again, it went otherwise: {difference}")

    def planted(self, control: controls.Control, found: Violation | None, *, triggers: bool) -> None:
        """A planted fault, and the schedule that shows it."""
        self.expected += 1
        where = control.name if triggers else f"{control.name}, without the guard triggers"
        if found is None:
            self._fail(f"not found: {where}")
            return
        self.found += 1
        self.lines.append(f"found: {where} ({control.breaks})\n       {COMMAND} {code_of(found, control)!r}")

    def not_planted(self, name: str, why: Exception) -> None:
        """A fault that couldn't be planted."""
        self.expected += 1
        self._fail(f"not planted: {name}: {why}")

    def raced(self, race: waits.Race, came: waits.Waits) -> None:
        """A race."""
        self.orders += came.orders
        self.waited += came.waited
        self.lines.append(f"{race.name:44}{came.orders:17,} orders, in {came.waited} one waits")
        for wrong in came.wrong:
            self._fail(f"not as one after the other: {COMMAND} {wrong!r}")

    def planted_lock(self, control: waits.Control, came: waits.Waits) -> None:
        """A lock that was taken away."""
        self.expected += 1
        if not came.wrong:
            self._fail(f"not found: {control.name}")
            return
        self.found += 1
        self.lines.append(f"found: {control.name}, in {len(came.wrong)} of {came.orders} orders of {control.race}")

    def summary(self, seconds: float) -> list[str]:
        """All in a few lines."""
        return [
            f"schedules     {self.schedules:,}, every one; {self.worlds:,} states, met again {self.met_again:,} times",
            f"calls         {self.calls:,} on the real functions, {self.states:,} states of the ledger",
            f"walked again  {self.walks:,} schedules from beginning to end, with no state put back",
            f"lock waits    {self.orders:,} orders of lock and commit; in {self.waited:,} one had to wait",
            f"planted       {self.found} of {self.expected} faults found",
            f"{'everything holds' if self.holds else 'NOT everything holds'}, {seconds:.0f} s",
            *self.failed,
        ]

    def as_json(self, seconds: float) -> dict[str, Any]:
        """The same for programs."""
        return {
            "part": "schedules",
            "checked": {
                "schedules": self.schedules,
                "states": self.worlds,
                "calls of the real functions": self.calls,
                "schedules walked again": self.walks,
                "orders of lock and commit": self.orders,
            },
            "controls": {"expected": self.expected, "found": self.found},
            "seconds": round(seconds, 1),
            "failed": self.failed,
            "skipped": [],
        }

    def _fail(self, what: str) -> None:
        self.failed.append(what)
        self.lines.append(f"FAILED {what}")
