"""What the database has to tell, in Prometheus' text format. The view `ledger.metrics` has the numbers; nothing else
is needed. What a process has to tell of itself is in `ledger.process_metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import psycopg

RECENT = "in the last five minutes"

KNOWN: dict[str, tuple[str, str]] = {
    "ledger_refunds_open": ("gauge", "Refunds that are open, by state."),
    "ledger_refunds_open_minor": ("gauge", "What they sum to, in the currency's minor unit."),
    "ledger_refunds_oldest_seconds": ("gauge", "For how long the one that changed longest ago is in this state."),
    "ledger_refusals_recent": ("gauge", f"Refusals on record {RECENT}, by kind, SQLSTATE and reason."),
    "ledger_events_recent": ("gauge", f"What happened to fences and kinds {RECENT}."),
    "ledger_activations_recent_max": ("gauge", f"How often the fence of one resource was raised {RECENT}, at most."),
    "ledger_paused": ("gauge", "Pauses of a kind or of its resources."),
    "ledger_tokens_drawn_total": ("counter", "Tokens drawn. A recovery lifts it, too."),
    "ledger_refusals_total": ("counter", "Refusals, on record or not."),
    "ledger_server_known": ("gauge", "1: this server handed the tokens out; 0: it was promoted or restored."),
    "ledger_verify_findings": ("gauge", "What verify found wrong when it last ran, by check."),
    "ledger_verify_timestamp_seconds": ("gauge", "When verify last ran to its end."),
    "ledger_verify_duration_seconds": ("gauge", "How long it took."),
}
"""The type of each metric and what it says."""

# Where few rows are open or recent the indexes are right, whatever the planner believes.
SETTINGS = "set local enable_seqscan = off; set local jit = off; set local statement_timeout = '10s'"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: dict[str, str]
    value: float


class Finding(Protocol):
    """What is needed of a finding of verify."""

    @property
    def check(self) -> str:
        """Which comparison failed."""
        ...


def read(connection: psycopg.Connection[Any]) -> list[Sample]:
    """The numbers as they stand. Raises what psycopg raises; takes ten seconds at most."""
    with connection.transaction():
        connection.execute(SETTINGS)
        rows = connection.execute("select name, labels, value from ledger.metrics").fetchall()
    return [Sample(name, labels, float(value)) for name, labels, value in rows]


def of_verify(findings: Iterable[Finding], at: float, seconds: float) -> list[Sample]:
    """What verify found, when (in seconds since 1970) and how long it took. No finding is a value, too: zero."""
    counts = Counter(finding.check for finding in findings) or Counter({"": 0})
    samples = [Sample("ledger_verify_findings", {"check": check}, count) for check, count in counts.items()]
    return [
        *samples,
        Sample("ledger_verify_timestamp_seconds", {}, at),
        Sample("ledger_verify_duration_seconds", {}, seconds),
    ]


def exposition(samples: Iterable[Sample]) -> str:
    """The samples as Prometheus reads them."""
    by_name: dict[str, list[str]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(f"{sample.name}{_labels(sample.labels)} {sample.value!r}")
    lines = []
    for name in sorted(by_name):
        kind, text = KNOWN[name]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *sorted(by_name[name])]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
