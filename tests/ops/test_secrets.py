"""No secret in what is printed, logged or stored: shown by passwords that must appear nowhere."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from ledger import dev
from ledger.client import Ledger
from tests.canary import CANARY, kept_in
from tests.commands.conftest import Cli
from tests.story import MERCHANT, RESOURCE, activated, added


@pytest.fixture
def secret_redis(redis_url: str) -> Iterator[str]:
    """The same Valkey, which asks for the password while the test lasts."""
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("requirepass", CANARY)
        yield redis_url.replace("unix://", f"unix://:{CANARY}@", 1)
        client.auth(CANARY)
        client.config_set("requirepass", "")


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("how", [["--log-format", "json", "-o", "json"], ["--log-format", "text"]])
def test_the_password_is_in_nothing_that_is_printed_or_stored(
    how: list[str],
    nowhere: Cli,
    operator_dsn: str,
    secret_redis: str,
    ledger: Ledger,
    admin_dsn: str,
    running: dev.Servers,
    gateway: Any,
    tmp_path: Path,
) -> None:
    added(ledger, "r_1", "r_2")
    ledger.claim_refund(MERCHANT, "r_2", activated(ledger))
    key = f"lock:{{{RESOURCE}}}"
    uri = f"postgresql://ledger_operator:{CANARY}@127.0.0.1:{unused_port()}/ledger"
    away = f"redis://:{CANARY}@127.0.0.1:{unused_port()}/0"
    wrong = secret_redis.replace(CANARY, f"{CANARY}x")
    reason = ["--reason", "a test"]
    (tmp_path / "bad.csv").write_text("merchant_id,refund_id\n")
    said = {}

    def say(expected: int, *command: object, dsn: str = operator_dsn, redis: str = secret_redis) -> None:
        told = nowhere(*command, "--dsn", dsn, "--redis", redis, "--log-level", "debug", *how)
        said[command, dsn, redis] = told.out + told.err
        assert told.code == expected, told

    say(0, "settle", MERCHANT, "--gateway", gateway.url)
    say(0, "metrics", "--verify-every", "1h")
    say(0, "verify")
    say(0, "history", MERCHANT, "r_2")
    say(0, "lease", "show", RESOURCE)
    say(0, "kind", "set", "settle", "--max-attempts", 7, *reason)
    say(2, "import", tmp_path / "bad.csv")
    say(5, "claim", MERCHANT, "r_404", *reason)
    with redis_client(secret_redis) as client:
        client.set(key, "mallory/1/aaaaaaaaaaaaaaaa:99", px=60_000)
    say(6, "settle", MERCHANT, "--gateway", gateway.url)
    say(4, "settle", MERCHANT, "--gateway", gateway.url, redis=away)
    say(4, "settle", MERCHANT, "--gateway", gateway.url, redis=wrong)
    say(4, "verify", dsn=uri)
    say(4, "metrics", dsn=uri)
    say(2, "verify", dsn=f"postgresql://ledger_operator:{CANARY}@one@two/ledger")
    say(2, "verify", dsn=f"password='{CANARY} host=")
    say(2, "settle", MERCHANT, "--gateway", gateway.url, redis=f"nonsense://:{CANARY}@host")

    assert {command for command, text in said.items() if CANARY in text} == set()
    assert kept_in(admin_dsn) == []
    with redis_client(secret_redis) as client:
        kept = [(name, client.type(name), client.dump(name)) for name in client.keys("*")]
    assert CANARY not in str(kept)
    logs = [path for path in running.folder.rglob("*") if path.is_file() and re.search(r"\.log$", path.name)]
    assert logs
    assert [path.name for path in logs if CANARY in path.read_text(errors="replace")] == []


def redis_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def test_the_suite_would_see_it(admin_dsn: str, ledger: Ledger) -> None:
    ledger.record_refusal("LG101", CANARY, {"resource": RESOURCE})
    assert kept_in(admin_dsn) == ["ledger.refusal"]
