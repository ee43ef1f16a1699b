"""Refusals as exceptions: the tree, what other drivers raise, and that docs/errors.md shows what is printed."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from ledger import errors
from ledger.client import Ledger
from ledger.errors import (
    BadArgument,
    Busy,
    FenceRefusal,
    FenceViolation,
    InputRefusal,
    LeaseLost,
    LeaseUnreachable,
    LedgerError,
    NoSuchRefund,
    Refused,
    StaleToken,
    StateRefusal,
    TokenNotDrawn,
    TransactionEnded,
    from_exception,
)
from tests.conftest import Connect
from tests.story import as_ledger_fn

Connection = psycopg.Connection[Any]

DOCS = (Path(__file__).parents[1] / "docs" / "errors.md").read_text()
GROUPS = {"LG1": FenceRefusal, "LG2": StateRefusal, "LG3": InputRefusal}


# The tree


@pytest.mark.parametrize("code", sorted(Refused.by_code))
def test_the_group_of_a_code_is_its_class(code: str) -> None:
    error = Refused.by_code[code]
    assert issubclass(error, GROUPS[code[:3]])
    assert error.code == code
    assert error.__doc__


def test_there_is_one_class_for_each_code() -> None:
    leaves = [error for group in GROUPS.values() for error in group.__subclasses__()]
    assert sorted(error.code for error in leaves) == sorted(Refused.by_code)


def test_the_modules_own_tree_is_the_real_one() -> None:
    drawn = re.findall(r"(\w+)(?: \(\w+\))? {2,}(LG\d{3})$", errors.__doc__ or "", re.MULTILINE)
    assert {code: name for name, code in drawn} == {code: error.__name__ for code, error in Refused.by_code.items()}


def test_a_stale_token_is_a_fence_violation() -> None:
    assert FenceViolation is StaleToken


@pytest.mark.parametrize("error", [Busy, LeaseLost, LeaseUnreachable, TransactionEnded])
def test_being_busy_or_without_a_lease_is_no_refusal(error: type[LedgerError]) -> None:
    assert issubclass(error, LedgerError)
    assert not issubclass(error, Refused)


@pytest.mark.parametrize(
    "kind", [StaleToken, BadArgument, Busy, LeaseLost, LeaseUnreachable, TransactionEnded, LedgerError]
)
@pytest.mark.parametrize("duplicate", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_an_error_survives_the_way_to_another_process(
    kind: type[LedgerError], duplicate: Callable[[LedgerError], LedgerError]
) -> None:
    error = kind("refused", {"token": 33, "reason": "expired"}, "Stop")
    same = duplicate(error)
    assert type(same) is kind
    assert (same.message, same.detail, same.hint) == ("refused", {"token": 33, "reason": "expired"}, "Stop")
    assert str(same) == "refused. Stop"
    assert getattr(same, "reason", "expired") == "expired"


def test_an_error_without_more_to_say_is_its_message() -> None:
    error = NoSuchRefund("refused")
    assert (str(error), error.detail, error.hint, error.reason) == ("refused", {}, None, None)


# What other drivers raise


class AsyncpgError(Exception):
    """An asyncpg.PostgresError has its fields as attributes of its own."""

    def __init__(self, message: str, sqlstate: str, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.sqlstate, self.detail, self.hint = message, sqlstate, detail, hint


class WrappedError(Exception):
    """Django and SQLAlchemy wrap what the driver raised."""


REFUSAL = AsyncpgError("token 33 is superseded", "LG101", '{"token": 33, "reason": "superseded"}', "Stop this batch.")


def wrapped(error: BaseException, *, times: int = 1) -> BaseException:
    for _ in range(times):
        try:
            raise WrappedError from error
        except WrappedError as outer:
            error = outer
    return error


@pytest.mark.parametrize("error", [REFUSAL, wrapped(REFUSAL), wrapped(REFUSAL, times=3)])
def test_the_refusal_is_found_in_what_a_driver_or_an_orm_raised(error: BaseException) -> None:
    refusal = from_exception(error)
    assert isinstance(refusal, StaleToken)
    assert refusal.message == "token 33 is superseded"
    assert refusal.detail == {"token": 33, "reason": "superseded"}
    assert refusal.reason == "superseded"
    assert refusal.hint == "Stop this batch."


def test_psycopg2_has_another_name_for_the_sqlstate() -> None:
    error = WrappedError("token 33 is superseded")
    error.pgcode = "LG101"  # type: ignore[attr-defined]
    assert isinstance(from_exception(error), StaleToken)


def test_sqlalchemys_error_holds_the_refusal(dsn: str) -> None:
    engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.connect() as connection, pytest.raises(DBAPIError) as caught:
        connection.execute(text("select ledger.claim_refund('m_1', 'r_1', 9000000000000000000)"))
    refusal = from_exception(caught.value)
    assert isinstance(refusal, TokenNotDrawn)
    assert refusal.detail["token"] == 9 * 10**18
    assert refusal.hint is not None
    assert refusal.hint.startswith("Draw one with ledger.draw_token(resource)")


def test_psycopgs_error_is_read_without_a_client(connection: Connection) -> None:
    with pytest.raises(psycopg.DatabaseError) as caught:
        connection.execute("select ledger.claim_refund('m_1', null, 1)")
    refusal = from_exception(caught.value)
    assert isinstance(refusal, BadArgument)
    assert refusal.detail["function"] == "claim_refund"


def test_our_own_error_is_found_as_it_is() -> None:
    own = StaleToken("refused")
    assert from_exception(own) is own
    assert from_exception(wrapped(own)) is own


def test_a_lock_that_is_not_available_is_busy() -> None:
    error = from_exception(AsyncpgError("the gate is held", "55P03", '{"held_by": []}', "Try again."))
    assert type(error) is Busy
    assert error.detail == {"held_by": []}


@pytest.mark.parametrize("sqlstate", ["40001", "23505", "08006", "LG999", "", None])
def test_what_is_not_ours_is_left_alone(sqlstate: Any) -> None:
    assert from_exception(AsyncpgError("token 33 is superseded LG101", sqlstate)) is None


def test_an_error_that_was_merely_being_handled_is_not_the_cause() -> None:
    with pytest.raises(WrappedError) as caught:
        try:
            raise REFUSAL
        except AsyncpgError:
            raise WrappedError from None
    assert caught.value.__context__ is REFUSAL
    assert from_exception(caught.value) is None


def test_causes_in_a_circle_come_to_an_end() -> None:
    one, other = WrappedError(), WrappedError()
    one.__cause__, other.__cause__ = other, one
    assert from_exception(one) is None


@pytest.mark.parametrize(
    ("detail", "data"),
    [
        ('Remote detail: {"token": 33}', {"token": 33}),
        ('{"token": 9000000000000000000}', {"token": 9 * 10**18}),
        ("Key (id)=(1) already exists.", {"text": "Key (id)=(1) already exists."}),
        ("[1, 2]", {"text": "[1, 2]"}),
        ("", {}),
        (None, {}),
    ],
)
def test_detail_is_data_where_it_can_be_and_text_where_not(detail: str | None, data: dict[str, Any]) -> None:
    refusal = from_exception(AsyncpgError("refused", "LG101", detail))
    assert refusal is not None
    assert refusal.detail == data


# What the docs show, provoked


HOST_A = "host-a/4211/1f0c9a6be2d47385"
HOST_B = "host-b/977/9b2e64d17fa8c350"


class Scene:
    """Merchant m_4471: host-a sent r_814, claimed r_815 and stalled; host-b took over."""

    def __init__(self, connect: Connect, admin: Connection, migrator_dsn: str) -> None:
        self.connect, self.admin, self.migrator_dsn = connect, admin, migrator_dsn
        self.worker = connect()
        self.ledger = Ledger(self.worker)
        for refund_id in ("r_814", "r_815", "r_816", "r_817"):
            self.ledger.add_refund("m_4471", refund_id, 7025, "EUR")
        self.old = self.activate(HOST_A)
        self.ledger.claim_refund("m_4471", "r_814", self.old)
        self.ledger.confirm_refund("m_4471", "r_814", self.old, "re_814")
        self.ledger.claim_refund("m_4471", "r_815", self.old)
        self.token = self.activate(HOST_B)
        self.ledger.claim_refund("m_4471", "r_817", self.token)
        self.ledger.accept_refund("m_4471", "r_817", self.token, "re_817")

    def activate(self, holder: str) -> int:
        token = self.ledger.draw_token("settle:m_4471")
        self.ledger.activate_token("settle:m_4471", token, holder)
        return token

    def lg101(self) -> None:
        self.ledger.confirm_refund("m_4471", "r_815", self.old, "re_815")

    def lg102(self) -> None:
        self.ledger.claim_refund("m_4471", "r_816", 9 * 10**18)

    def lg103(self) -> None:
        owner = self.connect(self.migrator_dsn)
        owner.execute("set role ledger_owner")
        owner.execute("update ledger.refund set state = 'sent' where refund_id = 'r_816'")

    def lg104(self) -> None:
        rival = self.connect(application_name="charges")
        rival.execute("select ledger.hold_job('monthly-charges:org_7')")
        self.ledger.hold_job("monthly-charges:org_7")

    def lg105(self) -> None:
        self.ledger.claim_refund("m_4471", "r_816", self.ledger.draw_token("settle:m_4471"))

    def lg106(self) -> None:
        as_ledger_fn(self.admin, "update ledger.server set timeline = '00000007'")
        self.ledger.draw_token("settle:m_4471")

    def lg107(self) -> None:
        as_ledger_fn(
            self.admin,
            "insert into ledger.pause (target, actor, reason) values ('settle', 'on-call', 'gateway incident 812')",
        )
        self.ledger.claim_refund("m_4471", "r_815", self.token)

    def lg201(self) -> None:
        self.ledger.claim_refund("m_4471", "r_8151", self.token)

    def lg202(self) -> None:
        self.ledger.claim_refund("m_4471", "r_814", self.token)

    def lg203(self) -> None:
        self.ledger.confirm_refund("m_4471", "r_816", self.token, "re_816")

    def lg204(self) -> None:
        self.ledger.claim_refund("m_4471", "r_817", self.token)

    def lg301(self) -> None:
        self.ledger.add_refund("m_4471", "r_814", 7052, "EUR")

    def lg302(self) -> None:
        self.ledger.add_refund("m_4471", "r_818", 0, "EUR")

    def lg303(self) -> None:
        self.ledger.confirm_refund("m_4471", "r_814", self.token, "re_999")

    def lg304(self) -> None:
        self.ledger.claim_refunds("m_4471", self.token, 5000)

    def busy(self) -> None:
        idle = self.connect(autocommit=False, application_name="psql")
        idle.execute("select pg_advisory_xact_lock(hashtextextended('settle:m_4471', 0))")
        self.worker.execute("set lock_timeout = '30ms'")
        self.ledger.claim_refund("m_4471", "r_816", self.token)

    def too_old(self) -> None:
        late = self.connect()
        late.execute("begin isolation level repeatable read")
        late.execute("select")
        Ledger(late).claim_refund("m_4471", "r_816", self.ledger.draw_token("settle:m_4471"))


PROVOKED: dict[str, Callable[[Scene], None]] = {
    **{code: getattr(Scene, code.lower()) for code in Refused.by_code},
    "55P03": Scene.busy,
    "40001": Scene.too_old,
}


@pytest.fixture
def scene(connect: Connect, admin: Connection, migrator_dsn: str) -> Scene:
    return Scene(connect, admin, migrator_dsn)


def printed(error: BaseException) -> str:
    """An error as psql prints it."""
    driver = error if isinstance(error, psycopg.Error) else error.__cause__
    assert isinstance(driver, psycopg.Error)
    diag = driver.diag
    return f"ERROR:  {diag.message_primary}\nDETAIL:  {diag.message_detail}\nHINT:  {diag.message_hint}"


def without_numbers(shown: str) -> str:
    """Tokens, process ids and times differ from run to run."""
    shown = re.sub(r"\d{4}-\d\d-\d\d[ T][\d:.]+\+[\d:]+", "TIME", shown)
    return re.sub(r"\d+", "N", shown)


def sections() -> Iterator[tuple[str, str]]:
    for section in re.split(r"^### ", DOCS, flags=re.MULTILINE)[1:]:
        yield section.split()[0], section


@pytest.mark.parametrize("code", sorted(PROVOKED))
def test_the_docs_show_each_error_as_it_is_printed(code: str, scene: Scene) -> None:
    with pytest.raises((LedgerError, psycopg.Error)) as caught:
        PROVOKED[code](scene)
    (block,) = re.findall(r"```\n(.*?)\n```", dict(sections())[code], re.DOTALL)
    assert without_numbers(block) == without_numbers(printed(caught.value))


@pytest.mark.parametrize("code", sorted(PROVOKED))
def test_every_error_says_that_nothing_was_changed_and_what_to_do_next(code: str, scene: Scene) -> None:
    with pytest.raises((LedgerError, psycopg.Error)) as caught:
        PROVOKED[code](scene)
    message, detail, hint = re.split(r"\n(?:DETAIL|HINT):  ", printed(caught.value))
    assert message.endswith("; nothing was changed")
    assert "refused: " in message
    assert json.loads(detail)["refusal"] > 0
    assert hint.endswith(".")


@pytest.mark.parametrize("code", sorted(PROVOKED))
def test_the_docs_give_each_code_its_remedies(code: str) -> None:
    section = dict(sections())[code]
    assert re.findall(r"^\*\*(.+?)\*\*", section, re.MULTILINE) == [
        "Meaning.", "You see it when", "Changed:", "Developer.", "Operator.", "DBA.",
    ]  # fmt: skip


def test_the_docs_are_in_the_order_of_precedence_within_each_group() -> None:
    assert [code for code, _ in sections()] == [
        "LG106", "LG107", "LG102", "LG105", "LG101", "LG103", "LG104",
        "LG201", "LG202", "LG203", "LG204",
        "LG304", "LG302", "LG301", "LG303",
        "55P03", "40001", "25P03",
    ]  # fmt: skip


BOUNDS: dict[str, tuple[int, LiteralString]] = {
    "resources presented together": (
        500, "select ledger.present_tokens((select jsonb_object_agg('k:' || n, 1) from generate_series(1, %(n)s) as n))"
    ),
    "merchant id": (100, "select ledger.add_refund(repeat('m', %(n)s), 'r', 1, 'EUR')"),
    "refund id": (150, "select ledger.add_refund('m', repeat('r', %(n)s), 1, 'EUR')"),
    "idempotency key": (255, "select ledger.add_refund('m', 'r', 1, 'EUR', null, null, repeat('k', %(n)s))"),
    "payment reference": (255, "select ledger.add_refund('m', 'r', 1, 'EUR', repeat('p', %(n)s))"),
    "gateway": (100, "select ledger.add_refund('m', 'r', 1, 'EUR', null, repeat('g', %(n)s))"),
    "gateway reference": (255, "select ledger.confirm_refund('m', 'r', 1, repeat('g', %(n)s))"),
    "resource": (300, "select ledger.draw_token('settle:' || repeat('x', %(n)s - 7))"),
    "kind": (100, "select ledger.draw_token(repeat('k', %(n)s) || ':x')"),
    "id of a piece of work": (300, "select ledger.begin_attempt('job:x', repeat('w', %(n)s), 1)"),
    "holder": (300, "select ledger.activate_token('settle:m', 1, repeat('h', %(n)s))"),
    "rows of a set-based call": (
        1000,
        "select ledger.confirm_refunds('m', 1, array_fill('x'::text, array[%(n)s]), array_fill('x'::text, '{%(n)s}'))",
    ),
    "max_rows": (1000, "select ledger.claim_refunds('m', 1, %(n)s)"),
    "evidence, detail of a refusal": (
        65536,
        "select ledger.fail_refund('m', 'r', 1, 'why', jsonb_build_object('a', repeat('x', %(n)s - 9)))",
    ),
    "wait": (2073600, "select ledger.hold_job('job:x', make_interval(secs => %(n)s))"),
    "lease, idle, lock and transaction limit": (
        2073600,
        "select ledger.set_kind('x', lease_ttl => make_interval(secs => %(n)s), actor => 'a', reason => 'r')",
    ),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_the_docs_list_the_bounds_as_they_are(what: str, connect: Connect, admin_dsn: str) -> None:
    limit, statement = BOUNDS[what]
    anyone = connect(admin_dsn)
    assert code_of(anyone, statement, limit) != "LG304"
    assert code_of(anyone, statement, limit + 1) == "LG304"
    (row,) = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", dict(sections())["LG304"], re.MULTILINE)
    assert str(limit) in row


def code_of(connection: Connection, statement: LiteralString, size: int) -> str | None:
    """The SQLSTATE that the statement ends in; None where it ends well."""
    try:
        connection.execute(statement.replace("%(n)s", str(size)))
    except psycopg.Error as error:
        return error.sqlstate
    return None
