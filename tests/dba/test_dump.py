"""A dump, restored into another cluster by a role that is no superuser, is the same ledger."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import dev, doctor, schema
from ledger.client import Ledger
from tests.conftest import Connect
from tests.dba.dump import dump as dump_into
from tests.dba.dump import program, restore
from tests.dba.stories import STORIES, WHO, Cast
from tests.story import ALICE, BOB, Connection, activated, added, raised

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("dump")]

DATA = ("refund", "journal", "fence", "draw", "event", "token_seq")


@pytest.fixture(scope="module")
def elsewhere(pytestconfig: pytest.Config) -> Iterator[dev.Servers]:
    """Another cluster, whose migrating role may create roles and is no superuser."""
    with dev.temporary(pytestconfig.getoption("pg")) as pair:
        yield pair


@pytest.fixture
def restored(elsewhere: dev.Servers) -> Iterator[str]:
    """An empty database there, as `ledger_admin`, who owns it."""
    elsewhere.prepare()
    with psycopg.connect(elsewhere.dsn("postgres", "postgres"), autocommit=True) as superuser:
        superuser.execute("drop database if exists ledger with (force)")
        elsewhere.prepare()
        assert superuser.execute("select rolsuper from pg_roles where rolname = 'ledger_admin'").fetchone() == (False,)
        yield elsewhere.dsn()
        superuser.execute("drop database ledger with (force)")


@pytest.fixture
def dump(running: dev.Servers, migrator_dsn: str, told: dict[str, Any], tmp_path: Path) -> Path:
    """The ledger of the story, dumped as the page says."""
    return dump_into(running, migrator_dsn, tmp_path / "ledger.dump")


@pytest.fixture
def told(ledger: Ledger, admin: Connection) -> dict[str, Any]:
    """A ledger with a past: refunds archived, sent, being sent and pending; a stale token and an active one."""
    operator = Ledger(admin)
    added(ledger, "archived", "sending", "sent", "pending")
    operator.cancel_refund("m_1", "archived", **WHO)
    archive_now(operator, admin)
    stale, token = activated(ledger, ALICE), activated(ledger, BOB)
    for refund_id in ("sending", "sent"):
        ledger.claim_refund("m_1", refund_id, token)
    ledger.confirm_refund("m_1", "sent", token, "re_1")
    return {"stale": stale, "token": token}


def archive_now(operator: Ledger, admin: Connection) -> None:
    admin.execute("select ledger.set_kind('settle', key_window => '1 ms', actor => 'carol', reason => 'a story')")
    admin.execute("select ledger.archive_refunds('m_1', clock_timestamp() - interval '1 ms', 9, '', 'carol', 'tidy')")
    admin.execute("select ledger.set_kind('settle', key_window => '23 hours', actor => 'carol', reason => 'a story')")
    assert admin.execute("select refund_id from ledger.archived_refund").fetchall() == [("archived",)]


def rows_of(dsn: str) -> dict[str, Any]:
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "select relname from pg_class where relnamespace = 'ledger'::regnamespace and relkind = 'r' order by 1"
        ).fetchall()
        return {
            name: connection.execute(f"select t::text from ledger.{name} as t order by 1".encode()).fetchall()
            for (name,) in tables
        }


def faults(connection: Connection) -> list[str]:
    """What the doctor finds, apart from what test servers lack."""
    return [one.finding for one in doctor.examine(connection) if one.level == "fault" and one.check != "durability"]


@pytest.fixture
def there(elsewhere: dev.Servers, restored: str, dump: Path, connect: Connect) -> Callable[..., Connection]:
    """Connections to the restored ledger: `there("ledger_worker")`."""
    restore(elsewhere, restored, dump)
    return lambda user, **options: connect(elsewhere.dsn(user), **options)


def test_a_restored_ledger_has_every_row_and_the_releases_schema(
    there: Callable[..., Connection], restored: str, admin_dsn: str
) -> None:
    assert rows_of(restored) == rows_of(admin_dsn)
    assert faults(there("postgres")) == [
        "this server was promoted or restored: every call with a token is refused (LG106)"
    ]
    assert Ledger(there("ledger_reader")).verify() == []


def test_nothing_goes_on_until_an_operator_has_said_what_happened(
    there: Callable[..., Connection], told: dict[str, Any]
) -> None:
    worker, operator = Ledger(there("ledger_worker")), Ledger(there("ledger_operator"))
    with raised("LG106"):
        worker.draw_token("settle:m_1")
    with raised("LG106"):
        worker.claim_refund("m_1", "pending", told["token"])

    assert operator.recover_failover(**WHO) == "recovered"

    for token in told.values():
        with raised("LG101"):
            worker.claim_refund("m_1", "pending", token)
    new = activated(worker)
    assert new > told["token"]
    assert worker.claim_refund("m_1", "pending", new).outcome == "taken_over"
    assert worker.claim_refund("m_1", "sending", new).outcome == "taken_over"
    assert worker.add_refund("m_1", "archived", 7025, "EUR").outcome == "already"
    assert operator.verify() == []
    assert faults(there("postgres")) == []


def test_the_stories_are_the_same_in_a_restored_ledger(there: Callable[..., Connection]) -> None:
    """All in one database, for a restore takes its time."""
    operator = Ledger(there("ledger_operator"))
    operator.recover_failover(**WHO)
    for number, story in enumerate(STORIES):
        story(Cast(f"m_{number + 10}", Ledger(there("ledger_worker")), Ledger(there("ledger_worker")), operator))
    assert operator.verify() == []


def data_alone(elsewhere: dev.Servers, restored: str, dump: Path) -> None:
    """Into a schema that is there, past its guards."""
    schema.upgrade(restored)
    tables = [f"--table={name}" for name in DATA]
    program(
        elsewhere, "pg_restore", "--data-only", "--disable-triggers", "--schema=ledger", *tables,
        f"--dbname={restored}", str(dump),
    )  # fmt: skip


def test_a_restore_of_data_alone_leaves_ordinary_guards_and_doctor_and_verify_say_so(
    elsewhere: dev.Servers, restored: str, dump: Path, connect: Connect
) -> None:
    data_alone(elsewhere, restored, dump)
    superuser = connect(elsewhere.dsn("postgres"))

    found = {one for one in faults(superuser) if one.startswith("trigger ")}
    assert found == {
        f"trigger {table}_{what} on ledger.{table}: it fires as an ordinary trigger, not always"
        for table, what in (
            ("refund", "is_guarded"), ("refund", "is_archived"), ("journal", "is_guarded"), ("journal", "is_archived"),
            ("fence", "is_guarded"), ("draw", "is_guarded"), ("event", "is_guarded"), ("event", "is_pruned"),
        )
    }  # fmt: skip
    findings = {one.resource for one in Ledger(superuser).verify() if one.check == "trigger_is_on"}
    assert findings == {f"ledger.{name}" for name in DATA if name != "token_seq"}


def test_the_guards_are_put_back_as_the_page_says(
    elsewhere: dev.Servers, restored: str, dump: Path, connect: Connect
) -> None:
    data_alone(elsewhere, restored, dump)
    with psycopg.connect(restored) as migrator:
        migrator.execute(schema.offline_sql(part="functions").encode())
    assert faults(connect(elsewhere.dsn("postgres"))) == []


def test_the_guards_refuse_a_restore_of_data_that_leaves_them_on(
    elsewhere: dev.Servers, restored: str, dump: Path
) -> None:
    schema.upgrade(restored)
    done = subprocess.run(
        [elsewhere.pg_bin / "pg_restore", "--data-only", "--table=refund", f"--dbname={restored}", dump],
        text=True, capture_output=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 1
    assert "goes round the ledger's functions; nothing was changed" in done.stderr
