"""Guards taken away, one at a time, and programs and gateways that are wrong: each has to be found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.proof.schedules.explore import Violation, shortest_violation
from tests.proof.schedules.states import Server
from tests.proof.schedules.world import Bounds
from tests.proof.sql_files import file_of

Edit = tuple[str, str, str]
"""A function, a piece of its text, and what stands there instead."""


@dataclass(frozen=True)
class Control:
    """What is taken away, and the invariant that has to break within the bounds."""

    name: str
    breaks: str
    edits: Sequence[Edit] = ()
    bounds: Bounds = field(default_factory=lambda: bounded(expiry=1))


def bounded(*programs: str, keyed: bool = True, **faults: int) -> Bounds:
    """Bounds of two workers; of the README's loop where nothing else is said."""
    return Bounds(programs or ("one", "one"), 1, faults, keyed)


SETS = ("sets", "sets")
CLAIMS_UNDER_ANY_TOKEN = (
    ("claim_refund", "gate.verdict is not null", "false"),
    ("claim_or_refuse", "gate.verdict is not null", "false"),
)
CONFIRMS_UNDER_ANY_TOKEN = (
    ("confirm_refund", "gate.verdict is null", "true"),
    ("lock_to_settle", "gate.verdict is not null", "false"),
)

CONTROLS = (
    Control("claim_refund takes any token", "only the active token", CLAIMS_UNDER_ANY_TOKEN),
    Control(
        "claim_refunds takes any token",
        "only the active token",
        [("claim_refunds", "gate.verdict is not null", "false")],
        bounded(*SETS, expiry=1),
    ),
    Control("confirm_refund takes any token", "only the active token", CONFIRMS_UNDER_ANY_TOKEN),
    Control(
        "confirm_refund looks at no token, for a worker that heeds no refusal",
        "stale stays silent",
        CONFIRMS_UNDER_ANY_TOKEN,
        bounded("heedless", "one", expiry=1),
    ),
    Control(
        "confirm_refund doesn't ask who claimed the refund",
        "its own claim",
        [
            ("confirm_refund", "r.fence = confirm_refund.token and", ""),
            ("lock_to_settle", "(refund.state <> 'sending' or refund.fence < token)", "refund.state <> 'sending'"),
        ],
        bounded("next", "next"),
    ),
    Control(
        "an activation doesn't raise the fence",
        "fence never falls",
        [("activate_token", "set active = excluded.active,", "set")],
    ),
    Control(
        "an activation takes any number that was drawn",
        "fence never falls",
        [
            ("activate_token", "token <= fence.barrier or", ""),
            ("activate_token", "and d.token <= last_drawn", "and false"),
        ],
    ),
    Control(
        "an activation voids only its own number",
        "holder stays",
        [
            ("activate_token", "and d.token <= last_drawn", "and d.token <= activate_token.token"),
            ("activate_token", "token, last_drawn, holder", "token, token, holder"),
        ],
    ),
    Control(
        "a takeover says claimed",
        "told",
        [("claim_outcome", "state = 'pending' and not maybe_sent then 'claimed'", "true then 'claimed'")],
    ),
    Control(
        "a takeover leaves no mark",
        "told",
        [("claim_or_refuse", "refund.maybe_sent or refund.state <> 'pending'", "refund.maybe_sent")],
        bounded(expiry=1, stop=1),
    ),
    Control(
        "a takeover by a set leaves no mark",
        "told",
        [("claim_refunds", "c.maybe_sent or c.state <> 'pending'", "c.maybe_sent")],
        bounded(*SETS, expiry=1, stop=1),
    ),
    Control(
        "a release gives back what may have been sent, and a claim doesn't look",
        "told",
        [
            ("release_refund", "refund.maybe_sent", "false"),
            ("claim_refund", "and not was_marked", ""),
        ],
        bounded(expiry=1, stop=1),
    ),
    Control(
        "what was recorded isn't recognised",
        "recognised",
        [("recorded_already", "refund.fence = token", "false")],
        bounded(expiry=1, lost=1),
    ),
    Control(
        "a confirm skips a number of the journal",
        "journal",
        [("confirm_refund", "was_number + 1, attempts, at", "was_number + 2, attempts, at")],
        bounded(),
    ),
    Control(
        "a claim doesn't store its token",
        "journal",
        [("claim_refund", "fence = claim_refund.token,", "fence = r.fence,")],
        bounded(),
    ),
    Control(
        "a confirm books the wrong way round",
        "verify",
        [("confirm_refund", "'refund_reserved', 'gateway_clearing'", "'gateway_clearing', 'refund_reserved'")],
        bounded(),
    ),
    Control(
        "each claim has a key of its own",
        "one movement",
        [
            ("claim_refund", "idempotency_key, was_attempts", "idempotency_key || token, was_attempts"),
            ("claim_or_refuse", "refund.idempotency_key, attempt", "refund.idempotency_key || token, attempt"),
        ],
    ),
    Control(
        "an unknown outcome is recorded as a failure",
        "sent means moved",
        [("mark_unknown", "refund, 'unknown', 'unknown', null", "refund, 'failed', 'failed', null")],
        bounded(lost=1),
    ),
    Control(
        "one attempt is all there is",
        "settled",
        [("claim_outcome", "attempts >= max_attempts", "attempts >= 1")],
        bounded(crash=1),
    ),
    Control(
        "a number is drawn twice",
        "number once",
        [
            ("draw_token", "nextval('ledger.token_seq')", "(nextval('ledger.token_seq') + 1) / 2"),
            ("draw_token", "values (resource, token)", "values (resource, token) on conflict do nothing"),
        ],
        bounded(),
    ),
    Control(
        "a number that is drawn twice is an error of Postgres",
        "known errors",
        [("draw_token", "nextval('ledger.token_seq')", "(nextval('ledger.token_seq') + 1) / 2")],
        bounded(),
    ),
    Control(
        "a refusal uses up a number",
        "refusal changes nothing",
        [("refuse_stale_token", "begin\n", "begin\n    perform nextval('ledger.token_seq');\n")],
    ),
    Control("a worker sends after it was refused", "stale stays silent", (), bounded("deaf", "one", expiry=1)),
    Control("a worker takes the lease before it draws", "holder stays", (), bounded("lease-first", "one", expiry=1)),
    Control("the gateway doesn't know of keys", "one movement", (), bounded(keyed=False, expiry=1)),
)


class DoesNotFitError(Exception):
    """A control names a text that its function no longer has."""


@contextmanager
def broken(conninfo: str, edits: Sequence[Edit], *, triggers: bool = True) -> Iterator[None]:
    """The database of `conninfo`, a superuser's, with these guards taken away; put back at the end."""
    originals = {name: source(name) for name, _, _ in edits}
    with psycopg.connect(conninfo, autocommit=True) as admin:
        try:
            for text in edited(originals, edits).values():
                admin.execute(text.encode())
            if not triggers:
                _switch(admin, "disable trigger")
            yield
        finally:
            for text in originals.values():
                admin.execute(text.encode())
            if not triggers:
                _switch(admin, "enable always trigger")


def edited(texts: dict[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    """The functions with these guards taken away. Raises DoesNotFitError."""
    changed = dict(texts)
    for name, old, new in edits:
        if old not in changed[name]:
            raise DoesNotFitError(f"ledger.{name} has no {old!r}; the control must be written anew for it")
        changed[name] = changed[name].replace(old, new)
    return changed


def source(name: str) -> str:
    """The text of a function's file."""
    return file_of(name).read_text()


def find(conninfo: str, control: Control, *, triggers: bool = True) -> Violation | None:
    """The shortest schedule that shows what is missing, by the invariant that it has to break."""
    with broken(conninfo, control.edits, triggers=triggers):
        server = Server(conninfo)
        try:
            return shortest_violation(server, control.bounds, control.breaks)
        finally:
            server.close()


def _switch(admin: psycopg.Connection[Any], how: str) -> None:
    for table, trigger in admin.execute(
        "select t.tgrelid::regclass::text, quote_ident(t.tgname) from pg_trigger as t "
        "join pg_class as c on c.oid = t.tgrelid where c.relnamespace = 'ledger'::regnamespace and not t.tgisinternal"
    ).fetchall():
        admin.execute(f"alter table {table} {how} {trigger}".encode())
