"""Functions with one thing broken, which the machine has to notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.proof.sql_files import file_of


class Fault(NamedTuple):
    """A statement that breaks a function, and the calls that lead to where it shows."""

    statement: str
    often: tuple[str, ...]


def broken(function: str, good: str, bad: str) -> str:
    """The text of a function, with the first `good` replaced."""
    text = file_of(function).read_text()
    assert good in text, f"{function} has no {good!r}: plant this fault elsewhere"
    return text.replace(good, bad, 1)


def planted() -> Mapping[str, Fault]:
    """What is wrong, and what makes it so."""
    return {
        "a claim under any token": Fault(
            broken("claim_refund", "if gate.verdict is not null then", "if false then"),
            ("claim_refund", "draw_token"),
        ),
        "a confirm that isn't journaled": Fault(
            broken(
                "confirm_refund",
                "    insert into ledger.journal (",
                "    return null;\n    insert into ledger.journal (",
            ),
            ("claim_refund", "confirm_refund"),
        ),
        "a confirm of what isn't claimed": Fault(
            broken(
                "confirm_refunds",
                "when r.state <> 'accepted' and (r.state <> 'sending' or r.fence < confirm_refunds.token)",
                "when false",
            ),
            ("confirm_refunds",),
        ),
        "a release of what may have been sent": Fault(
            broken("release_refund", "if refund.maybe_sent then", "if false then"),
            ("claim_refund", "release_refund"),
        ),
        "a takeover that doesn't mark": Fault(
            broken(
                "claim_or_refuse",
                "marked := refund.maybe_sent or refund.state <> 'pending'",
                "marked := false",
            ),
            ("claim_refund",),
        ),
        "money into the account it came from": Fault(
            broken("move_refund", "transition.debit, transition.credit,", "transition.credit, transition.debit,"),
            ("claim_refund", "fail_refund"),
        ),
        "an activation of an older number": Fault(
            broken(
                "activate_token",
                "token <= fence.barrier or not exists (",
                "not exists (",
            ).replace("delete from ledger.draw as d where", "delete from ledger.draw as d where false and"),
            ("draw_token", "activate_token"),
        ),
        "a refund in doubt that isn't marked": Fault(
            broken(
                "move_refund",
                "(token is not null and transition.debit is null and to_state <> 'pending')",
                "false",
            ),
            ("claim_refund", "mark_unknown"),
        ),
        "a cancellation of what may have been sent": Fault(
            broken("cancel_refund", "if refund.maybe_sent and refund.settled_at is null then", "if false then"),
            ("claim_refund", "mark_unknown", "review_refund", "requeue_refund", "cancel_refund"),
        ),
        "refusals that aren't counted": Fault(
            broken("refusal_detail", "nextval('ledger.refusal_seq')", "1"), ("claim_refund",)
        ),
        "an amount that nobody looks at": Fault(
            broken("check_refund", "coalesce(amount_minor <= 0, true)", "false"), ("add_refund",)
        ),
        "a protected table that takes every write": Fault(
            broken("check_statement", "begin\n", "begin\n    return;\n"), ("present_token",)
        ),
        "open refunds that are archived": Fault(
            broken("archive_refunds", "and r.settled_at is not null", ""), ("archive_refunds",)
        ),
        "a refund that is settled and still open": Fault(
            broken(
                "move_refund",
                "case when transition.debit is not null then coalesce(r.settled_at, at) end",
                "null",
            ),
            ("claim_refund", "fail_refund"),
        ),
    }
