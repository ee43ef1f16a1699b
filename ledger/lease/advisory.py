"""The session that holds a job's advisory lock, as the lease and its watchdog see it.

It asks at libpq's level, with a limit on every wait, so that one silent server neither stops the watchdog nor
keeps a block from being left; and so that blocking and asyncio connections are served alike.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, cast

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from ledger.errors import BadArgument, LeaseUnreachable
from ledger.lease.watchdog import Hold, Reply

_ENDINGS = {
    "57P05": Reply.EXPIRED,  # idle_session_timeout
    "57P01": Reply.BROKEN,  # ended by an operator, or the server was shut down
    "57P02": Reply.BROKEN,
}


PING = b"select 1"


class SessionEnded(Exception):
    """The server has ended the session, and with it the lock."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate)
        self.reply = _ENDINGS.get(sqlstate or "", Reply.UNREACHABLE)


class JobSession:
    """A Postgres session of its own that holds, or is to hold, one job's lock."""

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection
        self._pgconn: PGconn = connection.pgconn
        self._told_pid = connection.info.backend_pid
        self._pending = False
        self._asked_now = False
        self._retired = False
        self.asking = threading.Lock()

    def prepare(self, resource: str, ttl: float) -> None:
        """Let the server end this session when it isn't heard of for `ttl` seconds.

        Raises BadArgument behind a connection pooler, where a session's lock would be another client's
        too, and LeaseUnreachable.
        """
        query = f"select pg_backend_pid(), set_config('idle_session_timeout', '{max(1, int(ttl * 1000))}', false)"
        pid = None
        with self.asking, suppress(SessionEnded):
            self._send(query.encode())
            answer = self._answer(time.monotonic() + 5.0)
            pid = None if answer is None else answer.get_value(0, 0)
        if pid is None:
            raise LeaseUnreachable(
                f"Postgres gave no answer while the lease on {resource} was prepared",
                {"resource": resource},
                "The lock wasn't taken. Check that the server is up, then try again",
            )
        refuse_pooler(resource, self._told_pid, int(pid))

    def ping(self, patience: float) -> Reply:
        """Whether the session, and so its lock, is still there."""
        with self.asking:
            self.start()
            return self.finish(time.monotonic() + patience)

    def retire(self, patience: float) -> Reply:
        """The last `ping`. From here on the session is its owner's alone; the watchdog gets no answer."""
        with self.asking:
            self.start()
            reply = self.finish(time.monotonic() + patience)
            self._retired = True
            return reply

    def start(self) -> None:
        """Ask, unless an earlier question is still open. Under `asking`, up to `finish`."""
        self._asked_now = not (self._pending or self._retired)
        if self._asked_now:
            with suppress(SessionEnded):  # `finish` meets it again
                self._send(PING)

    def finish(self, until: float) -> Reply:
        """The answer, if it comes before the monotonic time `until`."""
        if self._retired:
            return Reply.NO_ANSWER
        try:
            answer = self._answer(until)
            if answer is not None and not self._asked_now:
                # An answer to an earlier question says nothing about now.
                self._send(PING)
                answer = self._answer(until)
        except SessionEnded as ended:
            return ended.reply
        return Reply.NO_ANSWER if answer is None else Reply.HELD

    def _send(self, query: bytes) -> None:
        try:
            self._pgconn.send_query(query)
        except psycopg.OperationalError:
            raise SessionEnded(None) from None
        self._pending = True

    def _answer(self, until: float) -> PGresult | None:
        pgconn = self._pgconn
        try:
            while pgconn.flush() or pgconn.is_busy():
                if not _wait_readable(pgconn.socket, until):
                    return None
                pgconn.consume_input()
        except psycopg.OperationalError:
            raise SessionEnded(None) from None
        self._pending = False
        results = []
        while (result := pgconn.get_result()) is not None:
            results.append(result)
        if not results or results[0].status != ExecStatus.TUPLES_OK:
            state = results[0].error_field(psycopg.pq.DiagnosticField.SQLSTATE) if results else None
            raise SessionEnded(None if state is None else state.decode())
        return results[0]


class JobSessions:
    """Keeps all job locks of this process alive: everyone is asked before anyone is waited for."""

    def renew(self, holds: Sequence[Hold], patience: float) -> list[Reply]:
        """Show the servers that the holders are alive. Together that takes `patience` seconds at most."""
        sessions = [cast("JobSession", hold.lock) for hold in holds]
        with ExitStack() as stack:
            for session in sessions:
                stack.enter_context(session.asking)
                session.start()
            until = time.monotonic() + patience
            return [session.finish(until) for session in sessions]


job_sessions = JobSessions()


def refuse_pooler(resource: str, told_pid: int, pid: int) -> None:
    """Raise BadArgument when the server process isn't the one this client was told of at its connect."""
    if told_pid == pid:
        return
    raise BadArgument(
        f"the lock of {resource} can't be held over this connection: a connection pooler stands between. It"
        f" was told of server process {told_pid} but is served by {pid}. A pooler lends one session to many"
        " clients, so each of them would hold the lock. Nothing was changed",
        {"resource": resource, "reason": "pooler", "told_pid": told_pid, "pid": pid},
        "Give the lease a connection that goes straight to Postgres, or keep the lease in Redis"
        f" (ledger kind set {resource.partition(':')[0]} --lock redis)",
    )


def _wait_readable(socket: int, until: float) -> bool:
    poll = select.poll()  # select() itself can't take a descriptor above 1023
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))
