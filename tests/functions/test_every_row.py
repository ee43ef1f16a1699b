"""What a claim and a settlement make of a refund, for every combination of what a row can hold.

The rules are written down here once more, from docs/protocol.md and the functions' headers and not from their bodies;
a single call and a batch are held to the same ones. A row that no function would have left is among them, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import psycopg
import pytest
from psycopg.rows import class_row, dict_row

from ledger.client import Ledger
from tests.conftest import Connect
from tests.story import BOB, activated, as_ledger_fn

Connection = psycopg.Connection[Any]
When = Literal["never", "before", "now"]

REF = "re"
FINAL = frozenset({"sent", "failed", "cancelled", "returned"})
MAX_ATTEMPTS = 5  # of the kind settle, as it ships


@dataclass(frozen=True)
class Row:
    """A refund. Its times, and the transaction of its claim, are from before the call or from the call itself."""

    refund_id: str
    state: str
    fence: str
    maybe_sent: bool
    gateway_ref: str | None
    attempts: int
    is_window_over: bool
    first_claimed_at: When = "before"
    claimed_xid: When = "before"
    changed_at: When = "before"
    settled_at: When = "never"
    journal_number: int = 1


@dataclass(frozen=True)
class Entry:
    """What the journal gets."""

    refund_id: str
    number: int
    attempts: int
    fence: str
    maybe_sent: bool
    from_state: str
    to_state: str
    debit: str | None = None
    credit: str | None = None
    amount_minor: int | None = None
    currency: str | None = None
    gateway_ref: str | None = None
    reason: str | None = None
    is_of_now: bool = True


@dataclass(frozen=True)
class Decision:
    """A code or an outcome, with the finer reason; and the row and the entry, where something is written."""

    answer: str
    reason: str | None = None
    row: Row | None = None
    entry: Entry | None = None


def claim(row: Row) -> Decision:
    """What a claim of a row comes to."""
    is_mine = row.fence == "mine"
    can_be_out = row.state != "pending" or row.maybe_sent
    if row.fence == "newer":
        return Decision("LG101", "row")
    if row.state in FINAL:
        return Decision("LG202")
    if row.state in {"accepted", "review"} or (row.state == "unknown" and is_mine):
        return Decision("LG204")
    if can_be_out and row.is_window_over:
        return claimed(row, "review", "key_window_over")
    if row.state == "sending" and is_mine:
        return claimed(row, "reclaimed") if not row.maybe_sent else Decision("reclaimed")
    if row.attempts >= MAX_ATTEMPTS:
        return claimed(row, "review", "attempts_used_up")
    return claimed(row, "taken_over" if can_be_out else "claimed")


def claimed(row: Row, outcome: str, reason: str | None = None) -> Decision:
    """What a claim writes."""
    times: dict[str, tuple[When, When]] = {"claimed": ("now", "now"), "reclaimed": ("before", "before")}
    first_claimed_at, claimed_xid = times.get(outcome, ("before", "never"))
    new = replace(
        row,
        state="review" if outcome == "review" else "sending",
        fence="mine",
        attempts=row.attempts + (outcome in {"claimed", "taken_over"}),
        maybe_sent=row.maybe_sent or row.state != "pending",
        first_claimed_at=first_claimed_at,
        is_window_over=row.is_window_over and outcome != "claimed",
        claimed_xid=claimed_xid,
        changed_at="now",
        journal_number=2,
    )
    told = reason or (outcome if outcome != "claimed" else None)
    return Decision(outcome, reason, new, replace(entry_of(row, new), reason=told))


@dataclass(frozen=True)
class Settlement:
    """A function that settles: to which state, whether it names a reference, which states it takes for its own
    repetition, and whether it takes an accepted refund whoever holds it."""

    name: str
    to_state: str
    outcome: str
    has_ref: bool
    own_states: frozenset[str]
    accepted_too: bool

    def of(self, row: Row) -> Decision:
        """What it makes of a row under the active token."""
        is_own, other_ref = row.fence == "mine", self.has_ref and row.gateway_ref not in {None, REF}
        if repeated := self.repeated(row):
            return repeated
        if self.to_state == "sent" and row.state == "sent" and not other_ref:
            return Decision("already_confirmed")
        if row.fence == "newer":
            return Decision("LG101", "row")
        if row.state in {"sending", "sent", "returned", "accepted"} and other_ref:
            return Decision("LG303")
        if row.state in FINAL:
            return Decision("LG202")
        if not ((row.state == "sending" and is_own) or (row.state == "accepted" and self.accepted_too)):
            return Decision("LG203", "not_claimed")
        return self.settled(row)

    def of_a_stale_token(self, row: Row) -> Decision:
        """What it makes of a row under a token that was superseded."""
        return self.repeated(row) or Decision("LG101", "superseded")

    def repeated(self, row: Row) -> Decision | None:
        """The answer where this very call is recorded."""
        ref_fits = not self.has_ref or row.gateway_ref == REF
        if row.fence != "mine" or row.state not in self.own_states or not ref_fits:
            return None
        if row.state == "review":
            return Decision("review", "already in review")
        return Decision(
            {"sent": "already_confirmed", "pending": "already_released"}.get(row.state, f"already_{row.state}")
        )

    def settled(self, row: Row) -> Decision:
        """What it writes."""
        to_state, outcome = self.to_state, self.outcome
        if self.name == "release_refund" and row.maybe_sent:
            to_state = outcome = "unknown"
        new = replace(
            row,
            state=to_state,
            fence="mine",
            maybe_sent=row.maybe_sent or to_state in {"unknown", "accepted"},
            gateway_ref=REF if self.has_ref else row.gateway_ref,
            changed_at="now",
            settled_at="now" if to_state in FINAL else "never",
            journal_number=2,
        )
        reason = None if self.has_ref else "because"
        entry = replace(entry_of(row, new), gateway_ref=REF if self.has_ref else None, reason=reason)
        if to_state in FINAL:
            credit = {"sent": "gateway_clearing", "failed": "merchant_available"}[to_state]
            entry = replace(entry, debit="refund_reserved", credit=credit, amount_minor=7025, currency="EUR")
        return Decision(outcome, None if self.has_ref else reason, new, entry)


def entry_of(row: Row, new: Row) -> Entry:
    """The entry of a move that moves no money."""
    return Entry(row.refund_id, 2, new.attempts, "mine", new.maybe_sent, row.state, new.state)


CONFIRM = Settlement("confirm_refund", "sent", "confirmed", True, frozenset({"sent", "review"}), True)
SETTLEMENTS = (
    CONFIRM,
    Settlement("accept_refund", "accepted", "accepted", True, frozenset({"accepted"}), False),
    Settlement("fail_refund", "failed", "failed", False, frozenset({"failed"}), True),
    Settlement("mark_unknown", "unknown", "unknown", False, frozenset({"unknown"}), True),
    Settlement("release_refund", "pending", "released", False, frozenset({"pending", "unknown"}), False),
)

STATES = ["pending", "sending", "sent", "failed", "unknown", "accepted", "review", "cancelled", "returned"]

MAKE_ROWS = """
insert into ledger.refund (
    merchant_id, refund_id, amount_minor, currency, payment_ref, gateway, idempotency_key, added_at, changed_at,
    first_claimed_at, settled_at, claimed_xid, state, fence, maybe_sent, gateway_ref, attempts
)
select
    %(merchant_id)s, concat_ws('/', s.state, f.label, m.mark, g.ref, a.attempts, w.ago), 7025, 'EUR', 'py', 'gw',
    gen_random_uuid(), now() - interval '9 days', now() - interval '8 days', now() - w.ago::interval,
    case when s.state in ('sent', 'failed', 'cancelled', 'returned') then now() - interval '8 days' end, '3',
    s.state, f.token, m.mark, g.ref, a.attempts
from unnest(%(states)s::text[]) as s (state)
cross join (values
    ('none', 0), ('older', %(mine)s - 1), ('mine', %(mine)s), ('newer', %(mine)s + 1)
) as f (label, token)
cross join (values (false), (true)) as m (mark)
cross join unnest(%(refs)s::text[]) as g (ref)
cross join unnest(%(attempts)s::integer[]) as a (attempts)
cross join unnest(%(agos)s::text[]) as w (ago)
where s.state <> 'sent' or g.ref is not null
"""
LABEL = "case {0} when 0 then 'none' when %(mine)s - 1 then 'older' when %(mine)s then 'mine' else 'newer' end"
WHEN = "case when {0} is null then 'never' when {0} < %(began)s then 'before' else 'now' end"
ROWS = f"""
select
    refund_id, state, {LABEL.format("fence")} as fence, maybe_sent, gateway_ref, attempts,
    first_claimed_at < now() - interval '2 days' as is_window_over,
    {WHEN.format("first_claimed_at")} as first_claimed_at,
    case when claimed_xid is null then 'never' when claimed_xid = '3' then 'before' else 'now' end as claimed_xid,
    {WHEN.format("changed_at")} as changed_at, {WHEN.format("settled_at")} as settled_at, journal_number
from ledger.refund
where merchant_id = %(merchant_id)s
"""
ENTRIES = f"""
select
    refund_id, number, attempts, {LABEL.format("token")} as fence, maybe_sent, from_state, to_state, debit, credit,
    amount_minor, currency, gateway_ref, reason, at >= %(began)s as is_of_now
from ledger.journal
where merchant_id = %(merchant_id)s
"""


class Merchant:
    """One merchant with a refund of every kind, the active token, and a worker's session."""

    def __init__(self, ledger: Ledger, admin: Connection, worker: Connection, merchant_id: str = "m_1") -> None:
        self.admin, self.worker, self.merchant_id = admin, worker, merchant_id
        self.token = activated(ledger, resource=f"settle:{merchant_id}")
        self.before: dict[str, Row] = {}
        self.facts: dict[str, Any] = {}

    def with_rows(
        self, *, refs: Sequence[str | None], attempts: Sequence[int] = (1,), agos: Sequence[str] = ("1 hour",)
    ) -> Merchant:
        """Give it the rows."""
        given = {"states": STATES, "refs": list(refs), "attempts": list(attempts), "agos": list(agos)}
        self.facts = {"merchant_id": self.merchant_id, "mine": self.token}
        as_ledger_fn(self.admin, MAKE_ROWS, {**given, **self.facts})
        began = self.admin.execute("select clock_timestamp()").fetchone()
        assert began
        self.facts["began"] = began[0]
        self.before = self.rows()
        assert set(STATES) == {row.state for row in self.before.values()}
        return self

    def rows(self) -> dict[str, Row]:
        """The refunds as they stand."""
        return {row.refund_id: row for row in self._read(Row, ROWS)}

    def entries(self) -> list[Entry]:
        """All that the journal has."""
        return sorted(self._read(Entry, ENTRIES), key=lambda entry: entry.refund_id)

    def _read(self, kind: type[Any], statement: str) -> list[Any]:
        with self.admin.cursor(row_factory=class_row(kind)) as cursor:
            return cursor.execute(statement.encode(), self.facts).fetchall()

    def told(self, function: str, refund_id: str, *arguments: object) -> dict[str, Any]:
        """The answer of one call for one refund under the token: the row, or the code and the reason."""
        return self.asked(function, refund_id, self.token, *arguments)

    def asked(self, function: str, refund_id: str, *arguments: object) -> dict[str, Any]:
        """The same of a function that takes no token."""
        values = [self.merchant_id, refund_id, *arguments]
        statement = f"select * from ledger.{function}({', '.join(['%s'] * len(values))})"
        try:
            with self.worker.cursor(row_factory=dict_row) as cursor:
                return cursor.execute(statement.encode(), values).fetchone() or {}
        except psycopg.Error as error:
            detail = json.loads(error.diag.message_detail or "{}")
            return {"outcome": error.sqlstate, "reason": detail.get("reason")}

    def holds(self, decisions: dict[str, Decision]) -> None:
        """What is written is what was decided, and no more."""
        rows = {name: decision.row or self.before[name] for name, decision in decisions.items()}
        assert self.rows() == {**self.before, **rows}
        entries = [decision.entry for decision in decisions.values() if decision.entry]
        assert self.entries() == sorted(entries, key=lambda entry: entry.refund_id)


@pytest.fixture
def merchant(ledger: Ledger, admin: Connection, connect: Connect) -> Merchant:
    return Merchant(ledger, admin, connect())


def for_claims(merchant: Merchant) -> Merchant:
    return merchant.with_rows(refs=[REF], attempts=[1, MAX_ATTEMPTS - 1, MAX_ATTEMPTS], agos=["1 hour", "9 days"])


def for_settlements(merchant: Merchant) -> Merchant:
    return merchant.with_rows(refs=[None, REF, "another"])


def claim_as_told(merchant: Merchant, row: Row, decision: Decision) -> dict[str, Any]:
    """What a claim answers."""
    tokens = {"none": None, "older": merchant.token - 1, "mine": merchant.token}
    return {
        "refund_id": row.refund_id,
        "outcome": decision.answer,
        "reason": decision.reason,
        "attempt": (decision.row or row).attempts,
        "previous_state": row.state,
        "previous_token": tokens[row.fence],
    }


def told_of(answer: dict[str, Any], decision: dict[str, Any]) -> dict[str, Any]:
    """The part of an answer that a decision is about."""
    return {name: answer.get(name) for name in decision}


def code(decision: Decision) -> dict[str, Any]:
    """A refusal."""
    return {"outcome": decision.answer, "reason": decision.reason}


def is_code(decision: Decision) -> bool:
    return decision.answer.startswith("LG")


def test_a_claim_takes_or_refuses_every_row_by_the_rules(merchant: Merchant) -> None:
    for_claims(merchant)
    decisions = {name: claim(row) for name, row in merchant.before.items()}
    for name, decision in decisions.items():
        row = merchant.before[name]
        expected = code(decision) if is_code(decision) else claim_as_told(merchant, row, decision)
        assert told_of(merchant.told("claim_refund", name), expected) == expected, row
    merchant.holds(decisions)


@pytest.mark.parametrize("reclaim", [False, True])
def test_a_batch_claims_every_row_that_one_call_would(reclaim: bool, merchant: Merchant) -> None:
    for_claims(merchant)
    decisions = {
        name: claim(row)
        for name, row in sorted(merchant.before.items())
        if not is_code(claim(row)) and (reclaim or row.state != "sending" or row.fence != "mine")
    }
    expected = [claim_as_told(merchant, merchant.before[name], decision) for name, decision in decisions.items()]
    with merchant.worker.cursor(row_factory=dict_row) as cursor:
        answers = cursor.execute(
            "select * from ledger.claim_refunds(%s, %s, 1000, '', %s)", [merchant.merchant_id, merchant.token, reclaim]
        ).fetchall()
    assert [told_of(answer, expected[0]) for answer in answers] == expected
    merchant.holds(decisions)


@pytest.mark.parametrize("settlement", SETTLEMENTS, ids=lambda settlement: settlement.name)
def test_a_settlement_moves_or_refuses_every_row_by_the_rules(settlement: Settlement, merchant: Merchant) -> None:
    for_settlements(merchant)
    decisions = {name: settlement.of(row) for name, row in merchant.before.items()}
    for name, decision in decisions.items():
        row, new = merchant.before[name], decision.row or merchant.before[name]
        expected = code(decision)
        if not is_code(decision):
            expected |= {
                "state": new.state,
                "previous_state": row.state,
                "gateway_ref": new.gateway_ref,
                "attempts": row.attempts,
                "maybe_sent": new.maybe_sent,
            }
        answer = merchant.told(settlement.name, name, REF if settlement.has_ref else "because")
        assert told_of(answer, expected) == expected, row
        if decision.row:
            assert answer["token"] == merchant.token
    merchant.holds(decisions)


@pytest.mark.parametrize("settlement", SETTLEMENTS, ids=lambda settlement: settlement.name)
def test_a_superseded_token_is_told_of_every_row_what_it_recorded_itself_and_moves_none(
    settlement: Settlement, merchant: Merchant, ledger: Ledger
) -> None:
    for_settlements(merchant)
    activated(ledger, BOB)
    decisions = {name: settlement.of_a_stale_token(row) for name, row in merchant.before.items()}
    for name, decision in decisions.items():
        answer = merchant.told(settlement.name, name, REF if settlement.has_ref else "because")
        assert told_of(answer, code(decision)) == code(decision), merchant.before[name]
    merchant.holds(decisions)


def test_a_batch_confirms_or_refuses_every_row_as_one_call_would(merchant: Merchant) -> None:
    for_settlements(merchant)
    decisions = {}
    for name, row in merchant.before.items():
        one = CONFIRM.of(row)
        # No batch has evidence, so none has led to review: it has nothing of its own to recognise there.
        decisions[name] = one if one.answer != "review" else Decision("LG203", "not_claimed")
    with merchant.worker.cursor(row_factory=dict_row) as cursor:
        answers = cursor.execute(
            "select * from ledger.confirm_refunds(%s, %s, %s, %s)",
            [merchant.merchant_id, merchant.token, list(decisions), [REF] * len(decisions)],
        ).fetchall()
    for answer, (name, decision) in zip(answers, decisions.items(), strict=True):
        row = decision.row or merchant.before[name]
        expected = code(decision) | {"refund_id": name, "state": row.state, "gateway_ref": row.gateway_ref}
        assert told_of(answer, expected) == expected, merchant.before[name]
    merchant.holds(decisions)


# From which state to which a person resolves a refund.
RESOLVES = {("accepted", "sent"), ("accepted", "failed"), ("review", "sent"), ("review", "failed")} | {
    ("review", "returned"), ("sent", "returned")
}  # fmt: skip


def resolved(row: Row, to_state: str) -> str:
    """What resolve_refund says of a row, with the reference."""
    if row.gateway_ref not in {None, REF} and row.state in {"sent", "returned", "accepted", "review"}:
        return "LG303"
    if row.state == to_state:
        return f"already_{to_state}"
    if (row.state, to_state) in RESOLVES:
        return to_state
    return "LG202" if row.state in FINAL else "LG204"


@pytest.mark.parametrize("to_state", ["sent", "failed", "returned"])
def test_a_person_resolves_or_not_every_row_by_the_rules(
    to_state: str, ledger: Ledger, admin: Connection, connect: Connect, operator_dsn: str
) -> None:
    merchant = for_settlements(Merchant(ledger, admin, connect(operator_dsn)))
    for name, row in merchant.before.items():
        answer = merchant.asked("resolve_refund", name, to_state, REF, "carol", "ticket 91", '{"seen": true}')
        assert answer["outcome"] == resolved(row, to_state), row
    after = merchant.rows()
    moved = {name for name, row in merchant.before.items() if resolved(row, to_state) == to_state}
    assert {name for name, row in after.items() if row != merchant.before[name]} == moved
    assert {after[name].state for name in moved} == {to_state}
    assert [entry.refund_id for entry in merchant.entries()] == sorted(moved)
