"""A lease's key in Redis or Valkey: small scripts on connections of their own.

Every script compares before it acts, touches one hash slot, takes tokens as text (Lua rounds large integers),
and may be repeated: when no answer came, the same question is asked once more on a fresh connection.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from ledger.errors import LeaseUnreachable
from ledger.lease.watchdog import Hold, Reply

RedisLike: TypeAlias = "str | redis.Redis | redis.RedisCluster | redis.asyncio.Redis | redis.asyncio.RedisCluster"
Node: TypeAlias = "tuple[str, int] | None"
Argument: TypeAlias = "str | bytes | int | float"

SCRIPTS = Path(__file__).with_name("scripts")
"""The lease in Lua, for every language: docs/other-languages.md."""

POLL = 1.0
"""Seconds after which a waiter looks for itself, in case the release's wake-up never comes."""

_SCHEMES = {"valkey://": "redis://", "valkeys://": "rediss://", "valkey+unix://": "unix://"}

# What of a client's settings makes a connection. Retries, timeouts and decoding are the lease's own.
_KEPT = frozenset(
    (
        *("host", "port", "path", "db", "username", "password", "credential_provider", "client_name"),
        *("connection_pool", "socket_keepalive", "socket_keepalive_options", "socket_type"),
    )
)


class Script:
    """A Lua script of the folder scripts/, and the name the server knows it by. Its first lines say what it does."""

    __slots__ = ("sha", "text")

    def __init__(self, name: str) -> None:
        self.text = (SCRIPTS / f"{name}.lua").read_text()
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


TAKE = Script("take")
SWAP = Script("swap")
RENEW = Script("renew")
RELEASE = Script("release")
PEEK = Script("peek")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a lease's key holds, and for how many seconds more."""

    value: str
    ttl_left: float

    @property
    def holder(self) -> str:
        """The holder's name; empty when something else wrote the key."""
        return self.value.rpartition(":")[0]

    @property
    def token(self) -> int | None:
        """The token the holder drew; None when something else wrote the key."""
        number = self.value.rpartition(":")[2]
        return int(number) if number.isascii() and number.isdigit() else None


class _Wire(Protocol):
    """The part of redis-py's Connection that is used here."""

    def send_command(self, *args: Argument) -> None: ...
    def pack_commands(self, commands: Iterable[Sequence[Argument]]) -> list[bytes]: ...
    def send_packed_command(self, command: Sequence[bytes]) -> None: ...
    def read_response(self) -> Any: ...
    def disconnect(self) -> None: ...


class RedisLock:
    """The lease on one resource: its key, on its server.

    `timeout` bounds each wait for the server, in seconds. Every method raises `LeaseUnreachable` when the
    server gives no usable answer, and ValueError for a ttl that isn't above zero.
    """

    def __init__(self, source: RedisLike, resource: str, timeout: float = 1.0) -> None:
        if not resource or not resource.isprintable() or "{" in resource or "}" in resource:
            raise ValueError(f"not a resource: {resource!r}. Write kind:name, printable, without braces")
        self.resource = resource
        self.key = f"lock:{{{resource}}}"
        self.wake_key = f"wake:{{{resource}}}"
        self.server = server_of(source)
        self.node: Node = None
        self.timeout = timeout

    def take(self, value: str, ttl: float) -> Entry | None:
        """Take the lease for `ttl` seconds. None: it is ours; otherwise what is in the way.

        A key that already holds `value` is ours: an earlier reply was lost.
        """
        reply = self._run(TAKE, (self.key,), (value, milliseconds(ttl)))
        return None if reply is None else _entry(*reply)

    def swap(self, old: str, new: str, ttl: float) -> bool:
        """Put `new` in the place of `old`. False: the lease holds neither. Never shortens."""
        return bool(self._run(SWAP, (self.key,), (old, new, milliseconds(ttl))))

    def renew(self, value: str, ttl: float) -> Reply:
        """Let the lease last `ttl` seconds from now. Never shortens, never revives a key that is gone."""
        return _standing(self._run(RENEW, (self.key,), (value, milliseconds(ttl))), value)

    def release(self, value: str) -> bool:
        """Remove the lease if it holds `value`, and wake a waiter. False: it didn't."""
        return bool(self._run(RELEASE, (self.key, self.wake_key), (value,)))

    def peek(self) -> Entry | None:
        """What the lease holds now, or None."""
        value, ttl_left = self._run(PEEK, (self.key,), ())
        return None if value is None else _entry(value, ttl_left)

    def wait(self, seconds: float) -> None:
        """Wait until a release wakes us, `seconds` at most and never much longer than POLL."""
        limit = max(0.001, min(seconds, POLL * random.uniform(0.5, 1.0)))  # noqa: S311 (no secret)
        # The server holds the answer back for `limit`, so this connection is patient for longer.
        self.server.call(self, ("BLPOP", self.wake_key, limit), patience=POLL + 1.0, tries=1)

    def _run(self, script: Script, keys: tuple[str, ...], args: tuple[Argument, ...]) -> Any:
        return self.server.call(self, (script, *keys, *args), self.timeout, keys=len(keys))


def milliseconds(ttl: float) -> int:
    """`ttl` seconds as Redis counts them. Raises ValueError unless that is at least one."""
    if not 0.001 <= ttl < 1e9:
        raise ValueError(f"a lease can't last {ttl} seconds. Give a ttl above zero, in seconds")
    return int(ttl * 1000)


@dataclass(slots=True, eq=False)
class Server:
    """One Redis, or one cluster: how to connect to it, and connections that are free now.

    Shared by all leases of the process on it, so that the watchdog renews them in one round trip.
    """

    connect: Callable[[Node, float], _Wire]
    name: str
    _free: defaultdict[tuple[Node, float], deque[_Wire]] = field(default_factory=lambda: defaultdict(deque))
    _pid: int = field(default_factory=os.getpid)

    def call(
        self,
        lock: RedisLock,
        question: tuple[Script | Argument, ...],
        patience: float,
        keys: int = 1,
        tries: int = 2,
    ) -> Any:
        """The answer to a script or command about `lock`. Raises LeaseUnreachable."""
        try:
            try:
                return self._ask(lock, question, patience, keys)
            except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError):
                # Free connections may have died with the server, and a demoted primary stays connected.
                self._drop(lock.node)
                lock.node = None
                if tries == 1:
                    raise
                return self._ask(lock, question, patience, keys)
        except redis.RedisError as error:
            words = str(error).rstrip(".")
            raise LeaseUnreachable(
                f"Redis at {self.name} gave no usable answer about the lease on {lock.resource}: {words}",
                {"resource": lock.resource, "server": self.name},
                "Whether anything changed there is not known; a lease that was taken ends by itself."
                " Check that the server is up and takes writes, then try again",
            ) from error

    def renew(self, holds: Sequence[Hold], patience: float) -> list[Reply]:
        """Renew many leases, in one round trip for each node that has some."""
        by_node: defaultdict[Node, list[int]] = defaultdict(list)
        for place, hold in enumerate(holds):
            by_node[_lock(hold).node].append(place)
        replies = [Reply.NO_ANSWER] * len(holds)
        for node, places in by_node.items():
            batch = [(_lock(holds[place]), holds[place].value, holds[place].ttl) for place in places]
            for place, reply in zip(places, self._renew_at(node, batch, patience), strict=True):
                replies[place] = reply
        return replies

    def _renew_at(self, node: Node, batch: list[tuple[RedisLock, str, float]], patience: float) -> list[Reply]:
        commands = [("EVALSHA", RENEW.sha, 1, lock.key, value, milliseconds(ttl)) for lock, value, ttl in batch]
        try:
            try:
                answers = self._pipeline(node, commands, patience)
            except redis.ConnectionError:
                self._drop(node)
                answers = self._pipeline(node, commands, patience)
        except redis.RedisError:
            for lock, _, _ in batch:
                lock.node = None  # this node may have left the cluster
            return [Reply.NO_ANSWER] * len(batch)
        return self._renew_again(batch, answers, patience)

    def _renew_again(
        self, batch: list[tuple[RedisLock, str, float]], answers: list[Any], patience: float
    ) -> list[Reply]:
        """Read the answers, and ask one by one where the script was unknown or the lease has moved."""
        replies = []
        silent = False
        for (lock, value, ttl), answer in zip(batch, answers, strict=True):
            reply = Reply.NO_ANSWER
            if not isinstance(answer, redis.ResponseError):
                reply = _standing(answer, value)
            elif not silent:
                try:
                    found = self.call(lock, (RENEW, lock.key, value, milliseconds(ttl)), patience)
                    reply = _standing(found, value)
                except LeaseUnreachable:
                    silent = True  # one wait is enough: other servers' leases are due as well
            replies.append(reply)
        return replies

    def _ask(self, lock: RedisLock, question: tuple[Script | Argument, ...], patience: float, keys: int) -> Any:
        first, *rest = question
        arguments = cast("list[Argument]", rest)
        if not isinstance(first, Script):
            return self._routed(lock, (first, *arguments), patience)
        try:
            return self._routed(lock, ("EVALSHA", first.sha, keys, *arguments), patience)
        except redis.exceptions.NoScriptError:
            return self._routed(lock, ("EVAL", first.text, keys, *arguments), patience)

    def _routed(self, lock: RedisLock, command: tuple[Argument, ...], patience: float) -> Any:
        for _ in range(5):
            try:
                return self._exchange(lock.node, command, patience)
            except redis.ResponseError as error:
                redirection, node = _redirection(error, lock.node)
                if redirection == "MOVED":
                    lock.node = node
                elif redirection == "ASK":
                    return self._asking(node, command, patience)
                else:
                    raise
        raise redis.ConnectionError("the cluster keeps sending us to another node")

    def _asking(self, node: Node, command: tuple[Argument, ...], patience: float) -> Any:
        """Ask the node that a slot is being moved to, which answers only if asked like that."""
        _, answer = self._pipeline(node, [("ASKING",), command], patience)
        if isinstance(answer, redis.ResponseError):
            raise answer
        return answer

    def _exchange(self, node: Node, command: tuple[Argument, ...], patience: float) -> Any:
        free = self._free_at(node, patience)
        try:
            wire = free.pop()
        except IndexError:
            wire = self.connect(node, patience)
        try:
            wire.send_command(*command)
            answer = wire.read_response()
        except redis.ResponseError as error:
            if not isinstance(error, redis.ReadOnlyError):
                free.append(wire)
            raise
        except BaseException:
            wire.disconnect()  # an answer may still come and would be taken for the next one's
            raise
        free.append(wire)
        return answer

    def _pipeline(self, node: Node, commands: Sequence[tuple[Argument, ...]], patience: float) -> list[Any]:
        free = self._free_at(node, patience)
        wire = free.pop() if free else self.connect(node, patience)
        answers: list[Any] = []
        try:
            wire.send_packed_command(wire.pack_commands(commands))
            for _ in commands:
                try:
                    answers.append(wire.read_response())
                except redis.ResponseError as error:
                    answers.append(error)
        except BaseException:
            wire.disconnect()
            raise
        free.append(wire)
        return answers

    def _free_at(self, node: Node, patience: float) -> deque[_Wire]:
        if self._pid != os.getpid():
            # A forked child must not talk on its parent's connections.
            self._free, self._pid = defaultdict(deque), os.getpid()
        return self._free[node, patience]

    def _drop(self, node: Node) -> None:
        for (its_node, _), free in list(self._free.items()):
            while its_node == node and free:
                free.pop().disconnect()


@lru_cache(maxsize=32)
def server_of(source: RedisLike) -> Server:
    """The server that a URL or a client speaks to. The client's connections are left alone."""
    kind, settings = _recipe(source)
    settings = {name: value for name, value in settings.items() if name in _KEPT or name.startswith("ssl_")}

    def connect(node: Node, patience: float) -> _Wire:
        place = {} if node is None else {"host": node[0], "port": node[1]}
        wire = kind(
            **(settings | place),
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=patience,
            socket_connect_timeout=patience,
        )
        wire.connect()  # sending would connect as well, but past a Sentinel
        return cast("_Wire", wire)

    return Server(connect, _name(settings))


def client_of(url: str, timeout: float = 1.0) -> redis.Redis:
    """A plain client of the server that a lease's URL names, to look at it. Raises ValueError for a malformed URL."""
    kind, settings = _recipe_of_url(url)
    settings |= {"socket_timeout": timeout, "socket_connect_timeout": timeout, "decode_responses": True}
    pool = redis.ConnectionPool(connection_class=kind, retry=Retry(NoBackoff(), 0), **settings)
    return redis.Redis(connection_pool=pool)


def _name(settings: dict[str, Any]) -> str:
    """What to call a server in an error. Never its password."""
    if "connection_pool" in settings:
        return f"Sentinel service {getattr(settings['connection_pool'], 'service_name', 'of unknown name')}"
    return settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def _recipe(source: RedisLike) -> tuple[type[Any], dict[str, Any]]:
    if isinstance(source, str):
        return _recipe_of_url(source)
    if isinstance(source, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _recipe_of_cluster(source)
    if not isinstance(source, redis.Redis | redis.asyncio.Redis):
        raise TypeError(f"a lease needs a Redis URL or client, not {type(source).__name__}")
    pool = source.connection_pool
    settings = dict(pool.connection_kwargs)
    if isinstance(source, redis.Redis):
        return pool.connection_class, settings
    if "connection_pool" in settings:
        raise TypeError("an asyncio Sentinel client can't be used for a lease. Pass the blocking client")
    if "path" in settings:
        return UnixDomainSocketConnection, settings
    secure = issubclass(pool.connection_class, redis.asyncio.SSLConnection)
    return (SSLConnection if secure else Connection), settings


def _recipe_of_url(url: str) -> tuple[type[Any], dict[str, Any]]:
    for ours, theirs in _SCHEMES.items():
        if url.startswith(ours):
            url = theirs + url.removeprefix(ours)
    try:
        pool = redis.ConnectionPool.from_url(url)
    except ValueError:
        # The parser's own words may quote a password.
        raise ValueError(
            "the Redis URL can't be read. Write it as redis://[user:password@]host:port/db,"
            " rediss://... or unix:///path/to/socket"
        ) from None
    return pool.connection_class, dict(pool.connection_kwargs)


def _recipe_of_cluster(client: Any) -> tuple[type[Any], dict[str, Any]]:
    node = client.get_default_node() or next(iter(client.nodes_manager.startup_nodes.values()))
    settings = client.get_connection_kwargs() | {"host": node.host, "port": node.port}
    secure = any(name.startswith("ssl_") and value for name, value in settings.items())
    return (SSLConnection if secure else Connection), settings


def _redirection(error: redis.ResponseError, asked: Node) -> tuple[str, Node]:
    """Where a cluster's node sends us: MOVED or ASK and the node; an empty word for any other error."""
    word, *rest = str(error).split() or [""]
    if isinstance(error, redis.exceptions.AskError):  # the parser took the word away
        word, rest = ("MOVED" if isinstance(error, redis.exceptions.MovedError) else "ASK"), [word, *rest]
    if word not in ("MOVED", "ASK"):
        return "", None
    host, _, port = rest[1].rpartition(":")
    return word, (host or (asked[0] if asked else "127.0.0.1"), int(port))


def _lock(hold: Hold) -> RedisLock:
    return cast("RedisLock", hold.lock)


def _entry(value: bytes, ttl_left: int) -> Entry:
    return Entry(value.decode(errors="replace"), max(0.0, ttl_left / 1000))


def _standing(found: bytes | None, value: str) -> Reply:
    if found is None:
        return Reply.BROKEN
    return Reply.HELD if found == value.encode() else Reply.SUPERSEDED
