"""How a worker is protected: from no lock to the full fence. The loop in `worker` is the same for all."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Protocol

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ledger.client import Ledger
from ledger.demo.naive import Row
from ledger.demo.story import say
from ledger.errors import LeaseLost, LeaseUnreachable, RefundFinished, StaleToken
from ledger.gateway import Nothing, Sent
from ledger.lease import Lease
from ledger.reproduce.orders import Orders
from ledger.sandbox import SandboxGateway

PATIENCE = 120.0

RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
GIVE_BACK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Stopped(Exception):
    """The worker was told that it isn't the holder any more, and ends. `code` is the refusal's, if there was one."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


class Guard(Protocol):
    """One way to protect the work."""

    token: int

    def take(self) -> None:
        """Take the lock, waiting for it."""

    def claim(self, refund_id: str) -> Row | None:
        """The refund, if it is to be sent now."""

    def look(self) -> None:
        """Look whether the lock is still ours, where this guard does. Raises Stopped."""

    def look_again(self) -> None:
        """The same, after the call and before the write."""

    def record(self, row: Row, ref: str) -> None:
        """Write down that it was sent. Raises Stopped."""

    def no_answer(self, row: Row) -> None:
        """Write down that the gateway gave no answer, where this guard does."""

    def give_back(self) -> None:
        """Give the lock back."""


class Unguarded:
    """No lock."""

    claimed = """
        select amount_minor, currency from reproduce.refund
        where merchant_id = %(merchant_id)s and refund_id = %(refund_id)s and state <> 'sent'
    """
    recorded = """
        update reproduce.refund set state = 'sent', gateway_ref = %(ref)s
        where merchant_id = %(merchant_id)s and refund_id = %(refund_id)s
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.token = 0
        self.connection = psycopg.connect(orders.dsn, autocommit=True)

    def take(self) -> None:
        """There is nothing to take."""
        say("took", text="begins; it needs no lock")

    def claim(self, refund_id: str) -> Row | None:
        """Read the row."""
        found = self._run(self.claimed, refund_id).fetchone()
        if found is None:
            say("skipped", refund_id, text=f"finds nothing to do about {refund_id}")
            return None
        merchant_id = self.orders.merchant_id
        say("claimed", refund_id, text=f"finds {refund_id} unsent")
        return Row(merchant_id, refund_id, found[0], found[1], None, f"{merchant_id}/{refund_id}")

    def look(self) -> None:
        """It doesn't."""

    def look_again(self) -> None:
        """It doesn't."""

    def record(self, row: Row, ref: str) -> None:
        """Write the row."""
        if self._run(self.recorded, row.refund_id, ref=ref).rowcount:
            say("recorded", row.refund_id, text=f"records {row.refund_id} as sent: {ref}", ref=ref)
        else:
            say("refused", row.refund_id, text=f"can't record {ref}: the row carries a newer number")

    def no_answer(self, row: Row) -> None:
        """Leave it to whoever comes next, as it is."""
        say("left", row.refund_id, text=f"gets no answer about {row.refund_id}, and leaves it as it is")

    def give_back(self) -> None:
        """There is nothing to give back."""

    def _run(self, statement: str, refund_id: str, **more: Any) -> psycopg.Cursor[Any]:
        named = {"merchant_id": self.orders.merchant_id, "refund_id": refund_id, "token": self.token, **more}
        return self.connection.execute(statement, named)


class Ttl(Unguarded):
    """A lock that ends by itself."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        patience = orders.redis_timeout
        self.redis = redis.Redis.from_url(
            orders.redis_url, socket_timeout=patience, socket_connect_timeout=patience, retry=Retry(NoBackoff(), 1)
        )
        self.key = lock_key(orders.merchant_id, fenced=False)
        self.ttl_ms = int(orders.ttl * 1000)

    def take(self) -> None:
        """SET NX PX until it works."""
        waited = False
        while not self.redis.set(self.key, self.orders.name, nx=True, px=self.ttl_ms):
            if not waited:
                say("waits", text="waits for the lock")
                waited = True
            time.sleep(0.02)
        self.taken()
        say("took", text=f"has the lock{f' and number {self.token}' if self.token else ''}")

    def taken(self) -> None:
        """What comes with the lock."""

    def give_back(self) -> None:
        """Delete it, if it is still ours."""
        with suppress(redis.RedisError):
            self.redis.eval(GIVE_BACK, 1, self.key, self.orders.name)


class Renew(Ttl):
    """A lock with a watchdog."""

    def taken(self) -> None:
        """Start the watchdog."""
        self._over = threading.Event()
        threading.Thread(target=self._renew, daemon=True).start()

    def give_back(self) -> None:
        """Stop the watchdog, then give the lock back."""
        self._over.set()
        super().give_back()

    def _renew(self) -> None:
        while not self._over.wait(self.orders.ttl / 3):
            with suppress(redis.RedisError):
                self.redis.eval(RENEW, 1, self.key, self.orders.name, str(self.ttl_ms))


class Check(Renew):
    """A lock that is looked at before each act."""

    def look(self) -> None:
        """GET."""
        try:
            found = self.redis.get(self.key)
        except redis.RedisError:
            raise Stopped("looks at its lock, gets no answer from Redis, and stops") from None
        if found != self.orders.name.encode():
            raise Stopped("looks at its lock, which isn't its own any more, and stops")

    def look_again(self) -> None:
        """GET."""
        self.look()


class RowFence(Renew):
    """A lock with a number, compared with the row's and with nothing else."""

    claimed = """
        update reproduce.refund set state = 'sending', fence = %(token)s
        where merchant_id = %(merchant_id)s and refund_id = %(refund_id)s and state <> 'sent' and fence <= %(token)s
        returning amount_minor, currency
    """
    recorded = """
        update reproduce.refund set state = 'sent', gateway_ref = %(ref)s
        where merchant_id = %(merchant_id)s and refund_id = %(refund_id)s and fence = %(token)s
    """

    def taken(self) -> None:
        """Draw the number."""
        self.token = int(str(self.redis.incr(counter_key(self.orders.merchant_id))))
        super().taken()


class Fenced:
    """The ledger's own: a lease, a token that is activated, and its functions."""

    def __init__(self, orders: Orders, gateway: SandboxGateway) -> None:
        self.orders = orders
        self.gateway = gateway
        self.token = 0
        connection = psycopg.connect(orders.dsn, autocommit=True)
        self.ledger = Ledger(connection, refusals=psycopg.connect(orders.dsn, autocommit=True))
        resource = f"settle:{orders.merchant_id}"
        self.lease = Lease(resource, db=orders.dsn, redis=orders.redis_url, ttl=orders.ttl, wait=PATIENCE)

    def take(self) -> None:
        """Draw, take the lease, activate."""
        say("waits", text="asks for the lease")
        self.lease.acquire()
        self.token = self.lease.token
        say("took", text=f"has the lease; token {self.token} is active")

    def claim(self, refund_id: str) -> Row | None:
        """Claim it. Where an earlier worker may have sent it, ask the gateway, and record what that has."""
        try:
            claim = self.ledger.claim_refund(self.orders.merchant_id, refund_id, self.token)
        except RefundFinished:
            say("skipped", refund_id, text=f"finds nothing to do about {refund_id}")
            return None
        except StaleToken as refusal:
            raise Stopped(f"can't claim {refund_id}: {refusal.code}, {refusal.message}", refusal.code) from None
        say("claimed", refund_id, text=f"claims {refund_id}: {claim.outcome}")
        row = Row(claim.merchant_id, refund_id, claim.amount_minor, claim.currency, None, claim.idempotency_key)
        return row if claim.outcome == "claimed" else self._asked(row)

    def look(self) -> None:
        """Look at the lease."""
        try:
            self.lease.ensure()
        except LeaseLost as lost:
            raise Stopped(f"looks at its lease and stops: {lost.message}") from None

    def look_again(self) -> None:
        """Not needed: the database looks."""

    def record(self, row: Row, ref: str) -> None:
        """Confirm it."""
        try:
            move = self.ledger.confirm_refund(row.merchant_id, row.refund_id, self.token, ref)
        except StaleToken as refusal:
            text = f"can't record {ref}: {refusal.code}, {refusal.message}"
            raise Stopped(text, refusal.code) from None
        say("recorded", row.refund_id, text=f"records {row.refund_id} as sent: {ref} ({move.outcome})", ref=ref)

    def no_answer(self, row: Row) -> None:
        """Say that its outcome isn't known."""
        self.ledger.mark_unknown(row.merchant_id, row.refund_id, self.token, "the gateway gave no answer")
        say("left", row.refund_id, text=f"gets no answer about {row.refund_id}, and records it as unknown")

    def give_back(self) -> None:
        """Give the lease back. Without Redis it runs out."""
        with suppress(LeaseUnreachable):
            self.lease.release()

    def _asked(self, row: Row) -> Row | None:
        found = self.gateway.find(row.idempotency_key, PATIENCE)
        say("asked", row.refund_id, text=f"asks the gateway about {row.refund_id}: {_shown(found)}")
        if isinstance(found, Sent):
            self.record(row, found.ref)
            return None
        if not isinstance(found, Nothing):
            self.no_answer(row)
            return None
        return row


def guard(orders: Orders, gateway: SandboxGateway) -> Guard:
    """The protection that the orders name."""
    if orders.protection in {"fence", "fence+key"}:
        return Fenced(orders, gateway)
    kinds: dict[str, type[Unguarded]] = {
        "none": Unguarded,
        "ttl": Ttl,
        "renew": Renew,
        "check": Check,
        "row-fence": RowFence,
    }
    return kinds[orders.protection](orders)


def lock_key(merchant_id: str, *, fenced: bool) -> str:
    """The lock's key in Redis."""
    return f"lock:{{settle:{merchant_id}}}" if fenced else f"reproduce:{merchant_id}:lock"


def counter_key(merchant_id: str) -> str:
    """The key of the counter that the row's fence takes its numbers from."""
    return f"reproduce:{merchant_id}:number"


def keys(merchant_id: str) -> list[str]:
    """Every key in Redis that a run may leave."""
    lock = lock_key(merchant_id, fenced=True)
    return [lock, lock.replace("lock:", "wake:", 1), lock_key(merchant_id, fenced=False), counter_key(merchant_id)]


def _shown(found: object) -> str:
    return f"sent, {found.ref}" if isinstance(found, Sent) else type(found).__name__.lower()
