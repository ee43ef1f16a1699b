"""Functions that tell where they have been.

Before every statement stands an assertion that draws from a sequence of its own. That counts even where the
transaction is rolled back, and leaves FOUND and the number of rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import psycopg

from ledger import schema
from tests.proof.mutants.tokens import Function
from tests.proof.sql_files import file_of

BEFORE = frozenset({";", "then", "else", "begin", "loop"})
NO_STATEMENT = frozenset({"end", "elsif", "else", "exception", "when", "$$", ";"})


def statements(f: Function) -> Iterator[int]:
    """The first token of every statement."""
    for i in range(f.block + 1, len(f.tokens)):
        if not f.tokens[i].level and f.word(i - 1) in BEFORE and f.word(i) not in NO_STATEMENT:
            yield i


def instrumented(name: str) -> str:
    """A function that tells where it has been; one in SQL is as it is."""
    function = Function.read(file_of(name))
    text = function.text
    for i in reversed(list(statements(function))):
        at = function.tokens[i].start
        text = f"{text[:at]}assert nextval('ledger_reach.\"{name}.{i}\"') > 0; {text[at:]}"
    return text


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Make the sequences, and every function that draws from them."""
    steps = ["create schema ledger_reach", "grant usage on schema ledger_reach to public"]
    for path in schema.function_files():
        function = Function.read(path)
        steps += [f'create sequence ledger_reach."{function.name}.{i}"' for i in statements(function)]
        steps.append(instrumented(function.name))
    steps.append("grant usage on all sequences in schema ledger_reach to public")
    connection.execute(";\n".join(steps))


def reached(connection: psycopg.Connection[Any]) -> list[str]:
    """Where somebody has been since the last time."""
    rows = connection.execute(
        "select c.relname, setval(c.oid, 1, false) from pg_class as c "
        "where c.relnamespace = 'ledger_reach'::regnamespace and pg_sequence_last_value(c.oid) is not null"
    )
    return [row[0] for row in rows]


@cache
def owners(name: str) -> list[int]:
    """For each token the statement that it belongs to; what stands before the first belongs to the first, and a
    condition behind ELSIF to its IF. Empty for a function in SQL."""
    return owners_of(Function.read(file_of(name)))


def owners_of(f: Function) -> list[int]:
    """The same, of a function that was read."""
    starts = list(statements(f))
    if not starts:
        return []
    owner, ifs, found = starts[0], [], []
    for i in range(len(f.tokens)):
        if i in starts:
            owner = i
        if f.word(i) == "if" and f.word(i - 1) == "end":
            ifs.pop()
        elif f.word(i) == "if" and i in starts:
            ifs.append(i)
        elif f.word(i) == "elsif":
            owner = ifs[-1]
        found.append(owner)
    return found
