"""`ledger resolve`, `requeue`, `cancel`, `review`, `return`: a person's moves, which need no token, but who and why.

Never on a refund that is sending: its holder may be at the gateway now. `ledger claim` or `ledger lease break` fences
it out first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from psycopg import Connection

from ledger.client import Ledger
from ledger.commands import evidence, given, output
from ledger.commands.app import App, BadInput, command, pass_app
from ledger.commands.each import each
from ledger.commands.given import Given
from ledger.records import Move

COLUMNS = ["refund_id", "outcome", "state", "previous_state", "gateway_ref", "reason"]
EVIDENCE = click.option(
    "--evidence", "words", metavar="JSON|@FILE|WORDS", help="What it rests on; kept in the journal."
)
REFERENCE = click.option("--gateway-ref", metavar="REF", help="The gateway's reference.")
ABSENT = click.option("--not-at-gateway", is_flag=True, help="You looked: the gateway has nothing under its key.")

Proof = dict[str, Any]
Send = Callable[[Ledger, str, Proof | None], Move]


@command(name="resolve")
@click.option(
    "--to",
    "to_state",
    required=True,
    type=click.Choice(["sent", "failed", "returned", "cancelled", "pending"]),
    help="What became of it.",
)
@REFERENCE
@EVIDENCE
@ABSENT
@evidence.GATEWAY
@given.options
@pass_app
def resolve_command(
    app: App,
    merchant: str,
    refunds: tuple[str, ...],
    everything: bool,
    states: tuple[str, ...],
    to_state: str,
    gateway_ref: str | None,
    words: str | None,
    not_at_gateway: bool,
    gateway: str | None,
) -> int:
    """Record what became of refunds in review, or of accepted ones: the money follows, so evidence is needed.

    Back to pending needs the evidence that the gateway has nothing: --not-at-gateway, or a --gateway that says so.

    \b
    Example:
      ledger resolve m_4471 r_815 --to sent --gateway-ref re_815 --evidence 'dashboard, ticket 91' --reason 'ticket 91'
      ledger resolve m_4471 r_816 --to pending --gateway myshop.payments:gateway --reason 'ticket 91'
    \b
    Exit codes:
      0 done           3 refused, or the gateway says otherwise     4 Postgres or the gateway can't be reached
      2 bad input      5 no such refund                             8 some were not recorded
      1 answered no    9 schema missing or behind
    """
    asked = Given(merchant, refunds, everything, states)
    send = _resolver(app, merchant, to_state, gateway_ref)
    proof = evidence.parsed(words) | ({"not_at_gateway": True} if not_at_gateway else {})
    return _move(app, asked, to_state, send, proof, gateway, gateway_ref)


@command(name="requeue")
@EVIDENCE
@ABSENT
@evidence.GATEWAY
@given.options
@pass_app
def requeue_command(
    app: App,
    merchant: str,
    refunds: tuple[str, ...],
    everything: bool,
    states: tuple[str, ...],
    words: str | None,
    not_at_gateway: bool,
    gateway: str | None,
) -> int:
    """Put refunds in review back to work, since the gateway has nothing under their keys.

    Attempts and key window begin again; the next holder still asks the gateway first.

    \b
    Example:
      ledger requeue m_4471 r_815 --not-at-gateway --reason 'looked in the dashboard, ticket 91'
    \b
    Exit codes:
      0 done           3 refused, or the gateway says otherwise     4 Postgres or the gateway can't be reached
      2 bad input      5 no such refund                             8 some were not put back
      1 answered no    9 schema missing or behind
    """
    asked = Given(merchant, refunds, everything, states)
    proof = evidence.parsed(words) | ({"not_at_gateway": True} if not_at_gateway else {})
    return _move(app, asked, "pending", _resolver(app, merchant, "pending", None), proof, gateway, None)


@command(name="cancel")
@EVIDENCE
@given.options
@pass_app
def cancel_command(
    app: App, merchant: str, refunds: tuple[str, ...], everything: bool, states: tuple[str, ...], words: str | None
) -> int:
    """Cancel refunds that were certainly never sent: pending ones, or in review. That is final, so it asks.

    \b
    Example:
      ledger cancel m_4471 r_815 --reason 'the order was a test, ticket 91'
    \b
    Exit codes:
      0 done           3 refused                     4 Postgres can't be reached
      2 bad input      5 no such refund              8 some were not cancelled
      1 answered no    9 schema missing or behind
    """
    asked = Given(merchant, refunds, everything, states)
    send = _resolver(app, merchant, "cancelled", None)
    return _move(app, asked, "cancelled", send, evidence.parsed(words), None, None)


@command(name="review")
@EVIDENCE
@given.options
@pass_app
def review_command(
    app: App, merchant: str, refunds: tuple[str, ...], everything: bool, states: tuple[str, ...], words: str | None
) -> int:
    """Take refunds out of the work until a person has looked: pending, unknown and accepted ones.

    \b
    Example:
      ledger review m_4471 --all --state unknown --reason 'gateway incident 812'
    \b
    Exit codes:
      0 done           3 refused                     4 Postgres can't be reached
      2 bad input      5 no such refund              8 some were not taken out
      1 answered no    9 schema missing or behind
    """
    asked = Given(merchant, refunds, everything, states)

    def send(ledger: Ledger, refund: str, proof: Proof | None) -> Move:
        return ledger.review_refund(merchant, refund, app.who, app.reason, proof)

    return _move(app, asked, "review", send, evidence.parsed(words), None, None)


@command(name="return")
@REFERENCE
@EVIDENCE
@given.options
@pass_app
def return_command(
    app: App,
    merchant: str,
    refunds: tuple[str, ...],
    everything: bool,
    states: tuple[str, ...],
    gateway_ref: str | None,
    words: str | None,
) -> int:
    """Record that sent refunds came back, as from a closed account. That is final, so it asks; evidence is needed.

    \b
    Example:
      ledger return m_4471 r_815 --evidence 'bank statement of 29 November' --reason 'account closed, ticket 91'
    \b
    Exit codes:
      0 done           3 refused                     4 Postgres can't be reached
      2 bad input      5 no such refund              8 some were not recorded
      1 answered no    9 schema missing or behind
    """
    asked = Given(merchant, refunds, everything, states)

    def send(ledger: Ledger, refund: str, proof: Proof | None) -> Move:
        return ledger.return_refund(merchant, refund, gateway_ref, app.who, app.reason, proof)

    return _move(app, asked, "returned", send, evidence.parsed(words), None, None)


def _resolver(app: App, merchant: str, to_state: str, ref: str | None) -> Send:
    """The SQL function that leads to a state."""

    def send(ledger: Ledger, refund: str, proof: Proof | None) -> Move:
        if to_state == "pending":
            return ledger.requeue_refund(merchant, refund, app.who, app.reason, proof)
        if to_state == "cancelled":
            return ledger.cancel_refund(merchant, refund, app.who, app.reason, proof)
        known = ref or (proof or {}).get("ref")
        return ledger.resolve_refund(
            merchant, refund, to_state, known if to_state == "sent" else ref, app.who, app.reason, proof
        )

    return send


def _move(app: App, asked: Given, to_state: str, send: Send, proof: Proof, gateway: str | None, ref: str | None) -> int:
    """Move each, in a transaction of its own, with what the gateway says where one is asked."""
    app.need_reason()
    if ref and len(asked.refunds) > 1:
        raise BadInput("one --gateway-ref can't be that of several refunds. Nothing was changed", "Give one refund")
    ids = list(asked.ids(app, f"Record as {to_state}:"))
    if not ids:
        return 0
    if to_state in ("cancelled", "returned") and not asked.everything and not app.dry_run:
        app.confirm(f"Record {', '.join(ids[:5])}{' and more' if len(ids) > 5 else ''} as {to_state}, for good?")
    is_asked = to_state in ("sent", "failed", "pending")
    with app.connect() as connection, evidence.checking(gateway, wanted=is_asked) as check:
        ledger = app.ledger(connection)

        def work(refund: str) -> dict[str, Any]:
            said = _looked_up(check, connection, asked.merchant, refund, to_state, ref) if is_asked else {}
            with connection.transaction(force_rollback=bool(app.dry_run)):
                return output.as_row(send(ledger, refund, (proof | said) or None))

        return each(app, ids, work, COLUMNS)


def _looked_up(
    check: evidence.Check, connection: Connection[Any], merchant: str, refund: str, to_state: str, ref: str | None
) -> Proof:
    return check.of(connection, merchant, refund, to_state, ref).evidence
