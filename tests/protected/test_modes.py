"""off, shadow and enforce: what each decides, records and lets through."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest

from ledger.client import Ledger
from ledger.errors import LedgerError
from tests.conftest import Connect
from tests.protected.tables import (
    ALL,
    KIND,
    ORG_1,
    ORG_2,
    contents,
    forging,
    mode,
    presenting,
    would_be,
    write_refused,
)
from tests.story import ALICE, BOB, Connection, activated, drawn, in_background, on_a_new_timeline, until

pytestmark = pytest.mark.usefixtures("charge")
WRITE: LiteralString = "update charge set amount = amount + 1 where id = 1"


def test_a_kind_is_checked_in_each_mode_from_the_next_call_on(
    owner: Connection, operators: Ledger, admin: Connection
) -> None:
    for to, passes, recorded in (("off", True, 0), ("shadow", True, 1), ("enforce", False, 1), ("off", True, 1)):
        mode(operators, to)
        if passes:
            owner.execute(WRITE)
        else:
            with write_refused("LG103", admin):
                owner.execute(WRITE)
        assert len(would_be(admin)) == recorded, to


def test_off_never_stops_a_write_and_sets_no_limit(
    owner: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "off")
    on_a_new_timeline(admin)
    with owner.transaction():
        owner.execute("set local ledger.tokens = '{no JSON'")
        owner.execute("select ledger.present_token(%s, 99)", [ORG_1])
        owner.execute(WRITE)
        assert owner.execute("show idle_in_transaction_session_timeout").fetchone() == ("0",)
    owner.execute("alter table charge rename column org_id to gone")
    owner.execute("insert into charge values (9, null)")
    owner.execute("truncate charge")
    assert would_be(admin) == []
    owner.execute("alter table charge rename column gone to org_id")


def test_shadow_lets_through_and_records_each_verdict(
    owner: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    void, stale = drawn(ledger, ORG_1), activated(ledger, ALICE, ORG_1)
    activated(ledger, BOB, ORG_1)
    inactive = drawn(ledger, ORG_1)
    for forged in ({}, {ORG_1: void}, {ORG_1: stale}, {ORG_1: inactive}, {ORG_1: 10**17}):
        with forging(owner, forged):
            owner.execute(WRITE)
    owner.execute("truncate charge")
    on_a_new_timeline(admin)
    owner.execute("insert into charge values (1, 'org_1')")
    owner.execute("alter table charge rename column org_id to gone")
    owner.execute("delete from charge")
    assert would_be(admin) == [
        (ORG_1, "LG103", None),
        (ORG_1, "LG101", "voided"),
        (ORG_1, "LG101", "superseded"),
        (ORG_1, "LG105", None),
        (ORG_1, "LG102", None),
        (ALL, "LG103", None),
        (ORG_1, "LG106", None),
        (None, "LG304", "org_id is not a stored column of type text, varchar, integer, bigint or uuid"),
    ]
    owner.execute("alter table charge rename column gone to org_id")


def test_a_would_be_refusal_says_who_from_where_by_what_and_how_late(
    connect: Connect, dsn: str, owner: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    stale, active = activated(ledger, ALICE, ORG_1), activated(ledger, BOB, ORG_1)
    late = connect(dsn, application_name="nightly-billing")
    with forging(late, {ORG_1: stale}):
        late.execute(WRITE)
    row = admin.execute(
        """
        select code, reason, kind, resource, token, active, holder, active_holder, mode, table_name, database_user,
            application_name, client_address, detail ->> 'statement', (detail ->> 'late_seconds')::numeric >= 0,
            detail ->> 'operation', number is not null
        from ledger.refusal
        """
    ).fetchone()
    assert row == (
        "LG101", "superseded", KIND, ORG_1, stale, active, ALICE, BOB, "shadow", "public.charge", "ledger_worker",
        "nightly-billing", None, WRITE, True, "update", True,
    )  # fmt: skip


def test_shadow_records_once_a_transaction_resource_and_code(
    owner: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    for _ in range(2):
        with owner.transaction():
            for _ in range(3):
                owner.execute("update charge set amount = 1")
    assert would_be(admin) == [(ORG_1, "LG103", None), (ORG_2, "LG103", None)] * 2


def test_what_a_savepoint_undid_is_recorded_when_it_happens_again(
    owner: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    with owner.transaction():
        with owner.transaction(force_rollback=True):
            owner.execute(WRITE)
        owner.execute(WRITE)
    assert would_be(admin) == [(ORG_1, "LG103", None)]


def test_shadow_records_500_resources_of_a_transaction_at_most(
    owner: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    with owner.transaction():
        owner.execute("insert into charge select 1000 + n, 'many_' || n from generate_series(1, 2000) as n")
        owner.execute(WRITE)
    assert len(would_be(admin)) == 500


def test_shadow_neither_waits_nor_limits_while_an_activation_holds_the_gate(
    owner: Connection, rival: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    token = activated(ledger, ALICE, ORG_1)
    with rival.transaction():
        Ledger(rival).lock_job(ORG_1, BOB)
        owner.execute("set statement_timeout = '2s'")
        with presenting(owner, {ORG_1: token}):
            owner.execute(WRITE)
            for limit in ("idle_in_transaction_session_timeout", "lock_timeout"):
                assert owner.execute(f"show {limit}").fetchone() == ("0",)
            held = admin.execute(
                "select count(*) from pg_locks where pid = %s and locktype = 'advisory'", [owner.info.backend_pid]
            ).fetchone()
            assert held == (1,), "the kind's switch, and no gate"
    assert would_be(admin) == []


def test_shadow_in_a_transaction_that_only_reads_does_nothing(
    owner: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    for level in ("read committed", "repeatable read", "serializable"):
        with owner.transaction():
            owner.execute(f"set transaction isolation level {level}, read only")
            owner.execute("select ledger.present_token(%s, 99)", [ORG_1])
    assert would_be(admin) == []


@pytest.mark.parametrize("junk", ["{", "[1]", "7", '{"charges:org_1 LG101": true}'])
def test_junk_in_its_own_notes_does_not_stop_shadow(
    junk: str, owner: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    with owner.transaction():
        owner.execute("select set_config('ledger.shadowed', %s, true)", [junk])
        owner.execute(WRITE)
    assert would_be(admin) == [(ORG_1, "LG103", None)]


def test_an_exempt_transaction_is_not_recorded(owner: Connection, operators: Ledger, admin: Connection) -> None:
    mode(operators, "shadow")
    with admin.transaction():
        admin.execute("select ledger.exempt_transaction('charge', 'carol', 'migration 12')")
        admin.execute(WRITE)
    assert would_be(admin) == []


# One decision: the same trace, in shadow and in enforce.

Step = Callable[[Ledger, Connection], None]


NOBODY_DREW = -1


class Trace:
    """Random steps of two holders and some intruders; each write has a row of its own to write to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.steps = [self.step(number) for number in range(20)]

    def step(self, number: int) -> tuple[str, Any]:
        choose = self.random.choice
        if self.random.random() < 0.4:
            return (choose(["draw", "activate", "activate"]), choose([ORG_1, ORG_2, ALL]))
        org, other = self.random.sample(["org_1", "org_2"], 2)
        write = choose(
            [
                f"insert into charge values ({1000 + number}, '{org}')",
                f"update charge set amount = 1 where id = {100 + number}",
                f"update charge set org_id = '{other}' where id = {100 + number}",
                f"delete from charge where id = {100 + number}",
                f"insert into charge values ({100 + number}, '{org}') on conflict (id) do update set amount = 2",
                f"update charge set amount = 3 where id in ({100 + number}, {200 + number})",
                f"insert into charge values ({1000 + number}, null)",
                "truncate other_charge",
            ]
        )
        brings = {
            resource: choose([0, 0, 0, 0, 1, 2, NOBODY_DREW])
            for resource in (ORG_1, ORG_2, ALL)
            if self.random.random() < 0.85
        }
        return ("write", (write, brings, self.random.random() < 0.5))


def verdicts(trace: Trace, ledger: Ledger, owner: Connection, admin: Connection) -> list[Any]:
    """Play a trace, and say for each write what was refused or would have been: code, resource and reason."""
    drawn_so_far: list[tuple[str, int]] = []
    answers: list[Any] = []
    for step, what in trace.steps:
        if step == "draw":
            drawn_so_far.append((what, ledger.draw_token(what)))
        elif step == "activate":
            drawn_so_far.append((what, activated(ledger, ALICE, what)))
        else:
            answers.append(verdict(what, drawn_so_far, ledger, owner, admin))
    return answers


def verdict(what: Any, numbers: list[tuple[str, int]], ledger: Ledger, owner: Connection, admin: Connection) -> Any:
    write, brings, politely = what
    brought = {resource: brought_token(resource, age, numbers) for resource, age in brings.items()}
    before = len(would_be(admin))
    try:
        with owner.transaction():
            if politely:
                ledger.present_tokens(brought)
            else:
                owner.execute("select set_config('ledger.tokens', %s, true)", [json.dumps(brought)])
            owner.execute(write)
    except (psycopg.Error, LedgerError) as caught:
        error = caught if isinstance(caught, psycopg.Error) else caught.__cause__
        assert isinstance(error, psycopg.Error)
        detail = json.loads(error.diag.message_detail or "{}")
        return (detail.get("resource"), error.sqlstate, detail.get("reason"))
    recorded = would_be(admin)[before:]
    return recorded[0] if recorded else "passed"


def brought_token(resource: str, age: int, numbers: list[tuple[str, int]]) -> int:
    """A number drawn for the resource, 0 the newest; or one that nobody drew."""
    own = [token for name, token in reversed(numbers) if name == resource]
    return own[age] if 0 <= age < len(own) else 10**15


@pytest.mark.parametrize("seed", range(12))
def test_shadow_and_enforce_give_the_same_verdicts_on_one_trace(
    seed: int, owner: Connection, ledger: Ledger, operators: Ledger, admin: Connection
) -> None:
    owner.execute("create table other_charge (id integer, org_id text)")
    ledger.protect_table("other_charge", kind=KIND, column_name="org_id")
    answers: dict[str, list[Any]] = {}
    for to in ("shadow", "enforce"):
        mode(operators, "off")
        owner.execute("truncate charge")
        owner.execute(
            "insert into charge select n, case when n % 3 = 0 then 'org_2' else 'org_1' end "
            "from generate_series(100, 299) as n"
        )
        admin.execute("set role ledger_fn")
        admin.execute("delete from ledger.fence")
        admin.execute("delete from ledger.draw")
        admin.execute("reset role")
        mode(operators, to)
        answers[to] = verdicts(Trace(seed), ledger, owner, admin)
    assert answers["shadow"] == answers["enforce"]


# Changing the mode while transactions are under way.

LEVELS = list(psycopg.IsolationLevel)[1:]


def a_switch_waits(admin: Connection) -> object:
    return admin.execute("select pid from pg_locks where locktype = 'advisory' and not granted").fetchone()


@pytest.mark.parametrize("before", ["off", "shadow"])
def test_a_switch_waits_for_the_transactions_that_go_unchecked(
    before: str, owner: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, before)
    with owner.transaction():
        owner.execute(WRITE)
        switch = in_background(lambda: mode(operators, "enforce"))
        until(lambda: a_switch_waits(admin))
        owner.execute(WRITE)
    switch.result()
    with write_refused("LG103", admin):
        owner.execute(WRITE)


def test_who_comes_while_a_switch_waits_is_checked(
    owner: Connection, rival: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    with owner.transaction():
        owner.execute(WRITE)
        switch = in_background(lambda: mode(operators, "off"))
        until(lambda: a_switch_waits(admin))
        with write_refused("LG103", admin):
            rival.execute("update charge set amount = 9 where id = 2")
    switch.result()
    rival.execute("update charge set amount = 9 where id = 2")


@pytest.mark.parametrize("before", ["off", "shadow"])
@pytest.mark.parametrize("level", LEVELS[1:], ids=lambda level: level.name.lower())
def test_a_snapshot_from_before_the_switch_does_not_slip_past_it(
    level: psycopg.IsolationLevel, before: str, owner: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, before)
    owner.isolation_level = level
    with write_refused("40001", admin), owner.transaction():
        owner.execute("select from charge")
        mode(operators, "enforce")
        owner.execute(WRITE)


def test_a_fence_that_is_being_made_cannot_miss_a_switch(
    owner: Connection, rival: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    with rival.transaction():
        Ledger(rival).lock_job(ORG_1, BOB)
        mode(operators, "enforce")
    with write_refused("LG103", admin):
        owner.execute(WRITE)


def test_tables_of_other_kinds_are_not_touched(owner: Connection, ledger: Ledger, operators: Ledger) -> None:
    owner.execute("create table line (id integer)")
    ledger.protect_table("line", resource="report:daily")
    mode(operators, "off")
    with write_refused("LG103", owner, "line"):
        owner.execute("insert into line values (1)")


def test_a_commit_in_shadow_mode_leaves_the_write_and_its_record_together(
    owner: Connection, operators: Ledger, admin: Connection
) -> None:
    mode(operators, "shadow")
    before = contents(admin)
    with owner.transaction(force_rollback=True):
        owner.execute(WRITE)
    assert (contents(admin), would_be(admin)) == (before, [])
    owner.execute(WRITE)
    assert len(would_be(admin)) == 1
