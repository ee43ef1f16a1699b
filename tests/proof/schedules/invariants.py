"""What must be so after every step, and at the end of every schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ledger.errors import StaleToken
from ledger.gateway import Sent
from ledger.settlement import Send
from tests.proof.schedules.programs import Sql
from tests.proof.schedules.states import State, Undocumented
from tests.proof.schedules.world import FINAL, LAST, OPERATOR, Stage, Turn, World

INVARIANTS = {
    "one movement": "at most one movement of money for a refund",
    "sent means moved": "a sent refund has one movement, of its amount and under its reference; a failed one has none",
    "journal": "the journal is numbered 1 to n, each entry goes on from the one before, and it replays to the row",
    "verify": "ledger.verify() finds nothing",
    "fence never falls": "neither the fence, nor its barrier, nor a row's token ever falls",
    "only the active token": "nothing is claimed or recorded under a token other than the one activated last",
    "stale stays silent": "a holder that was told it is stale changes nothing more, and sends nothing more",
    "number once": "every number is higher than all before",
    "told": "a claim says claimed only where no request is or may yet be on its way",
    "recognised": "a confirm or fail that was recorded is not refused when it is repeated",
    "holder stays": "who holds its lease, and nobody broke it, is not called stale",
    "its own claim": "a refund is settled only under the token that claimed it",
    "known errors": "no call ends in an error that isn't documented",
    "refusal changes nothing": "a refused call leaves everything as it was",
    "settled": "a fresh worker, alone, settles every refund, without a person",
}


def broken_by(stage: Stage, turn: Turn) -> Iterator[str]:
    """The invariants that one choice broke."""
    before, after = stage.state(turn.before), stage.state(turn.after)
    if turn.before.gateway is not turn.after.gateway or before is not after:
        yield from _of_money(stage, turn.after)
    if isinstance(turn.step, Send) and _was_refused(stage, turn):
        yield "stale stays silent"
    if isinstance(turn.step, Sql):
        yield from _of_call(turn, turn.step, before, after)


def broken_at_the_end(stage: Stage, world: World) -> Iterator[str]:
    """The invariants that a schedule broke by how it ended."""
    if not stage.is_settled(world) or world.at[-1] > 0:
        yield "settled"
    if stage.server.findings(stage.state(world)):
        yield "verify"
    for refund_id, row in stage.state(world).refunds.items():
        moved = sum(request.key.endswith(f"/{refund_id}") for request in world.gateway.movements)
        if moved != (row["state"] == "sent"):
            yield "sent means moved"


def broken_by_state(state: State) -> Iterator[str]:
    """The invariants that a state of the ledger breaks by itself."""
    for refund_id, entries in state.journals.items():
        row = state.refunds[refund_id]
        chain = sorted(entries, key=lambda entry: entry["number"])
        followed = all(one["to_state"] == then["from_state"] for one, then in pairwise(chain))
        last = chain[-1]
        same = all(row[name] == last[replayed] for name, replayed in (
            ("state", "to_state"), ("attempts", "attempts"), ("maybe_sent", "maybe_sent"), ("journal_number", "number"),
        ))  # fmt: skip
        token = max((entry["token"] or 0 for entry in chain), default=0)
        if (
            [entry["number"] for entry in chain] != list(range(1, len(chain) + 1))
            or not followed
            or not same
            or token != row["fence"]
        ):
            yield "journal"


def _of_money(stage: Stage, world: World) -> Iterator[str]:
    moved: dict[str, int] = {}
    for request in world.gateway.movements:
        # The last part of a key is the refund, whatever came before it.
        refund_id = next(r for r in stage.bounds.refund_ids if f"/{r}" in request.key)
        moved[refund_id] = moved.get(refund_id, 0) + 1
    if any(times > 1 for times in moved.values()):
        yield "one movement"
    for refund_id, row in stage.state(world).refunds.items():
        if row["state"] == "sent":
            answer = world.gateway.find(row["idempotency_key"])
            if moved.get(refund_id) != 1 or answer != Sent(row["gateway_ref"], row["amount_minor"], row["currency"]):
                yield "sent means moved"
        elif row["state"] in FINAL and moved.get(refund_id):
            yield "sent means moved"


def _of_call(turn: Turn, step: Sql, before: State, after: State) -> Iterator[str]:
    if before is not after:
        yield from broken_by_state(after)
        yield from _of_tokens(turn.before.active, before, after, turn)
    if isinstance(turn.outcome, Exception):
        yield from _of_refusal(turn, step, turn.outcome, changed=before is not after)
    elif step.call.name == "draw_token" and turn.outcome[0] <= turn.before.drawn:
        yield "number once"
    elif "merchant_id" in step.call.arguments and before is not after:
        yield from _of_write(turn, step, before, after)


def _of_refusal(turn: Turn, step: Sql, refusal: Exception, *, changed: bool) -> Iterator[str]:
    if isinstance(refusal, Undocumented):
        yield "known errors"
    if changed:
        yield "refusal changes nothing"
    if turn.before.unheard == (turn.process, repr(sorted(step.call.arguments.items()))):
        yield "recognised"
    if isinstance(refusal, StaleToken) and step.call.name != "activate_token" and _still_holds(turn):
        yield "holder stays"


def _of_write(turn: Turn, step: Sql, before: State, after: State) -> Iterator[str]:
    was, token = turn.before, step.call.arguments["token"]
    if token != was.active:
        yield "only the active token"
    if (turn.process, token) in was.refused:
        yield "stale stays silent"
    if not step.call.name.startswith("claim"):
        if _settles_anothers(token, before, after):
            yield "its own claim"
        return
    for claim in turn.outcome:
        others = {name for name, refund_id in was.may_send if refund_id == claim.refund_id} - {turn.process}
        if claim.outcome == "claimed" and (others or claim.refund_id in was.out):
            yield "told"


def _of_tokens(active: int, before: State, after: State, turn: Turn) -> Iterator[str]:
    rows_fall = any(row["fence"] < before.refunds[name]["fence"] for name, row in after.refunds.items())
    fence_falls = after.active < before.active or after.barrier < before.barrier or turn.after.active < active
    # What was activated is what the fence says, or the fence was not raised.
    if rows_fall or fence_falls or after.active != turn.after.active:
        yield "fence never falls"


def _was_refused(stage: Stage, turn: Turn) -> bool:
    """Whether who sends was told before that it is stale; that one who heeds nothing sends is what it is for."""
    heeds = stage.program(turn.process) != "heedless"
    return heeds and any(name == turn.process for name, _ in turn.before.refused)


def _settles_anothers(token: object, before: State, after: State) -> bool:
    changed = (name for name, row in after.refunds.items() if row != before.refunds[name])
    return any(before.refunds[name]["fence"] != token for name in changed)


def _still_holds(turn: Turn) -> bool:
    """Whether a process has held its lease all along, and no operator came between."""
    nobody_came = turn.before.at[-2] == 0
    return nobody_came and turn.process not in (*turn.before.ended, OPERATOR) and turn.process != LAST
