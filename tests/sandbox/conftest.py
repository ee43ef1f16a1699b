"""A sandbox gateway in its own process for every test of a run, and refunds that no other test knows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from ledger.sandbox import SandboxControl, SandboxGateway, SandboxProcess


@dataclass(frozen=True, slots=True)
class Refund:
    merchant_id: str
    refund_id: str
    amount_minor: int = 7025
    currency: str = "EUR"
    payment_ref: str | None = "pay_1"
    idempotency_key: str = ""

    def but(self, **changes: object) -> Refund:
        return replace(self, **changes)  # type: ignore[arg-type]


NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("gateway") / "log") as process:
        yield process


@pytest.fixture
def worker(gateway: SandboxProcess) -> Iterator[SandboxGateway]:
    with SandboxGateway(gateway.url) as worker:
        yield worker


@pytest.fixture
def control(gateway: SandboxProcess) -> Iterator[SandboxControl]:
    with SandboxControl(gateway.url) as control:
        yield control


@pytest.fixture
def new_refund() -> Callable[[], Refund]:
    def make() -> Refund:
        refund_id = f"r_{next(NUMBERS)}"
        return Refund("m_1", refund_id, idempotency_key=f"m_1/{refund_id}")

    return make


@pytest.fixture
def refund(new_refund: Callable[[], Refund]) -> Refund:
    return new_refund()


@pytest.fixture
def key(refund: Refund) -> str:
    return refund.idempotency_key
