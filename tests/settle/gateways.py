"""Gateways that do as they are told, and the refunds of a merchant to try them with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ledger.client import Ledger
from ledger.gateway import Answer, Found, Gateway, Nothing, Payable, Sent
from tests.story import MERCHANT

KEY = "lock:{settle:m_1}"


class Scripted:
    """A gateway that answers at once, as told: by refund id an answer, an exception, or what to call for one.

    What isn't told is sent. It counts what it was asked.
    """

    def __init__(self, refunds: dict[str, Any] | None = None, finds: dict[str, Any] | None = None) -> None:
        self.refunds = refunds or {}
        self.finds = finds or {}
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self.tokens: list[int] = []

    def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        self.sent.append(refund.refund_id)
        self.timeouts.append(timeout)
        self.tokens.append(token)
        moved = Sent(f"re_{refund.refund_id}", refund.amount_minor, refund.currency)
        answer: Answer | None = self._say(self.refunds.get(refund.refund_id, self.refunds.get("*", moved)))
        return moved if answer is None else answer

    def find(self, key: str, timeout: float) -> Found:
        refund_id = key.rpartition("/")[2]
        self.asked.append(refund_id)
        self.timeouts.append(timeout)
        found: Found = self._say(self.finds.get(refund_id, self.finds.get("*", Nothing())))
        return found

    @staticmethod
    def _say(told: Any) -> Any:
        if isinstance(told, BaseException):
            raise told
        return told() if callable(told) else told


class InThreads:
    """A blocking gateway for asyncio callers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._threads = ThreadPoolExecutor(64)

    async def refund(self, refund: Payable, token: int, timeout: float) -> Answer:
        answer: Answer = await self._run(self._gateway.refund, refund, token, timeout)
        return answer

    async def find(self, key: str, timeout: float) -> Found:
        found: Found = await self._run(self._gateway.find, key, timeout)
        return found

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


class Rendezvous:
    """Calls wait in it until `count` of them are there together."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0

    def __call__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        try:
            self._barrier.wait(5)
        finally:
            with self._lock:
                self._inside -= 1


class Held:
    """A call that waits in it until it is let go; `entered` tells that one has come."""

    def __init__(self, answer: Any = None) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self._answer = answer

    def __call__(self) -> Any:
        self.entered.set()
        assert self.let_go.wait(10)
        return self._answer


def names(count: int) -> list[str]:
    """Refund ids r_001 and so on."""
    return [f"r_{number:03}" for number in range(1, count + 1)]


def add(ledger: Ledger, count: int, merchant_id: str = MERCHANT) -> list[str]:
    """So many pending refunds of 70.25 EUR each."""
    ids = names(count)
    for start in range(0, count, 1000):
        part = ids[start : start + 1000]
        ledger.add_refunds(merchant_id, part, [7025] * len(part), ["EUR"] * len(part))
    return ids
