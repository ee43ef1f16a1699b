"""What a worker is told when it starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Orders:
    """Who a worker is, where its servers are, and at which points it halts.

    A point is a name and a refund: `next` before it looks at the refund, `before_call` after its last look before the
    call, `before_record` after its last look before the write. At `freeze_at` it stops itself (SIGSTOP); at
    `stay_at` it waits for a line.
    """

    name: str
    protection: str
    merchant_id: str
    dsn: str
    redis_url: str
    redis_timeout: float
    gateway_url: str
    ttl: float
    freeze_at: tuple[str, str] | None = None
    stay_at: tuple[str, str] | None = None

    def write(self) -> str:
        """As a line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> Orders:
        """From a line."""
        fields = json.loads(line)
        for name in ("freeze_at", "stay_at"):
            fields[name] = None if fields[name] is None else tuple(fields[name])
        return cls(**fields)
