"""The protections and the faults, each in a sentence."""

from __future__ import annotations

REFUNDS = ("r_1", "r_2")
"""What each run has to send. The fault comes at the first; the second is where a superseded worker goes on."""

PROTECTIONS = {
    "none": "No lock: a worker reads the row, calls the gateway, writes the row.",
    "ttl": "A lock in Redis that ends by itself (SET NX PX).",
    "renew": "The same lock, renewed by a watchdog for as long as the process runs.",
    "check": "The renewed lock, and a GET before each call and before each write: is it still mine?",
    "row-fence": "The renewed lock and a number from INCR; a write passes where the row carries no higher number.",
    "fence": "The ledger: a token drawn and activated in Postgres, which judges every write by it.",
    "fence+key": "The ledger, at a gateway that knows idempotency keys.",
}

GUARANTEES = {
    "none": "Nothing.",
    "ttl": "One worker at a time, as long as nothing takes longer than the TTL.",
    "renew": "Slow calls are safe. A worker that is frozen, cut off or forgotten by Redis goes on beside the next one.",
    "check": "A superseded worker stops at its next look. A call that is out, and the write that follows a look, "
    "aren't covered.",
    "row-fence": "A row isn't written over once a newer worker was there, while Redis keeps the counter. Other rows, "
    "the gateway, and a record of what was sent aren't covered.",
    "fence": "No write by a superseded worker, on any row, and a record of what it tried. A call that is out when the "
    "lease ends can still move money a second time; if its worker is dead, nobody records that.",
    "fence+key": "One movement a refund, and a record that names it, in every cell.",
}

FAULTS = {
    "slow": "Nothing but a gateway call that takes longer than the TTL.",
    "pause": "The worker freezes past its TTL (SIGSTOP): once between its last look and its call, once between its "
    "last look and its write.",
    "partition": "The worker is cut off from Redis past its TTL, while its call is out; all else it can reach.",
    "redis-flush": "Redis loses its data while the worker's call is out.",
    "redis-restart": "Redis dies and comes back empty while the worker's call is out.",
    "lost-reply": "The gateway moves the money, and its reply is lost.",
    "kill": "The worker is killed (SIGKILL): once while its call is out, once before it writes down the answer.",
}

MOMENTS: dict[str, tuple[str, ...]] = {
    "slow": ("call_out",),
    "pause": ("before_call", "before_record"),
    "partition": ("call_out",),
    "redis-flush": ("call_out",),
    "redis-restart": ("call_out",),
    "lost-reply": ("reply",),
    "kill": ("call_out", "before_record"),
}
"""When each fault comes. A cell of the matrix is the sum over its fault's moments."""

SHOWN_MOMENTS = {
    "call_out": "while its call is out",
    "before_call": "between its last look and its call",
    "before_record": "between its last look and its write",
    "reply": "after the money moved",
}

RENEWED = frozenset(PROTECTIONS) - {"none", "ttl"}
"""Protections whose lock outlasts a slow call."""

FENCED = frozenset({"fence", "fence+key"})
