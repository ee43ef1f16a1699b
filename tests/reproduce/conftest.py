"""The test's own servers in place of new ones, and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ledger import dev, reproduce
from ledger.reproduce.place import furnish
from tests.commands.conftest import nowhere, quiet_shell

__all__ = ["nowhere", "quiet_shell"]


@pytest.fixture
def place(admin_dsn: str, redis_url: str, running: dev.Servers, monkeypatch: pytest.MonkeyPatch) -> reproduce.Place:
    """Where it happens, also for the command."""
    furnish(admin_dsn)
    ready = reproduce.Place(admin_dsn, redis_url, running)

    @contextmanager
    def embedded(pg: str) -> Iterator[reproduce.Place]:
        yield ready

    monkeypatch.setattr(reproduce, "embedded", embedded)
    return ready
