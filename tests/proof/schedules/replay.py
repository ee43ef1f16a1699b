"""A schedule as a short code, as a story, and as a script for psql."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from psycopg import sql

from ledger.settlement import Find, Send
from tests.proof.schedules import controls
from tests.proof.schedules.controls import CONTROLS, Control
from tests.proof.schedules.explore import Violation
from tests.proof.schedules.invariants import broken_at_the_end, broken_by
from tests.proof.schedules.programs import Clear, GiveBack, Look, Peek, Sql, Step, Swap, Take
from tests.proof.schedules.states import Server
from tests.proof.schedules.world import FAULTS, Bounds, Stage, Turn

COMMAND = "python -m tests.proof.schedules --replay"
BETWEEN = {
    "X": "the lease ends before its time",
    "F": "Redis forgets the lease",
    "T": "time passes, and the lease ends",
    "d": "a late request arrives at the gateway",
}
PLAINLY: dict[type, str] = {
    Take: "takes the lease",
    GiveBack: "gives its lease back",
    Look: "looks at its lease",
    Peek: "looks whose the lease is",
}
AND_THEN = {
    "!": "the reply is lost",
    "~": "the request is late",
    "-": "the gateway refuses, and remembers it",
    "_": "the gateway refuses, and doesn't remember it",
    ".": "a stop is asked for",
}


def parse(text: str) -> tuple[Control | None, Bounds, tuple[str, ...]]:
    """A code, or the name of a file that has it in its first line. Raises ValueError for what is neither."""
    if "\n" not in text and len(text) < 256 and Path(text).is_file():
        text = Path(text).read_text().partition("\n")[0]
    text = text.strip().removeprefix("-- ").removeprefix(COMMAND).strip(" '\"")
    planted, _, code = text.rpartition("@")
    where, colon, choices = code.partition(":")
    programs, _, how_many = where.partition("/")
    refunds, _, keys = how_many.partition("/")
    control = next((one for one in CONTROLS if one.name == planted), None)
    if not colon or not refunds.isdigit() or (planted and control is None):
        raise ValueError(f"not a schedule: {text!r}. It is PROGRAMS/REFUNDS:CHOICE,CHOICE,...")
    return control, Bounds(tuple(programs.split("+")), int(refunds), keyed=keys != "unkeyed"), tuple(choices.split(","))


def code_of(violation: Violation, control: Control | None = None) -> str:
    """What replays a violation."""
    return f"{control.name}@{violation.code}" if control else violation.code


def replay(
    conninfo: str, control: Control | None, bounds: Bounds, choices: Sequence[str]
) -> tuple[list[Turn], list[str]]:
    """The turns of a schedule on a fresh merchant, call by call, and the invariants that it breaks."""
    with controls.broken(conninfo, control.edits if control else ()):
        server = Server(conninfo)
        try:
            stage = Stage(server, replace(bounds, faults=dict.fromkeys(FAULTS, len(choices))))
            world = stage.start()
            turns: list[Turn] = []
            broken: list[str] = []
            for choice in choices:
                turn = stage.take(world, choice)
                turns.append(turn)
                broken += broken_by(stage, turn)
                world = turn.after
            if not stage.choices(world._replace(left=(0,) * len(world.left))):
                broken += broken_at_the_end(stage, world)
        finally:
            server.close()
    return turns, list(dict.fromkeys(broken))


def story(turns: Sequence[Turn]) -> Iterator[str]:
    """A line for each turn."""
    for turn in turns:
        yield f"{turn.choice:4}{_told(turn)}"


def script(violation: Violation, turns: Sequence[Turn], control: Control | None = None) -> str:
    """What psql replays on a fresh database, as its superuser; the steps outside of Postgres are comments."""
    lines = [
        f"-- {COMMAND} '{code_of(violation, control)}'",
        f"-- breaks: {violation.invariant}",
        "-- psql -f THIS on a fresh database after ledger db upgrade, as a superuser: the tokens begin at 1",
    ]
    if control and control.edits:
        sources = {name: controls.source(name) for name, _, _ in control.edits}
        texts = controls.edited(sources, control.edits).values()
        lines += [text[text.index("create or replace") :].partition("\ncomment on")[0].strip() for text in texts]
    lines += [f"select ledger.add_refund('m0000000', '{r}', 7025, 'EUR');" for r in violation.bounds.refund_ids]
    role = None
    for turn in turns:
        if not isinstance(turn.step, Sql):
            lines.append(f"-- {turn.choice}: {_told(turn)}")
            continue
        if turn.step.role != role:
            role = turn.step.role
            lines += ["reset session authorization;", f"set session authorization {role};"]
        lines.append(f"{_statement(turn.step)}  -- {turn.choice}: {_came_to(turn)}")
    return "\n".join([*lines, "reset session authorization;", "table ledger.refund;", "table ledger.journal;", ""])


def _told(turn: Turn) -> str:
    if turn.choice in BETWEEN:
        return BETWEEN[turn.choice]
    if turn.choice.endswith("+"):
        return f"{turn.process} dies"
    assert turn.step is not None
    came_to = _came_to(turn)
    return f"{turn.process} {_named(turn.step)}{': ' if came_to else ''}{came_to}"


def _named(step: Step) -> str:
    match step:
        case Sql(call):
            return f"{call.name}({', '.join(str(value) for value in call.arguments.values() if value is not None)})"
        case Swap(old, new):
            return f"swaps {old} for {new} in its lease"
        case Clear(value):
            return f"clears the lease of {value[0]}, if it still is"
        case Find(claim):
            return f"asks the gateway about {claim.idempotency_key}"
        case Send(claim):
            return f"sends {claim.amount_minor} under {claim.idempotency_key}"
    return PLAINLY[type(step)]


def _came_to(turn: Turn) -> str:
    then = AND_THEN.get(turn.choice[1:], "")
    outcome = turn.outcome
    if isinstance(turn.step, Sql) and isinstance(outcome, tuple):
        rows = [str(getattr(row, "outcome", row)) for row in outcome if row is not None]
        outcome = ", ".join(rows) if rows or not outcome else None
    came_to = repr(outcome) if isinstance(outcome, Exception) else "" if outcome is None else str(outcome)
    return ", but ".join(part for part in (came_to, then) if part)


def _statement(step: Sql) -> str:
    call = step.call
    arguments = sql.SQL(", ").join(
        sql.SQL("{} => {}").format(sql.SQL(name), sql.Literal(value))
        for name, value in call.arguments.items()
        if value is not None
    )
    # Without a connection: what stands here are numbers, ids and short words.
    return f"select * from ledger.{call.name}({arguments.as_string(None)});"
