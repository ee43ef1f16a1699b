"""Each thing that `ledger doctor` looks for: broken once, and named with what mends it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, LiteralString

import psycopg
import pytest
import redis

from ledger import __version__, dev, doctor, schema
from ledger.client import Ledger
from ledger.commands import ledger as commands
from ledger.commands.exits import run
from ledger.doctor import Diagnosis, leases, manifest, server
from ledger.lease.redis_lock import client_of
from tests.conftest import Connect
from tests.story import RESOURCE, Connection, activated, on_a_new_timeline

pytestmark = pytest.mark.heavy

# The test servers give durability up, and know that they do.
KNOWN = {"durability"}

Examined = Callable[..., list[Diagnosis]]


@pytest.fixture
def examined(admin: Connection, monkeypatch: pytest.MonkeyPatch) -> Examined:
    """What is found, apart from what is known of every test server.

    Compared with the schema as it was before the test: one test alone is about the file.
    """
    before = manifest.found(admin)
    monkeypatch.setattr(manifest, "released", lambda: before)

    def call(check: str | None = None, **more: Any) -> list[Diagnosis]:
        found = doctor.examine(admin, **more)
        return [one for one in found if (one.check == check if check else one.check not in KNOWN | {"redis"})]

    return call


@pytest.fixture
def cache(redis_url: str) -> Iterator[redis.Redis]:
    """The Redis where the leases live, as the doctor sees it. Its settings are put back."""
    with client_of(redis_url) as client:
        yield client
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)


@pytest.fixture
def setting(admin: Connection) -> Iterator[Callable[[str, str], None]]:
    """Change a setting of the server for the length of a test."""
    changed: list[str] = []

    def put(name: str, value: str) -> None:
        changed.append(name)
        admin.execute(f"alter system set {name} = {value}".encode())
        reload()

    def reload() -> None:
        admin.execute("select pg_reload_conf()")
        time.sleep(0.1)  # the signal reaches this session's process by itself, and says nothing

    yield put
    for name in changed:
        admin.execute(f"alter system reset {name}".encode())
    reload()


def told(found: list[Diagnosis]) -> list[tuple[str, str]]:
    return [(one.level, one.finding) for one in found]


def test_a_sound_installation_has_nothing_to_tell(examined: Examined, ledger: Ledger) -> None:
    activated(ledger)
    assert examined() == []


# The schema and its manifest


def test_the_manifest_is_the_catalogue_of_a_fresh_install(admin: Connection) -> None:
    found = manifest.found(admin)
    assert manifest.written(found) == manifest.FILE.read_text(), "the SQL has changed: make manifest"
    assert manifest.released() == found


def test_a_database_without_the_schema_is_told_how_to_get_it(empty_dsn: str, connect: Connect) -> None:
    (found,) = [one for one in doctor.examine(connect(empty_dsn)) if one.check not in KNOWN]
    assert (found.check, found.level, found.finding) == ("schema_revision", "fault", "there is no schema ledger")
    assert "ledger db upgrade" in found.mend


def test_a_schema_that_is_behind_is_told_which_sql_is_missing(empty_dsn: str, connect: Connect) -> None:
    first = schema.revisions()[0]
    schema.upgrade(empty_dsn, first)
    (found,) = [one for one in doctor.examine(connect(empty_dsn)) if one.check not in KNOWN]
    assert found.finding == f"the schema is at {first}, this release needs {schema.head()}"
    assert found.mend == f"ledger db sql {first}:{schema.head()}"


def test_a_schema_of_a_later_release_is_not_judged(examined: Examined, admin: Connection) -> None:
    admin.execute("update ledger.schema_version set version_num = '9999_later'")
    (found,) = examined()
    assert found.finding == "the schema is at 9999_later, which this release doesn't know"


DRIFTS: list[tuple[LiteralString, str, str]] = [
    (
        (
            "create or replace function ledger.guard_write() returns trigger language plpgsql"
            " set search_path = pg_catalog, pg_temp as 'begin return null; end'"
        ),
        "function ledger.guard_write(): its text is not the release's",
        "ledger db sql --part functions",
    ),
    (
        (
            "create or replace function ledger.refund_origin(payment_ref text, gateway text, idempotency_key text)"
            " returns jsonb language sql immutable return '{}'::jsonb"
        ),
        "function ledger.refund_origin(text,text,text): its text is not the release's",
        "ledger db sql --part functions",
    ),
    (
        "alter function ledger.draw_token(text) security invoker",
        ("function ledger.draw_token(text): definer is False, the release has True"),
        "ledger db sql --part functions",
    ),
    (
        "alter function ledger.draw_token(text) reset search_path",
        ("function ledger.draw_token(text): settings is None, the release has ['search_path=pg_catalog, pg_temp']"),
        "ledger db sql --part functions",
    ),
    (
        "alter function ledger.draw_token(text) owner to postgres",
        ("function ledger.draw_token(text): owner is postgres, the release has ledger_fn"),
        "alter function ledger.draw_token(text) owner to ledger_fn",
    ),
    (
        "drop function ledger.count_open(text, bigint)",
        "function ledger.count_open(text,bigint) is missing",
        "ledger db sql --part functions",
    ),
    (
        "create function ledger.extra() returns integer return 1",
        "function ledger.extra() is none of the release's",
        "drop function ledger.extra()",
    ),
    (
        "grant execute on function ledger.set_kind to ledger_worker",
        "ledger_worker execute too many",
        "revoke execute on function ledger.set_kind(",
    ),
    (
        "revoke execute on function ledger.draw_token from ledger_worker",
        ("function ledger.draw_token(text): grants: ledger_worker execute missing"),
        "ledger db sql --part functions",
    ),
    (
        "grant insert on ledger.refund to ledger_worker",
        "table ledger.refund: grants: ledger_worker insert too many",
        "revoke insert on table ledger.refund from ledger_worker",
    ),
    (
        "revoke select on ledger.refund from ledger_reader",
        "table ledger.refund: grants: ledger_reader select missing",
        "grant select on table ledger.refund to ledger_reader",
    ),
    (
        "grant usage on ledger.token_seq to ledger_worker",
        ("sequence ledger.token_seq: grants: ledger_worker usage too many"),
        "revoke usage on sequence ledger.token_seq from ledger_worker",
    ),
    (
        "grant create on schema ledger to ledger_fn",
        "schema ledger: grants: ledger_fn create too many",
        "revoke create on schema ledger from ledger_fn",
    ),
    (
        "grant update (state) on ledger.refund to ledger_worker",
        "table ledger.refund: columns: state ledger.state",
        "ledger db sql",
    ),
    (
        "alter table ledger.refund owner to postgres",
        ("table ledger.refund: owner is postgres, the release has ledger_owner"),
        "alter table ledger.refund owner to ledger_owner",
    ),
    ("alter table ledger.refund add column note text", "table ledger.refund: columns: note text", "ledger db sql"),
    (
        "alter table ledger.refund set (fillfactor = 100)",
        ("table ledger.refund: options: fillfactor=100 too many; fillfactor=50 missing"),
        "ledger db sql",
    ),
    (
        "alter table ledger.refund drop constraint sent_has_gateway_ref",
        ("constraint sent_has_gateway_ref on ledger.refund is missing"),
        "ledger db sql",
    ),
    ("drop index ledger.refund_open", "index ledger.refund_open is missing", "ledger db sql"),
    (
        "create index extra on ledger.refund (state)",
        "index ledger.extra is none of the release's",
        "drop index ledger.extra",
    ),
    (
        "alter table ledger.refund disable trigger refund_is_guarded",
        ("trigger refund_is_guarded on ledger.refund: it fires not at all, not always"),
        "ledger db sql --part functions",
    ),
    (
        "alter table ledger.refund enable trigger refund_is_guarded",
        ("trigger refund_is_guarded on ledger.refund: it fires as an ordinary trigger, not always"),
        "ledger db sql --part functions",
    ),
    (
        "drop trigger journal_is_archived on ledger.journal",
        "trigger journal_is_archived on ledger.journal is missing",
        "ledger db sql --part functions",
    ),
    (
        "alter sequence ledger.token_seq cache 20",
        "sequence ledger.token_seq: cache is 20, the release has 1",
        "ledger db sql",
    ),
    (
        (
            "create or replace view ledger.balance as select ''::text collate \"C\" as merchant_id,"
            " ''::text as currency, ''::text as account, 0::bigint as balance_minor"
        ),
        "view ledger.balance: its text is not the release's",
        "ledger db sql",
    ),
]


@pytest.mark.parametrize(("change", "finding", "mend"), DRIFTS, ids=[change[:60] for change, _, _ in DRIFTS])
def test_what_is_not_as_the_release_makes_it_is_named(
    change: LiteralString, finding: str, mend: str, examined: Examined, admin: Connection
) -> None:
    admin.execute(change)
    (found,) = [one for one in examined("drift") if finding in one.finding]
    assert found.level == "fault"
    assert mend in found.mend


def test_a_move_that_was_smuggled_in_is_found(examined: Examined, admin: Connection) -> None:
    admin.execute("alter table ledger.transition disable trigger user")
    admin.execute("update ledger.transition set person = true where from_state = 'sending'")
    admin.execute("alter table ledger.transition enable always trigger transition_is_guarded")
    assert told(examined()) == [("fault", "rows of ledger.transition: its rows are not the release's")]


def test_what_the_doctor_says_of_functions_and_triggers_mends_them(
    examined: Examined, admin: Connection, migrator_dsn: str
) -> None:
    admin.execute("alter table ledger.refund enable trigger refund_is_guarded")
    admin.execute("drop trigger journal_is_archived on ledger.journal")
    admin.execute("revoke execute on function ledger.draw_token from ledger_worker")
    admin.execute(
        "create or replace function ledger.guard_write() returns trigger language plpgsql as 'begin return null; end'"
    )
    assert len(examined()) >= 4
    with psycopg.connect(migrator_dsn) as migrator:
        migrator.execute(schema.offline_sql(part="functions").encode())
    assert examined() == []


@pytest.mark.parametrize(
    ("grant", "finding", "mend"),
    [
        (
            "grant execute on function ledger.draw_token to public",
            "everybody has execute on function ledger.draw_token(text)",
            "revoke execute on function ledger.draw_token(text) from public",
        ),
        (
            "grant select on ledger.refund to public",
            "everybody has select on table ledger.refund",
            "revoke select on table ledger.refund from public",
        ),
        (
            "grant usage on schema ledger to public",
            "everybody has usage on schema ledger",
            "revoke usage on schema ledger from public",
        ),
    ],
)
def test_what_everybody_may_do_is_named(
    grant: LiteralString, finding: str, mend: LiteralString, examined: Examined, admin: Connection
) -> None:
    admin.execute(grant)
    (found,) = examined()
    assert (found.check, found.level, found.finding, found.mend) == ("public_grants", "fault", finding, mend)
    admin.execute(mend)
    assert examined() == []


# The server


def test_giving_durability_up_is_a_fault(examined: Examined) -> None:
    assert [one.finding.split(":")[0] for one in examined("durability")] == ["fsync is off", "full_page_writes is off"]


@pytest.mark.parametrize("value", ["off", "local"])
def test_commits_that_may_be_lost_are_told(value: str, examined: Examined, admin: Connection, database: str) -> None:
    admin.execute(f"alter role ledger_worker in database {database} set synchronous_commit = {value}".encode())
    try:
        (found,) = [one for one in examined("durability") if one.level == "note"]
    finally:
        admin.execute(f"alter role ledger_worker in database {database} reset synchronous_commit".encode())
    assert found.finding.startswith(
        f"synchronous_commit is {value} for role ledger_worker in database {database}: the ledger raises it"
    )


def test_a_session_that_does_not_wait_for_its_commit_is_told(examined: Examined, admin: Connection) -> None:
    admin.execute("set synchronous_commit = off")
    assert "synchronous_commit is off for this session" in str(examined("durability"))


@pytest.mark.parametrize("name", ["autovacuum", "track_counts"])
def test_autovacuum_that_never_comes_is_a_fault(
    name: str, examined: Examined, setting: Callable[[str, str], None]
) -> None:
    setting(name, "off")
    assert told(examined()) == [("fault", f"{name} is off: the tables grow without end")]


def test_dead_rows_that_nobody_removes_are_a_fault(
    examined: Examined, admin: Connection, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute("alter table ledger.draw set (autovacuum_enabled = off)")
    monkeypatch.setattr(server, "ENOUGH_DEAD", 10)
    for _ in range(160):
        activated(ledger)
    assert isinstance(ledger.connection, psycopg.Connection)
    ledger.connection.execute("select pg_stat_force_next_flush()")
    ledger.connection.execute("select 1")
    found = {one.finding.split()[0]: one for one in examined("autovacuum_is_behind")}
    assert found["ledger.draw"].level == "fault"
    assert found["ledger.draw"].finding == "ledger.draw has 160 dead rows; autovacuum should have come at 50"
    assert found["ledger.draw"].mend.startswith("vacuum (analyze) ledger.draw;")


def test_an_invalid_index_is_a_fault(examined: Examined, admin: Connection) -> None:
    admin.execute("update pg_index set indisvalid = false where indexrelid = 'ledger.refund_open'::regclass")
    (found,) = examined()
    assert (found.finding, found.mend) == (
        "index ledger.refund_open is invalid", "reindex index concurrently ledger.refund_open",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("attribute", "finding"),
    [("login", "ledger_fn can log in, and would pass every guard"), ("superuser", "ledger_fn is a superuser")],
)
def test_an_owner_that_may_too_much_is_a_fault(
    attribute: str, finding: str, examined: Examined, admin: Connection
) -> None:
    admin.execute(f"alter role ledger_fn {attribute}".encode())
    try:
        assert told(examined("roles")) == [("fault", finding)]
    finally:
        admin.execute(f"alter role ledger_fn no{attribute}".encode())


@pytest.mark.parametrize("owner", ["ledger_fn", "ledger_owner"])
def test_a_caller_who_can_become_an_owner_is_a_fault(owner: str, examined: Examined, admin: Connection) -> None:
    admin.execute(f"grant {owner} to ledger_worker".encode())
    try:
        (found,) = examined("roles")
    finally:
        admin.execute(f"revoke {owner} from ledger_worker".encode())
    assert found.finding == f"ledger_worker is a member of {owner}, and passes every guard"
    assert (found.level, found.mend) == ("fault", f"revoke {owner} from ledger_worker")


def test_a_server_that_was_promoted_or_restored_is_a_fault(examined: Examined, admin: Connection) -> None:
    on_a_new_timeline(admin)
    (found,) = examined()
    assert (found.check, found.level) == ("server_is_known", "fault")
    assert "recover_failover" in found.mend


@pytest.mark.parametrize("role", ["pg_signal_backend", "pg_read_all_stats"])
def test_a_right_that_is_withheld_is_a_note(role: str, examined: Examined, admin: Connection) -> None:
    admin.execute(f"revoke {role} from ledger_fn".encode())
    try:
        (found,) = examined()
    finally:
        admin.execute(f"grant {role} to ledger_fn".encode())
    assert (found.level, found.mend) == ("note", f"grant {role} to ledger_fn, where that is wanted")


def test_clocks_that_are_apart_are_a_note(examined: Examined, cache: redis.Redis) -> None:
    found = examined("clock_distance", redis=cache, clock=lambda: time.time() + 60)
    assert [one.level for one in found] == ["note", "note"]
    assert found[0].finding.startswith("the clock of Postgres and this machine's are 60.0 s apart")
    assert found[1].finding.startswith("the clock of Redis and this machine's are 60.0 s apart")


# The sessions


def test_who_sees_nothing_of_others_is_told_so(connect: Connect, reader_dsn: str) -> None:
    found = [one for one in doctor.examine(connect(reader_dsn)) if one.check not in KNOWN | {"redis"}]
    assert [(one.check, one.level) for one in found] == [("sight", "note")]


GATE: LiteralString = "pg_advisory_lock_shared(hashtextextended('settle:m_1', 0))"


def test_a_gate_that_a_session_holds_is_a_fault(examined: Examined, ledger: Ledger, rival: Connection) -> None:
    activated(ledger)
    rival.execute("set application_name = 'a pool'")
    rival.execute("select " + GATE)
    (found,) = examined()
    pid = rival.info.backend_pid
    assert (found.check, found.level) == ("session_holders", "fault")
    assert found.finding.startswith(
        f"the gate of settle:m_1 is held by an idle session, pid {pid} (ledger_worker, a pool), silent for 0 s"
    )
    assert f"pg_terminate_backend({pid})" in found.mend


def test_a_gate_inside_a_transaction_is_nothing_to_tell(examined: Examined, ledger: Ledger, rival: Connection) -> None:
    activated(ledger)
    with rival.transaction():
        rival.execute("select " + GATE)
        assert examined() == []


def test_a_job_lock_that_nobody_keeps_alive_is_a_fault(
    examined: Examined, admin: Connection, rival: Connection, operators: Ledger
) -> None:
    rivals = Ledger(rival)
    rivals.hold_job("job:nightly")
    activated(rivals, resource="job:nightly")
    assert examined() == [], "a holder that speaks is alive"

    admin.execute("set role ledger_fn")
    admin.execute("update ledger.kind set lease_ttl = '1 ms', idle_limit = '1 ms' where kind = 'job'")
    admin.execute("reset role")

    (found,) = examined()
    assert found.finding.startswith("the job lock of job:nightly is held by an idle session")


def test_a_prepared_transaction_that_holds_a_gate_is_a_fault(
    examined: Examined, admin: Connection, ledger: Ledger, rival: Connection
) -> None:
    token = activated(ledger)
    rival.autocommit = False
    Ledger(rival).present_token(RESOURCE, token)
    rival.execute("prepare transaction 'it''s mine'")
    rival.rollback()
    rival.autocommit = True
    try:
        (found,) = examined()
        assert (found.check, found.level) == ("prepared_transactions", "fault")
        assert found.finding.startswith("prepared transaction it's mine of ledger_worker, since ")
        assert found.finding.endswith("holds the gate of settle:m_1: no activation passes")
        assert "rollback prepared 'it''s mine'" in found.mend
    finally:
        admin.execute("rollback prepared 'it''s mine'")


@pytest.mark.parametrize(
    ("release", "level", "mend"),
    [("0.0.9", "fault", "Restart those workers on the new release"), ("99.0.0", "note", "Ask the newer release's own")],
)
def test_workers_of_another_release_are_told(
    release: str, level: str, mend: str, examined: Examined, connect: Connect, dsn: str
) -> None:
    pids = [connect(dsn, application_name=f"ledger/{release}").info.backend_pid for _ in range(2)]
    connect(dsn, application_name=f"ledger/{__version__}")
    (found,) = examined()
    assert (found.check, found.level) == ("old_workers", level)
    listed = ", ".join(map(str, sorted(pids)))
    assert found.finding == f"2 sessions of release {release} (pid {listed}); this is {__version__}"
    assert found.mend.startswith(mend)


# Redis


def test_a_redis_that_was_not_named_is_a_note(admin: Connection) -> None:
    found = [one for one in doctor.examine(admin) if one.check == "redis"]
    assert told(found) == [("note", "Redis wasn't looked at; the leases of settle live there")]


def test_no_redis_is_missed_where_no_lease_lives_there(admin: Connection, operators: Ledger) -> None:
    operators.set_kind("settle", lock="advisory", actor="carol", reason="we have none")
    assert "redis" not in {one.check for one in doctor.examine(admin)}


def test_a_redis_that_evicts_is_a_fault_once_it_has_a_limit(examined: Examined, cache: redis.Redis) -> None:
    cache.config_set("maxmemory-policy", "volatile-lru")
    assert [one.level for one in examined("eviction", redis=cache)] == ["note"]
    cache.config_set("maxmemory", 100_000_000)
    (found,) = examined("eviction", redis=cache)
    assert (found.level, found.finding) == (
        "fault",
        "Redis evicts keys (volatile-lru) at 100,000,000 bytes: a lease may be gone while its holder works",
    )


def test_a_redis_that_keeps_nothing_is_a_note(examined: Examined, cache: redis.Redis) -> None:
    assert [one.level for one in examined("persistence", redis=cache)] == ["note"]


def test_a_redis_that_can_not_write_is_a_fault(examined: Examined, cache: redis.Redis) -> None:
    class Full:
        """A Redis on a full disk."""

        def info(self, section: str) -> dict[str, Any]:
            return {**cache.info(section), "rdb_last_bgsave_status": "err", "aof_enabled": 1}

    found = list(leases.persistence(Full(), None))  # type: ignore[arg-type]
    assert [(one.level, one.finding) for one in found] == [
        ("fault", "Redis could not write its snapshot: it refuses writes, and so every lease (MISCONF)")
    ]


def test_a_lease_without_an_end_is_a_fault(examined: Examined, cache: redis.Redis) -> None:
    cache.set("lock:{settle:m_1}", "by hand:1", px=30_000)
    assert examined("endless_leases", redis=cache) == []
    cache.persist("lock:{settle:m_1}")
    (found,) = examined("endless_leases", redis=cache)
    assert (found.level, found.finding) == ("fault", "the lease on settle:m_1 has no end: its TTL doesn't fall")
    assert found.mend.startswith("ledger lease break settle:m_1")


def test_a_lease_that_lasts_longer_than_its_kind_allows_is_a_fault(examined: Examined, cache: redis.Redis) -> None:
    cache.set("lock:{settle:m_1}", "by hand:1", ex=3600)
    (found,) = examined("endless_leases", redis=cache)
    assert re.fullmatch(r"the lease on settle:m_1 lasts 3,[56]\d\d s more; its kind allows 30", found.finding)


# The command


@pytest.fixture
def sound(setting: Callable[[str, str], None]) -> None:
    """A server that keeps what it commits."""
    setting("fsync", "on")
    setting("full_page_writes", "on")


def doctors(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(commands, ["doctor", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_the_command_ends_in_0_where_there_is_no_fault(
    sound: None, admin_dsn: str, redis_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = doctors(capfd, "--dsn", admin_dsn, "--redis", redis_url)
    assert code == 0, out
    assert out.splitlines()[1].startswith("note   persistence  Redis keeps no append-only file")
    assert err == "0 to mend, 1 to know\n"


def test_the_command_ends_in_10_where_there_is_one(
    admin: Connection, admin_dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    admin.execute("alter table ledger.refund disable trigger user")
    code, out, _ = doctors(capfd, "--dsn", admin_dsn, "-o", "json")
    assert code == 10
    assert '"finding": "trigger refund_is_guarded on ledger.refund: it fires not at all, not always"' in out


def test_the_command_ends_in_4_where_redis_is_down(
    admin_dsn: str, running: dev.Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    running.kill_redis()
    code, out, err = doctors(capfd, "--dsn", admin_dsn, "--redis", running.redis_url)
    assert (code, out) == (4, "")
    assert "Redis can't be reached" in err
