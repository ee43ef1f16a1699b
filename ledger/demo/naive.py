"""Act 1's worker: a lock with a TTL and a row that it checks before each send. How most people do it today.

Run as `python -m ledger.demo.naive DSN REDIS GATEWAY NAME [FREEZE_BEFORE]`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass

import psycopg
import redis

from ledger.demo.story import say
from ledger.gateway import Sent
from ledger.sandbox import SandboxGateway

LOCK = "naive:m_4471"
LOCK_TTL_MS = 1000
NEXT = "select refund_id, amount_minor, currency from naive.refund where state = 'pending' order by refund_id limit 1"


@dataclass(frozen=True, slots=True)
class Row:
    """A refund as the gateway sees it."""

    merchant_id: str
    refund_id: str
    amount_minor: int
    currency: str
    payment_ref: None
    idempotency_key: str


def main(dsn: str, redis_url: str, gateway_url: str, name: str, freeze_before: str = "") -> None:
    """Take the lock, then send and record one pending refund after the other."""
    locks = redis.Redis.from_url(redis_url)
    while not locks.set(LOCK, name, nx=True, px=LOCK_TTL_MS):
        time.sleep(0.02)
    say("lock", name)
    with psycopg.connect(dsn, autocommit=True) as connection, SandboxGateway(gateway_url) as gateway:
        while (found := connection.execute(NEXT).fetchone()) is not None:
            row = Row("m_4471", found[0], found[1], found[2], None, f"m_4471/{found[0]}")
            if row.refund_id == freeze_before:
                say("freeze", row.refund_id)
                os.kill(os.getpid(), signal.SIGSTOP)
            answer = gateway.refund(row, 0, 10.0)
            assert isinstance(answer, Sent), answer
            connection.execute(
                "update naive.refund set state = 'sent', gateway_ref = %s, sent_by = %s where refund_id = %s",
                (answer.ref, name, row.refund_id),
            )
            say("sent", row.refund_id)
            locks.pexpire(LOCK, LOCK_TTL_MS)
    if locks.get(LOCK) == name.encode():
        locks.delete(LOCK)


if __name__ == "__main__":
    main(*sys.argv[1:])
