"""The SQL of a function as tokens, with how deep each one stands in brackets and CASE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
      | (?P<string>'(?:[^']|'')*')
      | (?P<number>\d+(?:\.\d+)?(?!\w))
      | (?P<name>[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*|"[^"]+")
      | (?P<op>\$\$|:=|::|\.\.|->>|->|<=|>=|<>|!~|\|\||@>|[-+*/%<>=~?&|,;()\[\].:])""",
    re.VERBOSE | re.IGNORECASE,
)
ENDS_A_CLAUSE = frozenset(
    re.findall(
        r"\w+",
        "then loop where from returning group order limit for window union offset into on left join cross end else "
        "when as set values select",
    )
)


@dataclass(frozen=True)
class Token:
    """A word of SQL. `inside` names the functions whose arguments it stands in, the innermost last."""

    text: str
    kind: str
    start: int
    end: int
    level: int
    inside: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """One file of sql/functions or sql/guards: its text from `create` to the end of the body."""

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Function:
        """Leave out the comment before it, and what follows the body."""
        text = path.read_text(encoding="utf-8")
        begin, end = text.index("create or replace function"), text.index("\ncomment on function")
        return cls(path.stem, text[begin:end].rstrip() + "\n")

    @cached_property
    def tokens(self) -> list[Token]:
        """All of them, without spaces and comments."""
        return list(_tokens(self.text))

    @cached_property
    def body(self) -> int:
        """Where the body begins: the token after `$$`, or the `return` of a function in SQL."""
        for i, token in enumerate(self.tokens):
            if token.text == "$$" or (token.text == "return" and token.level == 0):
                return i + 1 if token.text == "$$" else i
        raise ValueError(f"{self.name} has no body")

    @cached_property
    def block(self) -> int:
        """Where the first statement begins: after the declarations."""
        begins = (i for i in range(self.body, len(self.tokens)) if self.tokens[i].text == "begin")
        return next(begins, len(self.tokens))

    def word(self, i: int) -> str:
        """The text of a token; empty beyond either end."""
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def source(self, first: int, last: int) -> str:
        """The text of the tokens from `first` to `last`."""
        return self.text[self.tokens[first].start : self.tokens[last].end]

    def end_of_clause(self, first: int, stops: frozenset[str] = ENDS_A_CLAUSE) -> int:
        """The last token of the clause that begins at `first`, at its level."""
        level = self.tokens[first].level
        for i in range(first, len(self.tokens)):
            token = self.tokens[i]
            ends = token.text in stops or token.text in {",", ";", "$$"}
            if token.level < level or (token.level == level and ends and self.word(i - 1) != "distinct"):
                return i - 1
        return len(self.tokens) - 1

    def closing(self, opening: int) -> int:
        """The bracket that closes the one at `opening`."""
        level = self.tokens[opening].level
        return next(
            i for i in range(opening + 1, len(self.tokens)) if self.tokens[i].level == level and self.word(i) in ")]"
        )

    def items(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts between the commas of a list."""
        parts, begin = [], first
        level = self.tokens[first].level if first <= last else 0
        for i in range(first, last + 1):
            if self.word(i) == "," and self.tokens[i].level == level:
                parts.append((begin, i - 1))
                begin = i + 1
        return [*parts, (begin, last)] if first <= last else []


def _tokens(text: str) -> Iterator[Token]:
    stack: list[tuple[str, str]] = []
    before = ""
    position = 0
    while position < len(text):
        found = TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"no token of SQL: {text[position : position + 40]!r}")
        position = found.end()
        if found.lastgroup == "space":
            continue
        word = found.group()
        kind = str(found.lastgroup)
        if word in {")", "]"} or (word == "end" and stack and stack[-1][0] == "case"):
            stack.pop()
        inside = tuple(caller for _, caller in stack if caller)
        yield Token(word, kind, found.start(), found.end(), len(stack), inside)
        if word in {"(", "["}:
            stack.append((word, before if word == "(" else ""))
        elif word == "case":
            stack.append(("case", ""))
        before = word if kind == "name" else ""
