"""One thing done to many refunds: a bad row doesn't stop the rest, and every row is accounted for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ledger.commands import output
from ledger.commands.app import App, Problem
from ledger.commands.exits import BUSY, PARTLY, REFUSED, describe
from ledger.errors import FenceRefusal, LedgerError, Paused, Refused


def each(app: App, refunds: Sequence[str], work: Callable[[str], dict[str, Any]], columns: Sequence[str]) -> int:
    """Do it to each; returns the exit code. A refusal by the fence ends it. A refund alone raises what it raises."""
    results: list[dict[str, Any]] = []
    stopped_by: FenceRefusal | None = None
    failed = False
    try:
        for refund in refunds:
            try:
                results.append(work(refund))
            except (LedgerError, Problem) as error:
                if len(refunds) == 1:
                    raise
                results.append(_refused(refund, error))
                failed = True
                if isinstance(error, FenceRefusal):
                    stopped_by = error
                    break
    finally:
        # Also when the connection breaks in the middle: what was done must be seen.
        if results:
            rest = [{"refund_id": refund, "outcome": "not_tried"} for refund in refunds[len(results) :]]
            if rest and stopped_by is None:
                rest[0]["outcome"] = "in_doubt"
            output.rows(app, [*results, *rest], columns)
    if app.dry_run:
        output.say("dry run: rolled back, nothing was changed")
    if stopped_by is not None:
        return BUSY if isinstance(stopped_by, Paused) else REFUSED
    return PARTLY if failed else 0


def _refused(refund: str, error: LedgerError | Problem) -> dict[str, Any]:
    message, _, hint = describe(error)
    outcome = error.code if isinstance(error, Refused) else "busy" if isinstance(error, LedgerError) else "not_recorded"
    return {"refund_id": refund, "outcome": outcome, "reason": message, "hint": hint}
