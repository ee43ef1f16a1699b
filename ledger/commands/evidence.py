"""What a gateway says about a refund before a person records something about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from psycopg import Connection
from psycopg.rows import dict_row

from ledger.commands import gateways, output
from ledger.commands.app import BadInput, Problem
from ledger.gateway import Accepted, Declined, Found, Gateway, Nothing, Sent, Unknown

GATEWAY = click.option(
    "--gateway",
    metavar=gateways.METAVAR,
    envvar="LEDGER_GATEWAY",
    help="Ask this gateway first, and record only what it says too.  [LEDGER_GATEWAY]",
)


class Disagrees(Problem):
    """The gateway says something else than what was to be recorded. Exit code 3."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Said:
    """What the gateway said in favour of a move: its reference of the movement, and its words as evidence."""

    ref: str | None
    evidence: dict[str, Any]


class Check:
    """A gateway, or the lack of one, to compare with."""

    def __init__(self, gateway: Gateway | None) -> None:
        self._gateway = gateway

    def of(self, connection: Connection[Any], merchant: str, refund: str, to_state: str, ref: str | None) -> Said:
        """Ask about one refund that is to become `to_state`, under reference `ref`.

        Where no answer can be had that is said, and nothing is added. Raises Disagrees.
        """
        if self._gateway is None:
            return Said(ref, {})
        with connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(
                "select idempotency_key from ledger.refund where merchant_id = %s and refund_id = %s",
                (merchant, refund),
            ).fetchone()
        if row is None:
            return Said(ref, {})
        key = row["idempotency_key"]
        answer = ask(self._gateway, key)
        if isinstance(answer, Unknown):
            output.say(f"not checked: the gateway gave no answer about {key} ({answer.reason})")
            return Said(ref, {})
        if not agrees(answer, to_state, ref):
            under = f" under reference {ref}" if ref else ""
            raise Disagrees(
                f"{merchant} {refund} was to be recorded as {to_state}{under}, but the gateway says: {told(answer)}. "
                "Nothing was changed",
                f"Look at key {key} there. ledger why {merchant} {refund} has the whole story",
            )
        return Said(answer.ref if isinstance(answer, Sent) else ref, as_evidence(answer, key))


@contextmanager
def checking(name: str | None, *, wanted: bool = True) -> Iterator[Check]:
    """What to compare with; where that is wanted and there is no gateway, it is said that nothing is compared."""
    if name is None or not wanted:
        if wanted:
            output.say("not checked: no gateway was named (--gateway or LEDGER_GATEWAY)")
        yield Check(None)
        return
    with gateways.opened(name) as gateway:
        yield Check(gateway)


def ask(gateway: Gateway, key: str) -> Found:
    """What the gateway has under a key. Whatever it raises is Unknown."""
    try:
        return gateway.find(key, gateways.CHECK_TIMEOUT)
    except Exception as error:  # an adapter of the user's: anything may come
        return Unknown(f"{type(error).__name__}: {error}")


def agrees(answer: Found, to_state: str, ref: str | None) -> bool:
    """Whether an answer bears out that the refund became `to_state`."""
    match to_state, answer:
        case "sent", Sent(found):
            return ref in (None, found)
        case "failed", Declined(remembered=remembered):
            return remembered
        case "pending", Nothing():
            return True
    return False


def as_evidence(answer: Found, key: str) -> dict[str, Any]:
    """An answer as it is kept in the journal."""
    asked: dict[str, Any] = {"asked_about": key, "gateway_said": type(answer).__name__.lower()}
    match answer:
        case Sent(ref, amount_minor, currency):
            named = {"ref": ref, "amount_minor": amount_minor, "currency": currency}
            return asked | {name: value for name, value in named.items() if value is not None}
        case Accepted(ref):
            return asked | {"ref": ref}
        case Declined(reason, remembered):
            return asked | {"reason": reason, "remembered": remembered}
        case Unknown(reason):
            return asked | {"reason": reason}
    return asked | {"not_at_gateway": True}


def told(answer: Found) -> str:
    """An answer in words."""
    match answer:
        case Sent(ref):
            return f"sent under reference {ref}"
        case Accepted(ref):
            return f"accepted under reference {ref}, its final word is to come"
        case Declined(reason, remembered):
            return f"refused ({reason})" + ("" if remembered else ", and not remembered: it may yet be sent")
        case Unknown(reason):
            return f"no answer ({reason})"
    return "it has nothing under that key"


def parsed(text: str | None) -> dict[str, Any]:
    """Evidence as it was typed: a JSON object, @FILE with one, or plain words. Raises BadInput."""
    if text is None:
        return {}
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"the evidence in {text[1:]} can't be read: {error}. Nothing was changed") from None
    if not text.lstrip().startswith("{"):
        return {"note": text.strip()} if text.strip() else {}
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise BadInput(
            f"the evidence is no JSON object: {error}. Nothing was changed", "Give {...}, @FILE, or plain words"
        ) from None
    return found
