"""Behind PgBouncer: the stories of the SQL are the same in transaction mode; what can't work is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ledger import dev, doctor
from ledger.client import Ledger
from ledger.commands import ledger as commands
from ledger.commands.exits import run
from ledger.errors import BadArgument
from ledger.lease import AdvisoryLease, Lease
from tests.conftest import Connect
from tests.dba.linters import CHECKOUT
from tests.dba.pgbouncer import behind, pgbouncer
from tests.dba.stories import STORIES, WHO, Cast
from tests.elsewhere import NEED_A_SESSION, POOLERS
from tests.story import Connection, activated, added, refund

pytestmark = pytest.mark.heavy

Pooled = Callable[..., str]


@pytest.fixture(scope="module")
def port(servers: dev.Servers) -> Iterator[int]:
    with pgbouncer(servers, "transaction") as port:
        yield port


@pytest.fixture(scope="module")
def session_port(servers: dev.Servers) -> Iterator[int]:
    with pgbouncer(servers, "session") as port:
        yield port


@pytest.fixture(scope="module")
def statement_port(servers: dev.Servers) -> Iterator[int]:
    with pgbouncer(servers, "statement") as port:
        yield port


@pytest.fixture
def pooled(port: int, database: str) -> Pooled:
    """A DSN that goes through the pooler: `pooled("ledger_operator")`."""
    return lambda user="ledger_worker": behind(port, database, user)


@pytest.mark.parametrize("settings", POOLERS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_stories_are_the_same_in_transaction_mode(
    story: Callable[[Cast], None], settings: str, pooled: Pooled, connect: Connect, ledger: Ledger
) -> None:
    worker, rival, operator = (
        Ledger(connect(pooled(user), **POOLERS[settings]))
        for user in ("ledger_worker", "ledger_worker", "ledger_operator")
    )
    story(Cast("m_1", worker, rival, operator))
    assert ledger.verify() == []


def test_two_clients_share_one_session_and_their_tokens_stay_apart(
    pooled: Pooled, connect: Connect, admin: Connection
) -> None:
    worker, rival = (connect(pooled(), prepare_threshold=None) for _ in range(2))
    added(Ledger(worker), "r_1", "r_2")
    for n in range(4):
        ledger = Ledger((worker, rival)[n % 2])
        token = activated(ledger)
        with ledger.connection.transaction():  # type: ignore[union-attr]
            ledger.present_token("settle:m_1", token)
        assert ledger.claim_refund("m_1", "r_1", token).outcome == ("taken_over" if n else "claimed")
    sessions = {c.execute("select pg_backend_pid()").fetchone() for c in (worker, rival)}
    assert len(sessions) == 1
    assert refund(admin, "r_2", "state") == "pending"


def test_what_is_left_out_behind_a_pooler_is_there_without_one() -> None:
    """The suite's own list, which `--pooler` reads, names tests that exist."""
    for name in (name for names in NEED_A_SESSION.values() for name in names):
        file, _, function = name.partition("::")
        assert f"def {function}(" in (CHECKOUT / "tests" / file).read_text(), name


# What is refused


def test_a_statement_that_psycopg_prepared_is_refused_and_says_which_setting_mends_it(
    pooled: Pooled, connect: Connect
) -> None:
    ledgers = [Ledger(connect(pooled())) for _ in range(2)]
    with pytest.raises(psycopg.errors.DuplicatePreparedStatement) as refused:
        for _ in range(10):
            for ledger in ledgers:
                ledger.draw_token("settle:m_1")
    (note,) = refused.value.__notes__
    assert "prepare_threshold=None" in note
    assert "max_prepared_statements" in note


def test_a_lease_that_a_session_holds_is_refused(pooled: Pooled) -> None:
    with pytest.raises(BadArgument) as refused:
        AdvisoryLease("job:nightly", db=pooled()).acquire()
    assert "a connection pooler stands between" in refused.value.message
    assert "a connection that goes straight to Postgres" in (refused.value.hint or "")
    assert refused.value.detail["reason"] == "pooler"


def test_a_lease_in_redis_works_behind_a_pooler(pooled: Pooled, redis_url: str) -> None:
    for _ in range(8):
        with Lease("settle:m_1", db=pooled(), redis=redis_url) as lease:
            lease.ensure(need=0.1)


def test_a_reason_by_hand_would_be_another_clients_too_and_is_refused(
    pooled: Pooled, redis_url: str, capfd: pytest.CaptureFixture[str], admin: Connection, ledger: Ledger
) -> None:
    added(ledger, "r_1")
    operator = pooled("ledger_operator")
    arguments = ["confirm", "m_1", "r_1", "--gateway-ref", "re_1", "--redis", redis_url, "--reason", "seen"]

    assert run(commands, [*arguments, "--dsn", operator]) == 2

    said = capfd.readouterr().err
    assert "a connection pooler stands between" in said
    assert "Give --dsn that goes straight to Postgres" in said
    assert refund(admin, "r_1", "state") == "pending"


def test_looking_and_settling_by_command_work_behind_a_pooler(
    pooled: Pooled, redis_url: str, ledger: Ledger, admin: Connection, capfd: pytest.CaptureFixture[str],
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)  # where the sandbox keeps its log
    for n in range(30):
        ledger.add_refund("m_1", f"r_{n}", 100, "EUR", idempotency_key=f"{database}/{n}")
    settle = ["settle", "m_1", "--gateway", "sandbox", "--redis", redis_url, "--dsn", pooled()]
    assert run(commands, settle) == 0, capfd.readouterr()
    assert run(commands, ["verify", "--dsn", pooled("ledger_reader")]) == 0
    assert admin.execute("select distinct state from ledger.refund").fetchall() == [("sent",)]


# What the doctor says of it


def pooler_note(dsn: str) -> list[tuple[str, str]]:
    def connect() -> Connection:
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)

    with connect() as connection:
        found = doctor.examine(connection, connect=connect)
    return [(one.level, one.finding.partition(" (")[0]) for one in found if one.check == "pooler"]


def test_the_doctor_tells_the_modes_apart(
    port: int, session_port: int, statement_port: int, database: str, admin_dsn: str
) -> None:
    assert pooler_note(behind(port, database)) == [("note", "a pooler in transaction mode stands in between")]
    assert pooler_note(behind(session_port, database)) == [("note", "a pooler stands in between")]
    with psycopg.connect(behind(statement_port, database), autocommit=True) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert pooler_note(behind(statement_port, database)) == [
        ("fault", "a pooler stands in between that shares sessions by the statement: no call is safe with another")
    ]
    assert pooler_note(admin_dsn) == []


def test_an_operator_keeps_house_behind_a_pooler(pooled: Pooled, connect: Connect, ledger: Ledger) -> None:
    operator = Ledger(connect(pooled("ledger_operator"), prepare_threshold=None))
    for name in ("one", "two"):
        added(ledger, name)
        operator.cancel_refund("m_1", name, **WHO)
    assert operator.verify() == []
