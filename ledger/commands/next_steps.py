"""What a person may type next about a refund, by its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# (command, the state it leads to; None: it depends on what the gateway says).
STEPS: dict[str, list[tuple[str, str | None]]] = {
    "pending": [
        ("settle {m} --gateway GATEWAY", None),
        ("cancel {m} {r} --reason WHY", "cancelled"),
        ("review {m} {r} --reason WHY", "review"),
    ],
    "sending": [
        ("settle {m} --gateway GATEWAY", None),
        ("confirm {m} {r} --gateway-ref REF --reason WHY", "sent"),
        ("fail {m} {r} --reason WHY", "failed"),
        ("unknown {m} {r} --reason WHY", "unknown"),
    ],
    "unknown": [
        ("settle {m} --gateway GATEWAY", None),
        ("confirm {m} {r} --gateway-ref REF --reason WHY", "sent"),
        ("fail {m} {r} --reason WHY", "failed"),
        ("review {m} {r} --reason WHY", "review"),
    ],
    "accepted": [
        ("confirm {m} {r} --gateway-ref REF --reason WHY", "sent"),
        ("fail {m} {r} --reason WHY", "failed"),
        ("unknown {m} {r} --reason WHY", "unknown"),
        ("review {m} {r} --reason WHY", "review"),
    ],
    "review": [
        ("resolve {m} {r} --to sent --gateway-ref REF --evidence WORDS --reason WHY", "sent"),
        ("resolve {m} {r} --to failed --evidence WORDS --reason WHY", "failed"),
        ("resolve {m} {r} --to returned --evidence WORDS --reason WHY", "returned"),
        ("requeue {m} {r} --not-at-gateway --reason WHY", "pending"),
        ("cancel {m} {r} --reason WHY", "cancelled"),
    ],
    "sent": [("return {m} {r} --evidence WORDS --reason WHY", "returned")],
    "failed": [],
    "cancelled": [],
    "returned": [],
}


def next_steps(refund: Mapping[str, Any]) -> list[str]:
    """The commands that are legal now; cancelling isn't for what may have been sent."""
    return [
        "ledger " + text.format(m=refund["merchant_id"], r=refund["refund_id"])
        for text, to_state in STEPS[refund["state"]]
        if not (to_state == "cancelled" and refund["maybe_sent"])
    ]
