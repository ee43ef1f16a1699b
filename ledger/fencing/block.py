"""A fenced block of one's own transaction: `with fenced(db, resource) as job`, around ordinary statements.

    with connection.transaction(), fenced(connection, "monthly-charges:org_7") as job:
        connection.execute("insert into charge ...")          # job.token is active, and checked with every write

`db` is a psycopg connection, a SQLAlchemy Session or Connection (AsyncSession, AsyncConnection), or the alias of a
Django database. Neither SQLAlchemy nor Django is imported before one of theirs is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from ledger import calls
from ledger.calls import Call
from ledger.client import AsyncLedger, AsyncSource, Ledger, Source
from ledger.errors import LedgerError, Refused, TransactionEnded, from_exception, sqlstate_of
from ledger.fencing.doors import Door, comes_from, door_of
from ledger.lease.database import AsyncDatabase, Database
from ledger.lease.lease import new_holder

Refusals = Source | AsyncSource | str

DATABASE_LIBRARIES = {"psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django"}


@dataclass(frozen=True, slots=True)
class Ending:
    """How Postgres ends a session in the middle of its transaction: why, and what to do."""

    reason: str
    why: str
    hint: str


ENDINGS = {
    "25P03": Ending(
        "idle_limit",
        "its client was silent for longer than the idle limit, {idle_limit}",
        "Call nothing slow between the block's statements, or raise the limit: ledger kind set {kind} --idle-limit",
    ),
    "25P04": Ending(
        "transaction_limit",
        "the transaction lasted longer than the transaction limit, {transaction_limit}",
        "Do less in one transaction, or raise the limit: ledger kind set {kind} --transaction-limit",
    ),
    "57P01": Ending(
        "terminated",
        "a newer holder found its client frozen inside a statement for longer than the idle limit, {idle_limit}; or an"
        " administrator ended it, or the server was shut down",
        "If it was a newer holder, an event session_ended in ledger.event names it",
    ),
}

# asyncpg doesn't pass on what Postgres said while nothing was asked.
LOST = Ending(
    "connection_lost",
    "its connection was lost, and the driver doesn't say why. Postgres ends one whose client was silent for longer than"
    " the idle limit, {idle_limit}",
    "If the block was silent that long: call nothing slow between its statements",
)


def fenced(
    db: object,
    resource: str,
    token: int | None = None,
    holder: str | None = None,
    *,
    refusals: Refusals | None = None,
) -> Fenced:
    """A block of the transaction that is open on `db`, for writes to protected tables; `with` or `async with`.

    Given a token, of a lease say, it is presented. Without one the job's advisory lock is taken and a token drawn, both
    for this transaction: `holder` names the attempt then. Nothing is committed here.

    What the block's own statements are refused with, in an ORM's flush too, comes out as the ledger's exceptions; the
    driver's is their cause. `refusals`, a dsn, a pool or a second connection in autocommit, keeps their record.

    Entering raises what present_token or lock_job raises, ValueError where no transaction is open, and TypeError for a
    `db` of another kind. The block raises TransactionEnded when a limit ended its session.
    """
    return Fenced(door_of(db), resource, token, holder, refusals)


class Fenced:
    """The job of a fenced block: its resource, its token, its holder."""

    def __init__(
        self, door: Door, resource: str, token: int | None, holder: str | None, refusals: Refusals | None
    ) -> None:
        self.resource = resource
        self.holder = holder or (new_holder() if token is None else None)
        self._door = door
        self._token = token
        self._limits: tuple[str | None, ...] = (None, None)
        self._refusals = _openable(refusals, is_async=door.is_async)

    @property
    def token(self) -> int:
        """The number under which the block writes. Raises RuntimeError before the lock was taken."""
        if self._token is None:
            raise RuntimeError(f"the lock of {self.resource} wasn't taken yet. Enter the block first")
        return self._token

    def __enter__(self) -> Self:
        if self._door.is_async:
            raise TypeError("this db is an asyncio one. Use: async with fenced(...)")
        try:
            self._entered(self._door.fetch(self._call()))
        except Exception as error:
            self._tell(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._tell(error)
            return
        try:
            self._door.flush()
        except Exception as refused:
            self._tell(refused)
            raise

    async def __aenter__(self) -> Self:
        if not self._door.is_async:
            raise TypeError("this db is a blocking one. Use: with fenced(...)")
        try:
            self._entered(await self._door.fetch(self._call()))
        except Exception as error:
            await self._tell_async(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._tell_async(error)
            return
        try:
            await self._door.flush()
        except Exception as refused:
            await self._tell_async(refused)
            raise

    def _call(self) -> Call[Any]:
        if self._token is None:
            return calls.lock_job(self.resource, cast("str", self.holder))
        return calls.present_token(self.resource, self._token)

    def _entered(self, row: tuple[Any, ...]) -> None:
        drawn, *limits = row
        self._token = drawn if self._token is None else self._token
        self._limits = tuple(limits)

    def _tell(self, error: BaseException) -> None:
        """Raise the ledger's own error in place of what a driver or an ORM raised."""
        told = self._told(error)
        if told is None:
            return
        if isinstance(told, Refused):
            Ledger(cast("Source", self._refusals), refusals=cast("Source", self._refusals)).record(told)
        raise told from error

    async def _tell_async(self, error: BaseException) -> None:
        told = self._told(error)
        if told is None:
            return
        if isinstance(told, Refused):
            refusals = cast("AsyncSource", self._refusals)
            await AsyncLedger(refusals, refusals=refusals).record(told)
        raise told from error

    def _told(self, error: BaseException) -> LedgerError | None:
        # What the caller made of a refusal on purpose is the caller's.
        if not comes_from(error, DATABASE_LIBRARIES):
            return None
        ending = _ending(error)
        return from_exception(error) if ending is None else self._ended(ending)

    def _ended(self, ending: Ending) -> TransactionEnded:
        idle_limit, transaction_limit = self._limits
        facts = {
            "resource": self.resource,
            "kind": self.resource.partition(":")[0],
            "token": self._token,
            "reason": ending.reason,
            "idle_limit": idle_limit,
            "transaction_limit": transaction_limit,
        }
        return TransactionEnded(
            f"Postgres ended the session of a fenced block of {self.resource}: {ending.why.format(**facts)}."
            " What it hadn't committed is rolled back",
            facts,
            f"{ending.hint.format(**facts)}. Then do the whole transaction again, under a new token",
        )


def _ending(error: BaseException) -> Ending | None:
    sqlstate = sqlstate_of(error) or ""
    # SQLAlchemy knows of a lost connection what asyncpg has no SQLSTATE for.
    is_lost = sqlstate.startswith("08") or getattr(error, "connection_invalidated", False)
    return ENDINGS.get(sqlstate) or (LOST if is_lost else None)


def _openable(refusals: Refusals | None, *, is_async: bool) -> object:
    if isinstance(refusals, str):
        return AsyncDatabase(refusals) if is_async else Database(refusals)
    return refusals
