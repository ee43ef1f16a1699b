"""Act 2's worker: `settle`, as a program of its own.

Run as `python -m ledger.demo.worker DSN REDIS GATEWAY BATCH [FREEZE_BEFORE]`.
"""

from __future__ import annotations

import signal
import sys
import threading

from ledger.demo.story import say
from ledger.gateway import Answer, Found, Payable
from ledger.sandbox import SandboxGateway
from ledger.settle import Options, settle
from ledger.settlement import Event


class Freezing:
    """A gateway whose caller freezes once, after its last look at the lease and before its call goes out."""

    def __init__(self, gateway: SandboxGateway, freeze_before: str) -> None:
        self._gateway = gateway
        self._freeze_before = freeze_before

    def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        """Freeze if this is the refund, then send."""
        if refund.refund_id == self._freeze_before:
            self._freeze_before = ""
            say("freeze", refund.refund_id, token=token)
            # To this very thread: another one might take the signal, and this one get further than it should.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return self._gateway.refund(refund, token, timeout)

    def find(self, key: str, timeout: float) -> Found:
        """Ask."""
        found = self._gateway.find(key, timeout)
        say("asked", key, outcome=type(found).__name__.lower())
        return found


def main(dsn: str, redis_url: str, gateway_url: str, batch: str, freeze_before: str = "") -> None:
    """Settle m_4471 and tell what happens, a line each."""

    def notify(event: Event) -> None:
        say(event.name, event.refund_id, outcome=event.outcome, token=event.token)

    options = Options(in_flight=1 if batch == "1" else 32, batch=int(batch), grace=0)
    with SandboxGateway(gateway_url) as gateway:
        report = settle(
            "m_4471",
            db=dsn,
            gateway=Freezing(gateway, freeze_before),
            redis=redis_url,
            options=options,
            notify=notify,
        )
    if report.refusal is not None:
        detail = report.refusal.detail
        say(
            "refusal",
            code=report.refusal.code,
            message=report.refusal.message,
            token=detail.get("token"),
            active=detail.get("active"),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
