"""What the ledger refuses, as exceptions: one class per SQLSTATE.

LedgerError
├── Refused               Postgres refused the call and changed nothing
│   ├── FenceRefusal      group 1: stop the batch
│   │   ├── StaleToken (FenceViolation)   LG101
│   │   ├── TokenNotDrawn                 LG102
│   │   ├── UnfencedWrite                 LG103
│   │   ├── LockHeld                      LG104
│   │   ├── TokenNotActive                LG105
│   │   ├── RecoveryNeeded                LG106
│   │   └── Paused                        LG107
│   ├── StateRefusal      group 2: skip the row
│   │   ├── NoSuchRefund                  LG201
│   │   ├── RefundFinished                LG202
│   │   ├── NotClaimed                    LG203
│   │   └── IllegalTransition             LG204
│   └── InputRefusal      group 3: stop, a person looks
│       ├── ConflictingDuplicate          LG301
│       ├── BadAmount                     LG302
│       ├── GatewayRefConflict            LG303
│       └── BadArgument                   LG304
├── Busy                  a lock, a lease or the gate is held; nothing was changed
├── LeaseLost             the lease is no longer this holder's
├── LeaseUnreachable      the lease's server gave no answer
└── TransactionEnded      Postgres ended the session of a fenced block
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

LOCK_NOT_AVAILABLE = "55P03"


class LedgerError(Exception):
    """Something the ledger says no to, with the facts as data and the next step as a hint."""

    def __init__(
        self, message: str, detail: Mapping[str, Any] | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, detail, hint)  # all three, so that pickle can rebuild it
        self.message = message
        self.detail: dict[str, Any] = dict(detail or {})
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class Refused(LedgerError):
    """Postgres refused the call. Its transaction is aborted and nothing was changed."""

    code: ClassVar[str]
    by_code: ClassVar[dict[str, type[Refused]]] = {}

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        if code is not None:
            cls.code = code
            Refused.by_code[code] = cls

    @property
    def reason(self) -> str | None:
        """The finer reason in DETAIL, where the code has more than one."""
        reason = self.detail.get("reason")
        return None if reason is None else str(reason)


class FenceRefusal(Refused):
    """Group 1. This holder may not write: stop the batch."""


class StateRefusal(Refused):
    """Group 2. This refund can't make that move: skip the row."""


class InputRefusal(Refused):
    """Group 3. What was asked contradicts the record: stop, a person looks."""


class StaleToken(FenceRefusal, code="LG101"):
    """The token is not the active one any more: `superseded`, `voided`, or the `row` is ahead."""


class TokenNotDrawn(FenceRefusal, code="LG102"):
    """Nobody drew that number for that resource."""


class UnfencedWrite(FenceRefusal, code="LG103"):
    """A write that brought no token, or went round the functions."""


class LockHeld(FenceRefusal, code="LG104"):
    """The job's lock is held by another session."""


class TokenNotActive(FenceRefusal, code="LG105"):
    """The token is drawn, but not activated yet."""


class RecoveryNeeded(FenceRefusal, code="LG106"):
    """The server is on a new timeline; tokens handed out on the lost one are unknown here."""


class Paused(FenceRefusal, code="LG107"):
    """An operator paused the kind or the resource; `detail` says who, why and since when."""


class NoSuchRefund(StateRefusal, code="LG201"):
    """There is no such refund."""


class RefundFinished(StateRefusal, code="LG202"):
    """The refund is sent, failed, cancelled or returned."""


class NotClaimed(StateRefusal, code="LG203"):
    """The refund isn't claimed under this token, or its claim isn't committed yet."""


class IllegalTransition(StateRefusal, code="LG204"):
    """The refund can't make that move from its state; `detail` lists the legal ones."""


class ConflictingDuplicate(InputRefusal, code="LG301"):
    """The same id or idempotency key exists with other content."""


class BadAmount(InputRefusal, code="LG302"):
    """The amount isn't positive, has the wrong scale, or its currency is unknown."""


class GatewayRefConflict(InputRefusal, code="LG303"):
    """The refund was recorded before with another gateway reference."""


class BadArgument(InputRefusal, code="LG304"):
    """An argument is null, empty, too long or too many, or the calls came in the wrong order."""


FenceViolation = StaleToken


class Busy(LedgerError):
    """A lease, a lock or the gate is held by someone else. Nothing was changed; try again later."""


class LeaseLost(LedgerError):
    """The lease is no longer this holder's.

    `reason` is one of `superseded`, `expired`, `unreachable`, `max_hold`, `broken`, `forked`.
    """

    def __init__(
        self,
        message: str,
        detail: Mapping[str, Any] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, detail, hint)
        self.reason = str(self.detail.get("reason", ""))


class LeaseUnreachable(LedgerError):
    """The lease's server gave no answer. Whether the lease was taken is not known."""


class TransactionEnded(LedgerError):
    """Postgres ended a session in the middle of its transaction, which is rolled back.

    `reason` is `idle_limit`, `transaction_limit`, `terminated` (by a newer holder or an administrator), or
    `connection_lost`, where the driver doesn't say why.
    """

    @property
    def reason(self) -> str:
        """Which limit it was."""
        return str(self.detail.get("reason", ""))


def from_exception(exc: BaseException) -> LedgerError | None:
    """The ledger's own error inside `exc`, or None if there is none.

    Knows what psycopg, asyncpg, SQLAlchemy and Django raise: the driver's error is `exc` itself,
    its `orig` or its cause. Decides by SQLSTATE alone; messages are for people.
    """
    for error in _chain(exc):
        if isinstance(error, LedgerError):
            return error
        sqlstate = _sqlstate(error)
        if sqlstate == LOCK_NOT_AVAILABLE:
            return Busy(*_fields(error))
        if isinstance(sqlstate, str) and sqlstate in Refused.by_code:
            return Refused.by_code[sqlstate](*_fields(error))
    return None


def sqlstate_of(exc: BaseException) -> str | None:
    """The SQLSTATE inside what a driver or an ORM raised, or None if there is none."""
    return next((state for state in map(_sqlstate, _chain(exc)) if state is not None), None)


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # psycopg2's name for it
    return state if isinstance(state, str) else None


def _chain(exc: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    error: BaseException | None = exc
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = getattr(error, "orig", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__


def _fields(error: BaseException) -> tuple[str, dict[str, Any], str | None]:
    message, detail, hint = (_field(error, name) for name in ("message", "detail", "hint"))
    return message or str(error), _as_data(detail), hint


def _field(error: BaseException, name: str) -> str | None:
    # SQLAlchemy's own error over asyncpg's has some of its fields, and the rest is in its cause.
    for same in _chain(error):
        diag = getattr(same, "diag", None)
        primary = "message_primary" if name == "message" else f"message_{name}"
        found = getattr(diag, primary, None) or getattr(same, name, None)
        if isinstance(found, str):
            return found
    return None


def _as_data(detail: str | None) -> dict[str, Any]:
    # PL/Proxy prefixes what a shard said.
    text = (detail or "").removeprefix("Remote detail: ")
    try:
        data = json.loads(text)
    except ValueError:
        return {"text": text} if text else {}
    return data if isinstance(data, dict) else {"text": text}
