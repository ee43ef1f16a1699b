"""What each parameter can be: mostly what makes sense, sometimes rubbish. A parameter's name has one meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from hypothesis import strategies as st
from psycopg.types.json import Jsonb

MERCHANTS = ("m_1", "m_2")
REFUNDS = ("r_1", "r_2", "r_3")
RESOURCES = ("settle:m_1", "settle:m_2", "job:a")
HOLDERS = ("host/1/aaaa", "host/2/bbbb", "host/3/cccc")
AMOUNTS = {"r_1": 7025, "r_2": 100, "r_3": 999}
THING = "app.thing"

# Older than anything that housekeeping leaves alone, and younger than what a machine has aged.
LONG_AGO = (datetime.now(UTC) - timedelta(days=100)).isoformat()

Strategy = st.SearchStrategy[Any]


class Known(Protocol):
    """What a choice may depend on."""

    tokens: Sequence[int]
    active: Mapping[str, int]


def _mostly(good: Strategy, *rubbish: Any) -> Strategy:
    return st.integers(1, 20).flatmap(lambda one: good if one < 20 else st.sampled_from([*rubbish, None]))


def _word(*good: str | None, rubbish: Sequence[Any] = ("",)) -> Strategy:
    return _mostly(st.sampled_from(good), *rubbish)


def _token(known: Known, so_far: Mapping[str, Any]) -> Strategy:
    resource = so_far.get("resource") or f"settle:{so_far.get('merchant_id')}"
    drawn = st.sampled_from(known.tokens or [0])
    active = st.just(known.active[resource]) if resource in known.active else drawn
    return _mostly(st.one_of(active, active, active, active, drawn), 0, -1, 2**62)


def _tokens(known: Known, _: Mapping[str, Any]) -> Strategy:
    pairs = {resource: known.active.get(resource, 0) for resource in RESOURCES}
    good = st.sets(st.sampled_from(RESOURCES), min_size=1, max_size=2)
    return _mostly(
        good.map(lambda chosen: Jsonb({one: pairs[one] for one in sorted(chosen)})), Jsonb([]), Jsonb({"": "x"})
    )


def _amount(_: Known, so_far: Mapping[str, Any]) -> Strategy:
    return _mostly(st.just(AMOUNTS.get(so_far.get("refund_id") or "", 100)), 0, -5, 2**62)


def _reference(_: Known, so_far: Mapping[str, Any]) -> Strategy:
    good = f"re_{so_far.get('refund_id')}"
    return _mostly(st.just(good), good, "re_other", "")


def _evidence(_: Known, so_far: Mapping[str, Any]) -> Strategy:
    amount = AMOUNTS.get(so_far.get("refund_id") or "", 100)
    seen = {"amount_minor": amount, "currency": "EUR", "not_at_gateway": True}
    return _mostly(st.sampled_from([None, Jsonb(seen), Jsonb(seen)]), Jsonb({"amount_minor": 1}), Jsonb([]))


def _several(each: Callable[[str], Any], *rubbish: Any) -> Callable[[Known, Mapping[str, Any]], Strategy]:
    """An array as long as refund_ids; sometimes with rubbish in it, or of another length."""

    def arrays(_: Known, so_far: Mapping[str, Any]) -> Strategy:
        ids = so_far.get("refund_ids") or []
        good = [each(refund_id or "") for refund_id in ids]
        return _mostly(st.just(good), good[1:], [*good[:-1], *rubbish])

    return arrays


def _fixed(strategy: Strategy) -> Callable[[Known, Mapping[str, Any]], Strategy]:
    return lambda known, so_far: strategy


PARAMETERS: Mapping[str, Callable[[Known, Mapping[str, Any]], Strategy]] = {
    "actor": _fixed(_word("ada")),
    "after_event_id": _fixed(_mostly(st.just(0), -1)),
    "after_refund_id": _fixed(_word("", "", "r_1", rubbish=())),
    "amount_minor": _amount,
    "amounts_minor": _several(lambda refund_id: AMOUNTS.get(refund_id, 100), 0),
    "before": _fixed(_mostly(st.just(LONG_AGO), "now", "infinity")),
    "code": _fixed(_word("LG101", "LG203", rubbish=("", "42501"))),
    "column_name": _fixed(st.sampled_from([None, "owner", "nothing"])),
    "currencies": _several(lambda _: "EUR", "XXX"),
    "currency": _fixed(_word("EUR", rubbish=("XXX", "eur", ""))),
    "detail": _fixed(_mostly(st.just(Jsonb({"resource": "settle:m_1", "token": 1})), Jsonb([]))),
    "evidence": _evidence,
    "failover": _fixed(_word("hold", "hold", "lift")),
    "forced": _fixed(st.sampled_from([True, False, None])),
    "gateway": _fixed(st.sampled_from([None, None, None, "east"])),
    "gateway_ref": _reference,
    "gateway_refs": _several(lambda refund_id: f"re_{refund_id}", "re_other", ""),
    "gateways": _fixed(st.none()),
    "held": _fixed(_word("5 seconds", rubbish=("-1 second",))),
    "holder": _fixed(_word(*HOLDERS, rubbish=("", "a:b"))),
    "idempotency_key": _fixed(st.sampled_from([None, None, None, None, "key_1", ""])),
    "idempotency_keys": _fixed(st.none()),
    "idle_limit": _fixed(st.sampled_from([None, "10 seconds", "0", "-1 second"])),
    "key_window": _fixed(st.sampled_from([None, "23 hours", "1 microsecond", "0"])),
    "kind": _fixed(_word("settle", "job", "job", rubbish=("", "a:b"))),
    "late": _fixed(_mostly(st.just(0), -1)),
    "lease_ttl": _fixed(st.sampled_from([None, "30 seconds", "0"])),
    "lock": _fixed(st.sampled_from([None, "redis", "advisory", "paper"])),
    "lock_limit": _fixed(st.sampled_from([None, "5 seconds", "0"])),
    "max_attempts": _fixed(st.sampled_from([None, 5, 2, 1, 0])),
    "max_rows": _fixed(_mostly(st.sampled_from([1, 2, 1000]), 0, -1, 1001)),
    "merchant_id": _fixed(_word(*MERCHANTS, "m_1", "m_1", rubbish=("", "m/1", "m_9"))),
    "message": _fixed(_word("refused", rubbish=())),
    "mode": _fixed(_word("off", "shadow", "enforce", "enforce", rubbish=("loose",))),
    "nothing_lost": _fixed(st.sampled_from([False, False, True, None])),
    "outcome": _fixed(_word("done", "failed", "review", rubbish=("lost",))),
    "payment_ref": _fixed(st.sampled_from([None, None, None, "pay_1"])),
    "payment_refs": _fixed(st.none()),
    "quiet_for": _fixed(_word("24 hours", "0", rubbish=("-1 second",))),
    "reason": _fixed(_word("it was so")),
    "reclaim": _fixed(st.sampled_from([False, True, None])),
    "refund_id": _fixed(_word(*REFUNDS, rubbish=("", "r_9", "r\n1"))),
    "refund_ids": _fixed(
        _mostly(
            st.lists(st.sampled_from(REFUNDS), min_size=1, max_size=3, unique=True), [], ["r_1", "r_1"], ["r_1", None]
        )
    ),
    "relation": _fixed(st.just(THING)),
    "renewals": _fixed(_mostly(st.just(1), -1)),
    "resource": _fixed(_word(*RESOURCES, "settle:m_1", rubbish=("", "settle", "settle:{x}"))),
    "stamp": _fixed(st.sampled_from([False, None])),
    "target": _fixed(_word("settle", "settle:m_1", "job", rubbish=("", "a b:{"))),
    "to_state": _fixed(_word("sent", "failed", "returned", "cancelled", rubbish=("pending", "gone"))),
    "token": _token,
    "tokens": _tokens,
    "transaction_limit": _fixed(st.sampled_from([None, "10 seconds", "0"])),
    "wait": _fixed(_word("0", rubbish=("-1 second",))),
    "work_id": _fixed(_word("w_1", "w_2")),
}

# What decides about the others comes first.
FIRST = ("merchant_id", "resource", "refund_id", "refund_ids")


def arguments(
    draw: Callable[[Strategy], Any], known: Known, parameters: Sequence[str], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """One argument for each parameter, drawn with regard to those before it, where it isn't fixed."""
    drawn: dict[str, Any] = {**fixed}
    for name in sorted(parameters, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if name not in drawn:
            drawn[name] = draw(PARAMETERS[name](known, drawn))
    return {name: drawn[name] for name in parameters}
