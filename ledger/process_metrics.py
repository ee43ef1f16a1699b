"""What a process that holds leases and settles has to tell of itself. Needs the extra `metrics`, prometheus-client.

    from prometheus_client import start_http_server
    from ledger.process_metrics import ProcessMetrics

    ProcessMetrics().listen()
    start_http_server(9464, addr="127.0.0.1")

No label names a merchant, a refund or a holder: there would be a series for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from ledger import observe

Fields = Mapping[str, Any]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HELD = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
TIMES_ITS_TTL = (0.1, 0.33, 0.67, 1.0, 2.0, 5.0, 10.0, 50.0, 200.0)

REASONS = frozenset({"superseded", "voided", "row", "not_claimed", "claim_not_committed"})
"""The reasons that are words of ours; others are text of whoever was refused."""


class ProcessMetrics:
    """Counts facts once it listens. One for a registry; the default registry is what prometheus-client exports."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self._acquires = counter("ledger_lease_acquires", "Attempts at a lease, by how they ended.", "kind", "outcome")
        self._acquire = histogram("ledger_lease_acquire_seconds", "How long a lease took that was taken.", "kind")
        self._wait = histogram("ledger_lease_wait_seconds", "How long a busy lease was waited for.", "kind")
        self._renewals = counter(
            "ledger_lease_renewals", "Renewals: on_time, late by a third of the ttl, failed.", "kind", "outcome"
        )
        self._lost = counter("ledger_leases_lost", "Leases lost, by reason.", "kind", "reason")
        self._stuck = counter("ledger_leases_not_given_back", "Leases that were left to run out.", "kind")
        self._held = histogram("ledger_lease_held_seconds", "How long leases were held.", "kind", buckets=HELD)
        self._ratio = histogram(
            "ledger_lease_held_ratio", "How long, as a multiple of the ttl.", "kind", buckets=TIMES_ITS_TTL
        )
        self._calls = counter("ledger_gateway_calls", "Calls to the gateway, by its answer.", "call", "outcome")
        self._call = histogram("ledger_gateway_call_seconds", "How long the gateway took.", "call")
        self._claims = counter(
            "ledger_refunds_claimed", "Refunds claimed: claimed, taken_over, reclaimed, or why not.", "outcome"
        )
        self._refused = counter("ledger_calls_refused", "Refusals, by SQLSTATE and reason.", "kind", "code", "reason")
        self._unrecorded = counter("ledger_answers_not_recorded", "Answers of the gateway that nobody recorded.")
        self._twice = counter("ledger_movements_found_twice", "Refunds found under two references at the gateway.")
        self._heard: dict[str, Callable[[Fields], None]] = {
            "lease_taken": self._taken,
            "lease_not_taken": self._not_taken,
            "lease_renewed": lambda f: self._renewal(f, "late" if f["late"] else "on_time"),
            "lease_renewal_failed": lambda f: self._renewal(f, "failed"),
            "lease_lost": lambda f: self._lost.labels(_kind(f), f["reason"]).inc(),
            "lease_given_back": self._given_back,
            "lease_not_given_back": lambda f: self._stuck.labels(_kind(f)).inc(),
            "gateway_called": self._called,
            "refund_claimed": self._claimed,
            "call_refused": self._was_refused,
            "answer_not_recorded": lambda _: self._unrecorded.inc(),
        }

    def listen(self) -> ProcessMetrics:
        """Count from now on."""
        observe.add(self.hear)
        return self

    def close(self) -> None:
        """Count no more."""
        observe.remove(self.hear)

    def hear(self, name: str, fields: Fields) -> None:
        """Count a fact; those that aren't counted pass."""
        heard = self._heard.get(name)
        if heard is not None:
            heard(fields)

    def _taken(self, fields: Fields) -> None:
        self._acquires.labels(_kind(fields), "taken").inc()
        self._acquire.labels(_kind(fields)).observe(fields["seconds"])
        self._waited(fields)

    def _not_taken(self, fields: Fields) -> None:
        self._acquires.labels(_kind(fields), fields["outcome"]).inc()
        self._waited(fields)

    def _waited(self, fields: Fields) -> None:
        if fields["waited"]:
            self._wait.labels(_kind(fields)).observe(fields["waited"])

    def _renewal(self, fields: Fields, outcome: str) -> None:
        self._renewals.labels(_kind(fields), outcome).inc()

    def _given_back(self, fields: Fields) -> None:
        self._held.labels(_kind(fields)).observe(fields["seconds"])
        self._ratio.labels(_kind(fields)).observe(fields["seconds"] / fields["ttl"])

    def _called(self, fields: Fields) -> None:
        self._calls.labels(fields["call"], fields["outcome"]).inc()
        self._call.labels(fields["call"]).observe(fields["seconds"])

    def _claimed(self, fields: Fields) -> None:
        outcome = fields["outcome"]
        self._claims.labels(fields["reason"] if outcome == "review" else outcome).inc()

    def _was_refused(self, fields: Fields) -> None:
        reason = fields.get("reason")
        self._refused.labels(_kind(fields), fields["code"], reason if reason in REASONS else "").inc()
        if fields["code"] == "LG303":
            self._twice.inc()


def _kind(fields: Fields) -> str:
    """The kind, where the resource is one at all: what was refused may be anything."""
    kind, colon, _ = str(fields.get("resource", "settle:" if "merchant_id" in fields else "")).partition(":")
    return kind if colon else ""
