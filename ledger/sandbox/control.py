"""What a test, a demo or a benchmark may ask of a sandbox gateway, beside refunds."""

from __future__ import annotations

import http.client
import json
import time
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from ledger.gateway import Answer

from .client import Connections
from .engine import Calls, Fault
from .log import SandboxError
from .movements import Movement, Movements
from .wire import read_answer


class SandboxControl:
    """The control side of the gateway at `url`. Every call raises SandboxError when the gateway says no."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self._http = Connections(url)
        self._timeout = timeout

    def plan(self, key: str, fault: Fault | str, times: int = 1) -> None:
        """Let the next `times` requests under `key` that have no plan yet meet `fault`."""
        self._post("/faults", key=key, fault=str(fault), times=times)

    def release(self, key: str) -> int:
        """Let the requests held under `key` go on, and say how many there were."""
        return int(self._post("/release", key=key)["released"])

    def wait_until_held(self, key: str, count: int = 1, timeout: float = 5.0) -> None:
        """Return once `count` requests are held under `key`; raises TimeoutError after `timeout` seconds."""
        held = self._get("/held", wait=timeout, key=key, count=count, timeout=timeout)["held"]
        if held < count:
            raise TimeoutError(f"{held} requests are held under {key}, {count} were expected")

    def complete(self, key: str, outcome: str = "sent") -> Answer:
        """Give the final word, `sent` or `declined`, on the oldest request accepted under `key`."""
        return read_answer(*self._ask("POST", "/complete", {"key": key, "outcome": outcome}, good=(200, 402)))

    def forget(self, key: str) -> None:
        """Let the gateway forget a key, as if its window were over."""
        self._post("/forget", key=key)

    def movements(
        self,
        merchant_id: str | None = None,
        refund_id: str | None = None,
        key: str | None = None,
        ref: str | None = None,
    ) -> Movements:
        """The movements of money that fit everything given."""
        found = self._get("/movements", merchant_id=merchant_id, refund_id=refund_id, key=key, ref=ref)
        return Movements(tuple(Movement(**item) for item in found["movements"]))

    def calls(self, key: str | None = None) -> Calls:
        """What has been asked since the gateway started, under `key` or in all."""
        said = self._get("/calls", key=key)
        return Calls(said["refunds"], said["finds"], tuple(said["tokens"]))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> SandboxControl:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, path: str, wait: float = 0.0, **params: object) -> dict[str, Any]:
        query = urlencode({name: value for name, value in params.items() if value is not None})
        return _data(self._ask("GET", f"{path}?{query}", wait=wait)[1])

    def _post(self, path: str, **body: object) -> dict[str, Any]:
        return _data(self._ask("POST", path, body)[1])

    def _ask(
        self,
        method: str,
        target: str,
        body: dict[str, Any] | None = None,
        wait: float = 0.0,
        good: tuple[int, ...] = (200,),
    ) -> tuple[int, bytes]:
        raw = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + self._timeout + wait
        try:
            status, answer = self._http.ask(method, target, deadline, raw)
        except (OSError, http.client.HTTPException) as error:
            raise SandboxError(f"the sandbox gateway gave no answer to {method} {target}: {error}") from error
        if status not in good:
            said = _data(answer)
            raise SandboxError(str(said.get("message", said)), {"status": status, "error": said.get("error")})
        return status, answer


def _data(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise SandboxError(f"the sandbox gateway's answer can't be read: {error}") from error
    return data if isinstance(data, dict) else {"message": data}
