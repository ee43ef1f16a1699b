"""Ways round the fence: each was tried, and ends in a refusal that changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import ALICE, BOB, TABLES, activated, added, as_ledger_fn, raised, refund, refused, unchanged

CHECKOUT = Path(__file__).parents[1]
CALLERS = ("ledger_worker", "ledger_operator", "ledger_reader")
DENIED = "42501"
UNTRIGGERED = ["set session_replication_role = replica", "set role ledger_fn"]

Connection = psycopg.Connection[Any]
Rows = list[tuple[Any, ...]]


@pytest.fixture
def stale(connection: Connection) -> int:
    """Alice sent r_1 and claimed r_2; then Bob took over and claimed r_3. This is Alice's token."""
    ledger = Ledger(connection)
    added(ledger, "r_1", "r_2", "r_3", "r_4")
    token = activated(ledger, ALICE)
    ledger.claim_refund("m_1", "r_1", token)
    ledger.confirm_refund("m_1", "r_1", token, "re_1")
    ledger.claim_refund("m_1", "r_2", token)
    ledger.claim_refund("m_1", "r_3", activated(ledger, BOB))
    return token


@pytest.fixture
def as_role(connect: Connect, admin_dsn: str, migrator_dsn: str, dsn: str) -> Callable[[str], Connection]:
    """A connection of one of the roles, whichever way that role has."""

    def become(role: str) -> Connection:
        if role == "superuser":
            return connect(admin_dsn)
        if role == "ledger_owner":
            connection = connect(migrator_dsn)
            connection.execute("set role ledger_owner")
            return connection
        return connect(dsn, user=role)

    return become


def attempt(connection: Connection, statement: str) -> None:
    if statement.startswith("copy "):
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write("m_1\tr_99\t100\tsent\n")
    else:
        connection.execute(statement)


SENT = "update ledger.refund set state = 'sent' where refund_id = 'r_2'"
FENCE_BACK = "update ledger.refund set fence = 1 where refund_id = 'r_3'"
COPY = "copy ledger.refund (merchant_id, refund_id, amount_minor, state) from stdin"
MERGE = (
    "merge into ledger.refund as r using (select 'r_2' as id) as s on r.refund_id = s.id "
    "when matched then update set state = 'sent'"
)
UPSERT = (
    "insert into ledger.refund (merchant_id, refund_id, amount_minor, currency, state, added_at, changed_at) "
    "values ('m_1', 'r_2', 1, 'EUR', 'sent', now(), now()) on conflict (merchant_id, refund_id) "
    "do update set state = 'sent'"
)

ATTACKS = [
    # A worker has no right to any table.
    ("ledger_worker", "updates a row", [SENT], DENIED),
    ("ledger_worker", "inserts a row", [UPSERT], DENIED),
    ("ledger_worker", "deletes a row", ["delete from ledger.refund"], DENIED),
    ("ledger_worker", "empties a table", ["truncate ledger.refund"], DENIED),
    ("ledger_worker", "copies rows in", [COPY], DENIED),
    ("ledger_worker", "merges a row", [MERGE], DENIED),
    ("ledger_worker", "locks a row", ["select from ledger.refund for update"], DENIED),
    ("ledger_worker", "shares a row", ["select from ledger.fence for share"], DENIED),
    ("ledger_worker", "forges a journal entry", ["insert into ledger.journal default values"], DENIED),
    ("ledger_worker", "lowers the fence", ["update ledger.fence set active = 1"], DENIED),
    ("ledger_worker", "sets the sequence back", ["select setval('ledger.token_seq', 1)"], DENIED),
    ("ledger_worker", "draws past the function", ["select nextval('ledger.token_seq')"], DENIED),
    ("ledger_worker", "becomes ledger_fn", ["set role ledger_fn", SENT], DENIED),
    ("ledger_worker", "becomes the owner", ["set role ledger_owner", SENT], DENIED),
    ("ledger_worker", "becomes someone's session", ["set session authorization ledger_fn"], DENIED),
    ("ledger_worker", "switches triggers off", ["set session_replication_role = replica"], DENIED),
    ("ledger_worker", "drops a trigger", ["drop trigger refund_is_guarded on ledger.refund"], DENIED),
    ("ledger_worker", "replaces a function", ["drop function ledger.guard_write() cascade"], DENIED),
    ("ledger_worker", "adds a function", ["create function ledger.x() returns int return 1"], DENIED),
    ("ledger_worker", "adds a trigger", [
        "create trigger t before update on ledger.refund execute function ledger.guard_write()"
    ], DENIED),
    ("ledger_worker", "calls a guard", ["select ledger.keep_commit()"], DENIED),
    ("ledger_worker", "records a kind", [
        "select ledger.set_kind('settle', max_attempts => 99, actor => 'w', reason => 'more')"
    ], DENIED),
    ("ledger_worker", "recovers", ["select ledger.recover_failover(actor => 'w', reason => 'fence all out')"], DENIED),
    # An operator and a reader have none either.
    ("ledger_operator", "updates a row", [SENT], DENIED),
    ("ledger_operator", "becomes ledger_fn", ["set role ledger_fn", SENT], DENIED),
    ("ledger_reader", "updates a row", [SENT], DENIED),
    ("ledger_reader", "draws", ["select ledger.draw_token('settle:m_1')"], DENIED),
    ("ledger_reader", "claims", ["select ledger.claim_refund('m_1', 'r_4', 1)"], DENIED),
    # The owner's stray writes reach the guard.
    ("ledger_owner", "updates a row", [SENT], "LG103"),
    ("ledger_owner", "says that it is a function", ["set ledger.actor = 'ledger_fn'", SENT], "LG103"),
    ("ledger_owner", "spoofs a path", ["set ledger.path = 'claim'", SENT], "LG103"),
    ("ledger_owner", "sets the fence back", [FENCE_BACK], "LG103"),
    ("ledger_owner", "merges a row", [MERGE], "LG103"),
    ("ledger_owner", "upserts a row", [UPSERT], "LG103"),
    ("ledger_owner", "copies rows in", [COPY], "LG103"),
    ("ledger_owner", "deletes rows", ["delete from ledger.refund"], "LG103"),
    ("ledger_owner", "empties a table", ["truncate ledger.refund"], "LG103"),
    ("ledger_owner", "empties with cascade", ["truncate ledger.journal cascade"], "LG103"),
    ("ledger_owner", "writes in a query", [
        f"with x as ({SENT} returning 1) select count(*) from x"
    ], "LG103"),
    ("ledger_owner", "writes in a block", [f"do $$ begin {SENT}; end $$"], "LG103"),
    ("ledger_owner", "writes where no row is", ["update ledger.refund set state = 'sent' where false"], "LG103"),
    ("ledger_owner", "switches triggers off", ["set session_replication_role = replica", SENT], DENIED),
    ("ledger_owner", "replaces the guard", [
        "create or replace function ledger.guard_write() returns trigger language plpgsql as 'begin return null; end'",
        SENT,
    ], DENIED),
    # So do a superuser's, unless he becomes ledger_fn.
    ("superuser", "updates a row", [SENT], "LG103"),
    ("superuser", "sets the fence back", [FENCE_BACK], "LG103"),
    ("superuser", "switches triggers off", ["set session_replication_role = replica", SENT], "LG103"),
    ("superuser", "copies with triggers off", ["set session_replication_role = replica", COPY], "LG103"),
    ("superuser", "empties a table", ["truncate ledger.refund"], "LG103"),
    ("superuser", "rewrites the journal", ["set role ledger_fn", "update ledger.journal set token = 1"], DENIED),
    ("superuser", "deletes from the journal", ["set role ledger_fn", "delete from ledger.journal"], "LG103"),
    ("superuser", "deletes a refund", ["set role ledger_fn", "delete from ledger.refund"], "LG103"),
    ("superuser", "forgets an event", ["set role ledger_fn", "delete from ledger.event"], "LG103"),
    ("superuser", "forgets work", [
        "set role ledger_fn", "insert into ledger.work (resource, work_id) values ('x:1', 'x'); delete from ledger.work"
    ], "LG103"),
    ("superuser", "forgets a refusal", ["set role ledger_fn", "truncate ledger.refusal"], DENIED),
    ("superuser", "deletes a refund with triggers off", [*UNTRIGGERED, "delete from ledger.refund"], "LG103"),
    ("superuser", "deletes from the journal with triggers off", [*UNTRIGGERED, "delete from ledger.journal"], "LG103"),
    ("superuser", "forgets an event with triggers off", [*UNTRIGGERED, "delete from ledger.event"], "LG103"),
    ("superuser", "forgets work with triggers off", [
        *UNTRIGGERED, "insert into ledger.work (resource, work_id) values ('x:1', 'x'); delete from ledger.work"
    ], "LG103"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "statements", "code"),
    [pytest.param(role, statements, code, id=f"{role} {name}") for role, name, statements, code in ATTACKS],
)
def test_no_way_round_the_functions_changes_anything(
    role: str, statements: list[str], code: str, stale: int, admin: Connection, as_role: Callable[[str], Connection]
) -> None:
    attacker = as_role(role)
    with refused(code, admin):
        for statement in statements:
            attempt(attacker, statement)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("role", ["ledger_owner", "superuser"])
def test_every_table_refuses_every_stray_write(
    role: str, table: str, stale: int, admin: Connection, as_role: Callable[[str], Connection]
) -> None:
    attacker = as_role(role)
    (column,) = admin.execute(
        "select attname from pg_attribute where attrelid = ('ledger.' || %s)::regclass order by attnum desc limit 1",
        [table],
    ).fetchone() or ("",)
    for operation, statement in {
        "insert": f"insert into ledger.{table} default values",
        "update": f"update ledger.{table} set {column} = {column}",
        "delete": f"delete from ledger.{table}",
        "truncate": f"truncate ledger.{table}",
    }.items():
        with refused("LG103", admin) as refusal:
            attempt(attacker, statement)
        assert refusal.tells(
            operation=operation, table=f"ledger.{table}", role="postgres" if role == "superuser" else role
        )


def test_a_refused_stray_write_says_what_to_use_instead(stale: int, as_role: Callable[[str], Connection]) -> None:
    with raised("LG103") as refusal:
        as_role("ledger_owner").execute(SENT)
    assert refusal.message == (
        "write of ledger.refund refused: update on ledger.refund by ledger_owner goes round the ledger's functions; "
        "nothing was changed"
    )
    assert refusal.hint == "Use the functions of schema ledger; docs/errors.md, LG103, names the one for each purpose."


# Forged tokens


@pytest.mark.parametrize("token", [9 * 10**18, 2**63 - 1, 0, -1, None])
def test_a_number_that_nobody_drew_is_refused(token: int | None, stale: int, connection: Connection,
                                              admin: Connection) -> None:  # fmt: skip
    with refused("LG102", admin):
        connection.execute("select ledger.claim_refund('m_1', 'r_4', %s::bigint)", [token])


def test_the_number_that_will_be_drawn_next_is_refused(stale: int, connection: Connection, admin: Connection) -> None:
    (last,) = admin.execute("select last_value from ledger.token_seq").fetchone() or (0,)
    with refused("LG102", admin):
        Ledger(connection).claim_refund("m_1", "r_4", last + 1)


def test_a_token_of_another_merchant_is_refused(stale: int, connection: Connection, admin: Connection) -> None:
    ledger = Ledger(connection)
    others = activated(ledger, resource="settle:m_2")
    with refused("LG102", admin):
        ledger.claim_refund("m_1", "r_4", others)


def test_a_token_of_another_merchant_is_refused_below_the_barrier_too(stale: int, connection: Connection,
                                                                      admin: Connection) -> None:  # fmt: skip
    ledger = Ledger(connection)
    others = activated(ledger, resource="settle:m_2")
    activated(ledger, BOB)
    with refused("LG101", admin) as refusal:
        ledger.claim_refund("m_1", "r_4", others)
    assert refusal.tells(reason="voided")


# What a caller brings along


MASKS = {
    "a temporary table": """
        create temporary table refund (merchant_id text, refund_id text, state text, fence bigint);
        create temporary table fence (resource text, active bigint, barrier bigint)
    """,
    "a temporary operator": """
        create function pg_temp.always(bigint, bigint) returns boolean language sql as 'select true';
        create operator pg_temp.= (leftarg = bigint, rightarg = bigint, function = pg_temp.always);
        create operator pg_temp.<= (leftarg = bigint, rightarg = bigint, function = pg_temp.always)
    """,
    "a temporary schema first": "set search_path = pg_temp, pg_catalog, ledger",
    "no search path": "set search_path = ''",
    "null equals null": "set transform_null_equals = on",
    "other literals": "set backslash_quote = on; set array_nulls = off; set xmloption = 'document'",
    "other formats": "set datestyle = 'German'; set intervalstyle = 'sql_standard'; set timezone = 'Asia/Kathmandu'",
    "a spoofed actor": "set ledger.actor = 'ledger_fn'; set ledger.reason = 'because'; set ledger.discard = 'on'",
    "its own checks off": "set plpgsql.extra_errors = 'none'; set check_function_bodies = off",
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_nothing_that_a_session_can_set_or_create_helps_a_stale_token(
    mask: str, stale: int, connection: Connection, admin: Connection
) -> None:
    connection.execute(mask)
    with refused("LG101", admin) as refusal:
        connection.execute("select ledger.claim_refund('m_1', 'r_3', %s)", [stale])
    assert refusal.tells(reason="superseded", token=stale)


DECOYS = {
    "hashtextextended(text, bigint)": "bigint",
    "clock_timestamp()": "timestamptz",
    "split_part(text, text, integer)": "text",
    "current_setting(text, boolean)": "text",
    "length(text)": "integer",
    "same(text, text)": "boolean",
    "more(bigint, bigint)": "boolean",
}


@pytest.fixture
def noted(admin: Connection) -> Callable[[Connection], str]:
    """Whom the decoys ran as: functions and operators of a user's that look like the server's own."""
    admin.execute("grant create on schema public to public")
    admin.execute(
        """
        create function public.note() returns boolean language plpgsql set search_path = pg_catalog as
            $$ begin perform set_config('attack.ran_as', current_user, false); return true; end $$
        """
    )
    for signature, result in DECOYS.items():
        body = "return public.note()" if result == "boolean" else "perform public.note(); return null"
        admin.execute(
            f"create function public.{signature} returns {result} language plpgsql "
            f"set search_path = pg_catalog as $$ begin {body}; end $$"
        )
    admin.execute("create operator public.= (leftarg = text, rightarg = text, function = public.same)")
    admin.execute("create operator public.> (leftarg = bigint, rightarg = bigint, function = public.more)")

    def read(session: Connection) -> str:
        (user,) = session.execute("select pg_catalog.current_setting('attack.ran_as', true)").fetchone() or ("",)
        return user or "nobody"

    return read


def test_no_operator_or_function_of_a_users_runs_with_the_ledgers_rights(
    noted: Callable[[Connection], str], connection: Connection
) -> None:
    connection.execute("set search_path = public, pg_catalog")
    assert connection.execute("select 'a'::text = 'b'::text").fetchone() == (True,)
    assert noted(connection) == "ledger_worker", "the decoys are in place"
    connection.execute("set attack.ran_as = ''")

    ledger = Ledger(connection)
    added(ledger, "r_1", "r_2")
    token = activated(ledger)
    assert ledger.claim_refund("m_1", "r_1", token).outcome == "claimed"
    assert ledger.confirm_refund("m_1", "r_1", token, "re_1", {"currency": "EUR"}).outcome == "confirmed"
    assert [claim.refund_id for claim in ledger.claim_refunds("m_1", token, 10)] == ["r_2"]
    assert [row.outcome for row in ledger.confirm_refunds("m_1", token, ["r_2"], ["re_2"])] == ["confirmed"]
    assert ledger.verify() == []

    assert noted(connection) == "nobody"


def test_a_cast_of_a_users_runs_as_the_user(noted: Callable[[Connection], str], connection: Connection) -> None:
    connection.execute("create type public.sneaky as (id text)")
    connection.execute(
        "create function public.as_text(sneaky public.sneaky) returns text language plpgsql as "
        "$$ begin perform public.note(); return sneaky.id; end $$"
    )
    connection.execute("create cast (public.sneaky as text) with function public.as_text(public.sneaky) as implicit")
    assert connection.execute("select known from ledger.get_kind(row('settle')::public.sneaky)").fetchone() == (True,)
    assert noted(connection) == "ledger_worker"


# What only somebody with more rights can do, verify finds


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("alter table ledger.refund disable trigger refund_is_guarded", "trigger_is_on"),
        ("alter table ledger.refund disable trigger user", "trigger_is_on"),
        ("alter table ledger.journal enable trigger journal_is_guarded", "trigger_is_on"),
        ("drop trigger fence_is_guarded on ledger.fence", "trigger_is_on"),
        ("alter table ledger.refund alter column fence type bigint using 1", "row_is_journaled"),
    ],
)
def test_what_the_owner_can_do_to_the_tables_is_found(
    damage: str, check: str, stale: int, connection: Connection, as_role: Callable[[str], Connection]
) -> None:
    ledger = Ledger(connection)
    assert ledger.verify() == []
    as_role("ledger_owner").execute(damage)
    assert {finding.check for finding in ledger.verify()} == {check}


def test_what_a_superuser_writes_as_ledger_fn_is_found(stale: int, connection: Connection, admin: Connection) -> None:
    as_ledger_fn(admin, "update ledger.refund set maybe_sent = true where refund_id = 'r_1'")
    assert [(f.check, f.refund_id) for f in Ledger(connection).verify()] == [("row_is_journaled", "r_1")]


# Who may do what


@pytest.fixture
def rows(admin: Connection) -> Callable[..., Rows]:
    return lambda query, *arguments: admin.execute(query, arguments).fetchall()


def granted_in_file() -> dict[str, set[str]]:
    """What sql/schema/grants.sql gives to whom."""
    text = re.sub(r"--[^\n]*", "", (CHECKOUT / "sql/schema/grants.sql").read_text())
    granted: dict[str, set[str]] = {}
    for functions, roles in re.findall(r"grant execute on function\s+(.*?)\s+to\s+([\w,\s]+);", text, re.DOTALL):
        for role in re.findall(r"\w+", roles):
            granted.setdefault(role, set()).update(re.findall(r"ledger\.(\w+)\(", functions))
    return granted


@pytest.mark.parametrize("role", [*CALLERS, "ledger_owner"])
def test_a_role_may_call_what_the_grants_say_and_nothing_else(role: str, rows: Callable[..., Rows]) -> None:
    callable_by_role = rows(
        "select proname from pg_proc where pronamespace = 'ledger'::regnamespace "
        "and has_function_privilege(%s, oid, 'execute')",
        role,
    )
    assert {name for (name,) in callable_by_role} == granted_in_file()[role]


def test_every_public_function_is_for_somebody_and_no_guard_is() -> None:
    granted = granted_in_file()
    functions = {path.stem for path in (CHECKOUT / "sql/functions").glob("*.sql")}
    # What protect_table needs as the table's owner, and the triggers that the owner then makes.
    for_owners = {"register_table", "unregister_table", "missing_triggers", "check_write", "check_row", "stamp_row"}
    assert set().union(*(granted[role] for role in CALLERS)) == functions | for_owners
    assert granted["ledger_worker"] < granted["ledger_operator"]
    assert granted["ledger_reader"] <= {"get_kind", "count_open", "job_holders", "verify"}
    assert granted["ledger_operator"] - granted["ledger_worker"] == {
        "set_kind", "set_mode", "set_failover", "recover_failover", "exempt_transaction", "break_lease",
        "pause", "resume", "requeue_work",
        "cancel_refund", "review_refund", "resolve_refund", "return_refund", "requeue_refund",
        "archive_refunds", "prune_refusals", "prune_draws", "prune_events", "prune_work",
    }  # fmt: skip


def test_nobody_is_let_in_by_public(rows: Callable[..., Rows]) -> None:
    assert (
        rows(
            """
        select 'function', p.proname, a.privilege_type
        from pg_proc as p cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
        where p.pronamespace = 'ledger'::regnamespace and a.grantee = 0
        union all
        select 'relation', c.relname, a.privilege_type
        from pg_class as c cross join aclexplode(c.relacl) as a
        where c.relnamespace = 'ledger'::regnamespace and a.grantee = 0
        union all
        select 'schema', n.nspname, a.privilege_type
        from pg_namespace as n cross join aclexplode(n.nspacl) as a
        where n.nspname = 'ledger' and a.grantee = 0
        """
        )
        == []
    )


def test_a_role_without_a_grant_sees_nothing(admin: Connection) -> None:
    admin.execute("begin; create role passer_by; set local role passer_by")
    for statement in ("select ledger.draw_token('settle:m_1')", "select from ledger.refund"):
        with raised(DENIED), admin.transaction():
            admin.execute(statement)
    admin.execute("rollback")


def test_callers_read_every_table_and_write_to_none(rows: Callable[..., Rows]) -> None:
    privileges = rows(
        """
        select distinct r.rolname, p.name
        from pg_roles as r
        cross join pg_class as c
        cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger'])
            as p (name)
        where r.rolname = any(%s) and c.relnamespace = 'ledger'::regnamespace and c.relkind in ('r', 'v')
            and has_table_privilege(r.rolname, c.oid, p.name)
        """,
        list(CALLERS),
    )
    assert set(privileges) == {(role, "select") for role in CALLERS}


def test_callers_have_no_column_and_no_sequence_to_themselves(rows: Callable[..., Rows]) -> None:
    assert (
        rows(
            """
        select r.rolname, c.relname
        from pg_roles as r cross join pg_class as c
        where r.rolname = any(%s) and c.relnamespace = 'ledger'::regnamespace
            and case c.relkind
                when 'S' then has_sequence_privilege(r.rolname, c.oid, 'usage, update')
                when 'r' then has_any_column_privilege(r.rolname, c.oid, 'insert, update, references')
            end
        """,
            list(CALLERS),
        )
        == []
    )


WRITES = {
    "refund": {"insert", "update", "delete"},
    "kind": {"insert", "update"},
    "server": {"insert", "update"},
    "work": {"insert", "update", "delete"},
    "fence": {"insert", "update", "delete"},
    "draw": {"insert", "update", "delete"},
    "journal": {"insert", "delete"},
    "event": {"insert", "delete"},
    "refusal": {"insert", "delete"},
    "pause": {"insert", "update", "delete"},
    "protected_table": {"insert", "update", "delete"},
    "exemption": {"insert"},
    "currency": set[str](),
    "transition": set[str](),
    "archived_refund": {"insert"},
    "archived_journal": {"insert"},
    "carried_balance": {"insert", "update"},
}


@pytest.mark.parametrize("table", TABLES)
def test_the_functions_may_write_what_they_need_and_only_add_to_the_record(
    table: str, rows: Callable[..., Rows]
) -> None:
    held = rows(
        "select p.name from unnest(array['insert', 'update', 'delete', 'truncate', 'references', 'trigger']) "
        "as p (name) where has_table_privilege('ledger_fn', 'ledger.' || %s, p.name)",
        table,
    )
    assert {name for (name,) in held} == WRITES[table]


def test_only_the_functions_role_and_the_owner_hold_a_right_to_write(rows: Callable[..., Rows]) -> None:
    writers = rows(
        """
        select distinct a.grantee::regrole::text
        from pg_class as c cross join aclexplode(c.relacl) as a
        where c.relnamespace = 'ledger'::regnamespace and a.privilege_type <> 'SELECT'
        """
    )
    assert {name for (name,) in writers} == {"ledger_fn", "ledger_owner"}


def test_the_functions_role_creates_nothing(rows: Callable[..., Rows]) -> None:
    assert rows("select has_schema_privilege('ledger_fn', 'ledger', 'create')") == [(False,)]


def test_functions_belong_to_one_role_and_tables_to_another(rows: Callable[..., Rows]) -> None:
    assert rows("select distinct proowner::regrole::text from pg_proc where pronamespace = 'ledger'::regnamespace") == [
        ("ledger_fn",)
    ]
    assert rows(
        "select distinct relowner::regrole::text from pg_class where relnamespace = 'ledger'::regnamespace "
        "and relkind <> 't'"
    ) == [("ledger_owner",)]


@pytest.mark.parametrize("role", CALLERS)
def test_no_caller_can_become_an_owner(role: str, rows: Callable[..., Rows]) -> None:
    assert rows(
        "select pg_has_role(%s, 'ledger_owner', 'member') or pg_has_role(%s, 'ledger_fn', 'member')", role, role
    ) == [(False,)]


@pytest.mark.parametrize("name", ["ledger_owner", "ledger_fn"])
def test_the_owners_can_not_log_in(name: str, connect: Connect, dsn: str, rows: Callable[..., Rows]) -> None:
    assert rows("select rolcanlogin or rolsuper from pg_roles where rolname = %s", name) == [(False,)]
    with pytest.raises(psycopg.OperationalError, match="is not permitted to log in"):
        connect(dsn, user=name)


def test_a_worker_and_an_operator_do_their_work(connection: Connection, admin: Connection,
                                                as_role: Callable[[str], Connection]) -> None:  # fmt: skip
    for role in ("ledger_worker", "ledger_operator"):
        ledger = Ledger(as_role(role))
        added(ledger, role)
        assert ledger.claim_refund("m_1", role, activated(ledger)).outcome == "claimed"
        assert refund(admin, role, "state") == "sending"
    with unchanged(admin):
        assert Ledger(as_role("ledger_reader")).verify() == []
