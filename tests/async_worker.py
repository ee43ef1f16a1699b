"""The demo's worker for asyncio: `settle_async` as a program of its own, which may freeze itself.

Run as `python -m tests.async_worker DSN REDIS GATEWAY BATCH [FREEZE_BEFORE]`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

from ledger.demo.story import say
from ledger.gateway import Answer, Found, Payable
from ledger.sandbox import AsyncSandboxGateway
from ledger.settle import Options, settle_async
from ledger.settlement import Event


class Freezing:
    """A gateway whose caller freezes once, after its last look at the lease and before its call goes out."""

    def __init__(self, gateway: AsyncSandboxGateway, freeze_before: str) -> None:
        self._gateway = gateway
        self._freeze_before = freeze_before

    async def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        if refund.refund_id == self._freeze_before:
            self._freeze_before = ""
            say("freeze", refund.refund_id, token=token)
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return await self._gateway.refund(refund, token, timeout)

    async def find(self, key: str, timeout: float) -> Found:
        found = await self._gateway.find(key, timeout)
        say("asked", key, outcome=type(found).__name__.lower())
        return found


async def main(dsn: str, redis_url: str, gateway_url: str, batch: str, freeze_before: str = "") -> None:
    def notify(event: Event) -> None:
        say(event.name, event.refund_id, outcome=event.outcome, token=event.token)

    options = Options(in_flight=1 if batch == "1" else 32, batch=int(batch), grace=0)
    async with AsyncSandboxGateway(gateway_url) as gateway:
        report = await settle_async(
            "m_4471",
            db=dsn,
            gateway=Freezing(gateway, freeze_before),
            redis=redis_url,
            options=options,
            notify=notify,
        )
    if report.refusal is not None:
        detail = report.refusal.detail
        say("refusal", code=report.refusal.code, token=detail.get("token"), active=detail.get("active"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
