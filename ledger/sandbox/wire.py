"""What goes over the wire: one request, the answers to it, and how each is written as HTTP and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ledger.gateway import Accepted, Answer, Declined, Found, Nothing, Payable, Sent, Unknown

Body: TypeAlias = dict[str, Any]

KEY_HEADER = "Idempotency-Key"  # its value is percent-encoded UTF-8, so that any printable key fits
MAX_BODY = 64 * 1024  # bytes
MAX_ID = 400  # characters; longer than any id the ledger allows
MAX_AMOUNT = 2**63 - 1  # minor units; what a bigint holds

REFUSALS = ("bad_request", "key_reused", "token_behind")  # said before anything was done, remembered nowhere


class Rejected(Exception):
    """The gateway won't do what was asked and has changed nothing. `status` is the HTTP status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> Body:
        """The rejection as it is sent."""
        return {"error": self.code, "message": str(self)}


@dataclass(frozen=True, slots=True)
class Order:
    """What must stay the same under one idempotency key. `amount_minor` is in the currency's minor unit."""

    merchant_id: str
    refund_id: str
    amount_minor: int
    currency: str
    payment_ref: str | None


def bad_request(message: str) -> Rejected:
    """A request that can't be understood."""
    return Rejected(400, "bad_request", f"{message}; nothing was changed")


def parse_json(raw: bytes) -> Body:
    """The JSON object in `raw`. Raises Rejected for anything else, and for a name that is there twice."""
    try:
        data = json.loads(raw, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not the JSON that was expected: {error}") from None
    if not isinstance(data, dict):
        raise bad_request(f"the body is a JSON {type(data).__name__}, an object was expected")
    return data


def parse_refund(raw: bytes) -> tuple[Order, int]:
    """The order and the token in the body of a refund request. Raises Rejected."""
    data = parse_json(raw)
    required = ("merchant_id", "refund_id", "amount_minor", "currency", "token")
    missing = [name for name in required if name not in data]
    if missing:
        raise bad_request(f"missing: {', '.join(missing)}")
    unknown = sorted(set(data) - {*required, "payment_ref"})
    if unknown:
        raise bad_request(f"unknown: {', '.join(unknown)}")
    payment_ref = data.get("payment_ref")
    order = Order(
        merchant_id=text(data, "merchant_id"),
        refund_id=text(data, "refund_id"),
        amount_minor=number(data, "amount_minor", least=1),
        currency=_currency(data["currency"]),
        payment_ref=None if payment_ref is None else text(data, "payment_ref"),
    )
    return order, number(data, "token", least=0)


def text(data: Mapping[str, Any], name: str) -> str:
    """The printable text called `name`. Raises Rejected."""
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID or not value.isprintable():
        raise bad_request(f"{name} is {_shown(value)}, 1 to {MAX_ID} printable characters were expected")
    return value


def number(data: Mapping[str, Any], name: str, least: int) -> int:
    """The whole number called `name`, from `least` to what a bigint holds. Raises Rejected."""
    value = data.get(name)
    if type(value) is not int or not least <= value <= MAX_AMOUNT:
        raise bad_request(f"{name} is {_shown(value)}, a whole number from {least} was expected")
    return value


def write_refund(refund: Payable, token: int) -> bytes:
    """The body of a refund request."""
    return json.dumps(
        {
            "merchant_id": refund.merchant_id,
            "refund_id": refund.refund_id,
            "amount_minor": refund.amount_minor,
            "currency": refund.currency,
            "payment_ref": refund.payment_ref,
            "token": token,
        }
    ).encode()


def write_answer(answer: Sent | Accepted | Declined) -> tuple[int, Body]:
    """The HTTP status and the body that say `answer`."""
    match answer:
        case Sent(ref, amount_minor, currency):
            return 200, {"status": "sent", "ref": ref, "amount_minor": amount_minor, "currency": currency}
        case Accepted(ref):
            return 202, {"status": "accepted", "ref": ref}
        case Declined(reason, remembered):
            return 402, {"status": "declined", "reason": reason, "remembered": remembered}


def read_answer(status: int, raw: bytes) -> Answer:
    """What a reply to a refund request says. Whatever isn't clear is Unknown."""
    body = _object(raw)
    match status, body:
        case 200, {"status": "sent", "ref": str(ref), "amount_minor": int(amount), "currency": str(currency)}:
            return Sent(ref, amount, currency)
        case 202, {"status": "accepted", "ref": str(ref)}:
            return Accepted(ref)
        case 402, {"status": "declined", "reason": str(reason), "remembered": bool(remembered)}:
            return Declined(reason, remembered)
        case ((400 | 409), {"error": str(code), "message": str(message)}) if code in REFUSALS:
            return Declined(f"{code}: {message}", remembered=False)
    return Unknown(f"the gateway answered {status}: {raw[:200].decode(errors='replace')}")


def read_found(status: int, raw: bytes) -> Found:
    """What a reply to a look-up says. Only a plain "no such key" is Nothing."""
    if status == 404 and _object(raw).get("error") == "no_such_key":
        return Nothing()
    answer = read_answer(status, raw)
    # A look-up that was itself refused says nothing about the refund.
    return Unknown(answer.reason) if status in (400, 409) and isinstance(answer, Declined) else answer


def _object(raw: bytes) -> Body:
    try:
        data = json.loads(raw)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _currency(value: object) -> str:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isalpha() and value.isupper():
        return value
    raise bad_request(f"currency is {_shown(value)}, three capital letters were expected")


def _shown(value: object) -> str:
    return json.dumps(value)[:80]


def _no_repeats(pairs: list[tuple[str, Any]]) -> Body:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a name is there twice")
    return data
