"""Every way in which one decision or one effect of the SQL can be broken, from the files themselves.

A mutant's id is its function, what was done, where (the how-manieth of its like in the function) and to what: it
stays the same while the file around it changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cache

from ledger import schema
from tests.proof.mutants.tokens import ENDS_A_CLAUSE, Function
from tests.proof.sql_files import file_of

STATES = ("pending", "sending", "sent", "failed", "unknown", "accepted", "review", "cancelled", "returned")
WORDS = (
    STATES,
    ("claimed", "reclaimed", "taken_over"),
    ("attempts_used_up", "key_window_over"),
    ("confirmed", "already_confirmed"),
    ("added", "already"),
    ("off", "shadow", "enforce"),
    ("redis", "advisory"),
    ("activated", "session_ended"),
    ("LG101", "LG202", "LG204", "LG201", "LG303", "LG301"),
    ("begun", "done", "repeated"),
)

# The functions of a refund under a token, those that hand one out and make it active, the triggers of the guard, the
# moves of persons, and what writes of one's own go by.
FENCED = (
    "claim_refund",
    "confirm_refund",
    "accept_refund",
    "fail_refund",
    "release_refund",
    "mark_unknown",
    "draw_token",
    "activate_token",
    "guard_write",
    "guard_archive",
    "guard_pruning",
    "claim_refunds",
    "confirm_refunds",
    "cancel_refund",
    "review_refund",
    "resolve_refund",
    "requeue_refund",
    "return_refund",
    "present_token",
    "present_tokens",
    "lock_job",
    "begin_attempt",
    "end_attempt",
)
# Who only says what happened, or would in enforce: the words of refusals are held by tests/test_errors.py. And who only
# shortens a wait: a frozen client is tests/test_frozen.py's and the faults'.
TELLS = re.compile(
    r"^(refuse_(?!token$)|lock_holders$|session_names$|refusal_detail$|refused_call$|end_frozen_sessions$"
    r"|record_shadow$)"
)
QUIET = re.compile(r"^(jsonb_build_object|format|ledger\.refuse_\w+|ledger\.check_housekeeping)$")
OPPOSITE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=", "~": "!~", "!~": "~"}
ORDERED = re.compile(r"token|fence|active|barrier|attempts$|number$|_at$")
LOCKS = {
    "pg_try_advisory_xact_lock_shared": "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock": "pg_try_advisory_xact_lock_shared",
    "pg_advisory_xact_lock_shared": "pg_advisory_xact_lock",
    "pg_advisory_xact_lock": "pg_advisory_xact_lock_shared",
}


@dataclass(frozen=True)
class Mutant:
    """One break: the SQL that makes it in a database, and what a reader sees of it."""

    id: str
    function: str
    sql: str
    shows: str
    replaces: str | None
    settings: tuple[str, ...] = ("on", "off")
    at: int = 0  # the token of the function where it begins


@dataclass(frozen=True)
class Mutated:
    """What is put into a database, and the function that it replaces; None when it is something else."""

    sql: str
    function: str | None


@dataclass(frozen=True)
class Edit:
    """Put `new` where the tokens from `first` to `last` are. `name` and `token` go into the id."""

    name: str
    token: str
    first: int
    last: int
    new: str


Rule = Callable[[Function], Iterator[Edit]]


def mutants() -> list[Mutant]:
    """All of them, in the order of the files."""
    made = [mutant for name in in_scope() for mutant in of_function(name)]
    return [*made, *of_triggers(), *of_constraints()]


@cache
def _calls() -> dict[str, tuple[str, ...]]:
    """What each function and guard calls."""
    known = {path.stem: Function.read(path) for path in schema.function_files()}
    return {name: tuple(_called(function, known)) for name, function in known.items()}


def _called(function: Function, known: Container[str]) -> Iterator[str]:
    for i in _loud(function):
        name = function.word(i).removeprefix("ledger.")
        if function.word(i + 1) == "(" and name in known and name != function.name:
            yield name


def in_scope() -> list[str]:
    """The fenced functions, then the guards that they rest on."""
    reached: dict[str, None] = {}
    todo = list(FENCED)
    while todo:
        name = todo.pop(0)
        if name not in reached and not TELLS.match(name):
            reached[name] = None
            todo += _calls()[name]
    return list(reached)


def callers(name: str) -> frozenset[str]:
    """The functions that call this one, however deep."""
    found, todo = set(), [name]
    while todo:
        called = todo.pop()
        new = {caller for caller, calls in _calls().items() if called in calls} - found
        found |= new
        todo += new
    return frozenset(found)


def of_function(name: str) -> list[Mutant]:
    """The mutants of one function."""
    function = Function.read(file_of(name))
    seen: Counter[tuple[str, str]] = Counter()
    made, texts = [], {function.text}
    for rule in RULES:
        for edit in rule(function):
            begin, end = function.tokens[edit.first].start, function.tokens[edit.last].end
            text = function.text[:begin] + edit.new + function.text[end:]
            seen[edit.name, edit.token] += 1
            if text in texts:
                continue
            texts.add(text)
            was = " ".join(function.text[begin:end].split())
            line = function.text.count("\n", 0, begin) + 1
            made.append(
                Mutant(
                    f"{name}:{edit.name}:{seen[edit.name, edit.token]}:{edit.token}",
                    name,
                    text,
                    f"line {line} of the function: {was[:90]} -> {' '.join(edit.new.split())[:90] or '(nothing)'}",
                    name,
                    # Where its triggers are off nobody calls it.
                    ("on",) if name == "guard_write" else ("on", "off"),
                    edit.first,
                )
            )
    return made


def _loud(f: Function) -> Iterator[int]:
    """The tokens of a body that decide or do something; not the words of what is told."""
    raising = False
    for i in range(f.body, len(f.tokens)):
        raising = f.word(i) == "raise" or (raising and f.word(i) != ";")
        if not raising and not any(QUIET.match(name) for name in f.tokens[i].inside):
            yield i


def _assignments(f: Function) -> dict[int, list[tuple[int, int]]]:
    """The lists behind SET, by where they begin."""
    found = {}
    for i in range(f.body, len(f.tokens)):
        if f.word(i) == "set":
            level = f.tokens[i].level
            last = next(
                j
                for j in range(i + 1, len(f.tokens))
                if f.tokens[j].level < level
                or (f.tokens[j].level == level and f.word(j) in {"where", "from", "returning", ";"})
            )
            found[i] = f.items(i + 1, last - 1)
    return found


def compare(f: Function) -> Iterator[Edit]:
    """A comparison is another one."""
    assigned = {first + 1 for parts in _assignments(f).values() for first, _ in parts}
    for i in _loud(f):
        word = f.word(i)
        if word not in OPPOSITE or f.tokens[i].kind != "op" or i in assigned:
            continue
        others = OPPOSITE[word].split()
        sides = (f.word(i - 1), f.word(i + 1))
        if word == "=" and all(ORDERED.search(side) for side in sides):
            others += ["<=", ">="]
            if [sides[0], ">", sides[1]] in _arms_before(f, i):
                others.remove(">=")
        for other in others:
            yield Edit(f"compare({other})", word, i, i, other)


def _arms_before(f: Function, i: int) -> list[list[str]]:
    """The conditions of the same CASE that are looked at before the one of the token: what they catch doesn't come."""
    begin, level = i, f.tokens[i].level
    while begin > f.body and not (f.word(begin) == "case" and f.tokens[begin].level < level):
        begin -= 1
        level = min(level, f.tokens[begin].level + (f.word(begin) == "case"))
    arms = [j for j in range(begin, i) if f.word(j) == "when" and f.tokens[j].level == f.tokens[begin].level + 1]
    ends = [f.end_of_clause(j + 1, frozenset({"then"})) for j in arms]
    return [[f.word(k) for k in range(j + 1, end + 1)] for j, end in zip(arms, ends, strict=True) if end < i]


def negate(f: Function) -> Iterator[Edit]:
    """NOT where there is none, and none where there is one."""
    for i in _loud(f):
        word, before, after = f.word(i), f.word(i - 1), f.word(i + 1)
        if word == "not" and before != "is" and after != "null":
            yield Edit("negate", f"not {after}", i, i, "")
        elif word == "is" and after == "not":
            yield Edit("negate", f"is not {f.word(i + 2)}", i, i + 1, "is")
        elif word == "is" and after in {"null", "distinct"}:
            yield Edit("negate", f"is {after}", i, i, "is not")
        elif word in {"between", "exists", "like"} or (word == "in" and after == "("):
            if before not in {"not", "if"}:
                yield Edit("negate", word, i, i, f"not {word}")
        elif word == "found" and before in {"if", "when"}:
            yield Edit("negate", word, i, i, "not found")


STARTS = frozenset({"if", "elsif", "when", "where", "on", "return", "then", "else", "select", "exit"})


def _operands(f: Function) -> Iterator[list[tuple[int, int]]]:
    """The chains of AND and OR, as the operands of each."""
    loud = set(_loud(f))
    done: set[int] = set()
    for i in sorted(loud):
        if f.word(i) not in {"and", "or"} or i in done or _is_range(f, i):
            continue
        level = f.tokens[i].level
        first = i
        while first > f.body:
            before = f.tokens[first - 1]
            if before.level < level or (
                before.level == level and (before.text in STARTS or before.text in {",", ";", ":="})
            ):
                break
            first -= 1
        last = f.end_of_clause(i)
        chain, begin = [], first
        for j in range(first, last + 1):
            if f.tokens[j].level == level and f.word(j) in {"and", "or"} and not _is_range(f, j):
                done.add(j)
                chain.append((begin, j - 1))
                begin = j + 1
        yield [*chain, (begin, last)]


def _is_range(f: Function, i: int) -> bool:
    """Whether this AND belongs to a BETWEEN."""
    level = f.tokens[i].level
    for j in range(i - 1, f.body, -1):
        if f.tokens[j].level < level:
            return False
        if f.tokens[j].level == level:
            if f.word(j) == "between":
                return f.word(i) == "and"
            if f.word(j) in {"and", "or"} or f.word(j) in ENDS_A_CLAUSE or f.word(j) in {",", ";"}:
                return False
    return False


def drop_operand(f: Function) -> Iterator[Edit]:
    """One condition of several is gone."""
    for chain in _operands(f):
        for n, (first, last) in enumerate(chain):
            token = f.source(first, last)
            token = " ".join(token.split())[:40]
            if n == 0:
                yield Edit("drop", token, first, chain[1][0] - 1, "")
            else:
                yield Edit("drop", token, first - 1, last, "")


def decide(f: Function) -> Iterator[Edit]:
    """A branch is never taken; a filter lets all through."""
    for i in _loud(f):
        word, level = f.word(i), f.tokens[i].level
        if word in {"if", "elsif"} and f.word(i - 1) != "end":
            yield Edit("never", _head(f, i + 1), i + 1, f.end_of_clause(i + 1, frozenset({"then"})), "false")
        elif word == "when" and f.word(i - 1) == "exit":
            yield Edit("at once", _head(f, i + 1), i + 1, f.end_of_clause(i + 1, frozenset()), "true")
        elif word == "when" and _is_searched(f, i):
            yield Edit("never", _head(f, i + 1), i + 1, f.end_of_clause(i + 1, frozenset({"then"})), "false")
        elif word in {"where", "on"} and f.word(i + 1) not in {"conflict", "constraint", "true"} and level >= 0:
            last = f.end_of_clause(i + 1)
            yield Edit("all", _head(f, i + 1), i + 1, last, "true")


def _is_searched(f: Function, i: int) -> bool:
    """Whether this WHEN is an arm of `case when ... then`: not of `case x when`, not a handler of exceptions."""
    level = f.tokens[i].level
    for j in range(i - 1, f.body, -1):
        if f.tokens[j].level < level:
            return f.word(j) == "case" and f.word(j + 1) == "when"
    return False


def _head(f: Function, i: int) -> str:
    return " ".join(f.source(i, min(i + 2, len(f.tokens) - 1)).split())


def lists(f: Function) -> Iterator[Edit]:
    """A list of states has one too few or one too many. Where a list repeats one, what it isn't in doesn't come."""
    seen: list[list[str]] = []
    for i in _loud(f):
        if not (f.word(i) == "(" and f.word(i - 1) == "in") and not (f.word(i) == "[" and f.word(i - 1) == "array"):
            continue
        items = f.items(i + 1, f.closing(i) - 1)
        if not items or any(first != last or f.tokens[first].kind == "name" for first, last in items):
            continue
        words = [f.word(first) for first, _ in items]
        for n, word in enumerate(words):
            if len(words) > 1:
                left = ", ".join([*words[:n], *words[n + 1 :]])
                yield Edit("list without", word, items[0][0], items[-1][1], left)
        if {word.strip("'") for word in words} <= set(STATES) and words not in seen:
            seen.append(words)
            caught = {word for arm in _arms_before(f, i) if arm[:2] == [f.word(i - 2), "in"] for word in arm}
            for state in STATES:
                if f"'{state}'" not in caught.union(words):
                    yield Edit("list with", state, items[0][0], items[-1][1], ", ".join([*words, f"'{state}'"]))


def words(f: Function) -> Iterator[Edit]:
    """A state, an outcome, a mode or a code is another one."""
    for i in _loud(f):
        if f.tokens[i].kind != "string":
            continue
        word = f.word(i).strip("'")
        for known in WORDS:
            if word in known:
                other = known[(known.index(word) + 1) % len(known)]
                yield Edit("word", word, i, i, f"'{other}'")
                break


def numbers(f: Function) -> Iterator[Edit]:
    """A number is one more. Units, how often a loop tries, and whether a limit begins at 1 or 2 ms decide nothing."""
    for i in _loud(f):
        if f.tokens[i].kind != "number" or "." in f.word(i):
            continue
        if f.word(i - 1) in {"*", "/", "..", "offset", "by"} or f.word(i + 1) == "..":
            continue
        if f.word(i + 2).endswith("_ms"):
            continue
        yield Edit("number", f.word(i), i, i, str(int(f.word(i)) + 1))


def assign(f: Function) -> Iterator[Edit]:
    """What a row should get isn't written."""
    for parts in _assignments(f).values():
        for n, (first, last) in enumerate(parts):
            if len(parts) == 1:
                continue
            if n + 1 < len(parts):
                yield Edit("unset", f.word(first), first, parts[n + 1][0] - 1, "")
            else:
                yield Edit("unset", f.word(first), parts[n - 1][1] + 1, last, "")


def insert(f: Function) -> Iterator[Edit]:
    """What a new row should get isn't written."""
    for i in _loud(f):
        if not (f.word(i) == "insert" and f.word(i + 3) == "("):
            continue
        columns = f.items(i + 4, f.closing(i + 3) - 1)
        after = f.closing(i + 3) + 1
        if f.word(after) == "values":
            values = f.items(after + 2, f.closing(after + 1) - 1)
        elif f.word(after) == "select":
            values = _select_list(f, after)
        else:
            continue
        if len(columns) != len(values):
            raise ValueError(f"{f.name} inserts {len(columns)} columns by {len(values)} values")
        for n, (first, _) in enumerate(columns):
            if len(columns) > 1:
                names = [f.source(*c) for k, c in enumerate(columns) if k != n]
                given = [f.source(*v) for k, v in enumerate(values) if k != n]
                middle = f.source(columns[-1][1] + 1, values[0][0] - 1)
                new = f"{', '.join(names)} {middle} {', '.join(given)}"
                yield Edit("not inserted", f.word(first), columns[0][0], values[-1][1], new)


def _select_list(f: Function, select: int) -> list[tuple[int, int]]:
    """The items of a SELECT."""
    level = f.tokens[select].level
    last = next(
        j
        for j in range(select + 1, len(f.tokens))
        if f.tokens[j].level < level
        or (f.tokens[j].level == level and f.word(j) in {"from", "into", "where", "on", ";"})
    )
    return f.items(select + 1, last - 1)


def answer(f: Function) -> Iterator[Edit]:
    """What is returned, or read for a decision, is null."""
    for i in _loud(f):
        items = []
        if f.word(i) == "row" and f.word(i + 1) == "(":
            items = f.items(i + 2, f.closing(i + 1) - 1)
        elif f.word(i) == "select" and f.tokens[i].level == 0:
            items = _select_list(f, i)
            if not items or f.word(items[-1][1] + 1) != "into":
                continue
        for first, last in items:
            text = " ".join(f.source(first, last).split())
            if text != "null" and not text.endswith("*"):
                yield Edit("null", text[:40], first, last, "null")


def statements(f: Function) -> Iterator[Edit]:
    """A statement is left out."""
    last_return = max((i for i in range(len(f.tokens)) if f.word(i) == "return"), default=-1)
    for i in range(f.block + 1, len(f.tokens)):
        if f.tokens[i].level or f.word(i - 1) not in {";", "then", "else", "begin", "loop"}:
            continue
        word = f.word(i)
        assigns = f.tokens[i].kind == "name" and f.word(i + 1) == ":="
        if word in {"perform", "update", "insert", "delete"} or assigns or (word == "return" and i != last_return):
            last = next(j for j in range(i, len(f.tokens)) if f.word(j) == ";")
            yield Edit("left out", _head(f, i), i, last, "null;")


def locks(f: Function) -> Iterator[Edit]:
    """A lock is not taken, or in the other mode."""
    for i in _loud(f):
        word, after = f.word(i), f.word(i + 1)
        if word == "for" and after in {"no", "key", "update", "share"}:
            last = i + {"no": 3, "key": 2}.get(after, 1)
            yield Edit("unlocked", f.source(i, last), i, last + 2 * (f.word(last + 1) == "skip"), "")
        elif word == "skip" and after == "locked":
            yield Edit("unlocked", "skip locked", i, i + 1, "")
        elif word in LOCKS:
            yield Edit("lock", word, i, i, LOCKS[word])
            if word.startswith("pg_try"):
                yield Edit("lock none", word, i, f.closing(i + 1), "true")


def rows(f: Function) -> Iterator[Edit]:
    """Rows come in no order, without limit, or twice; a conflict is an error; null stays null."""
    for i in _loud(f):
        word, after = f.word(i), f.word(i + 1)
        if word == "order" and after == "by" and not _aggregates(f, i):
            yield Edit("unordered", _head(f, i + 2), i, f.end_of_clause(i + 2), "")
        elif word == "limit" and after != ":=" and f.tokens[i].level:
            yield Edit("unlimited", after, i, i + 1, "")
        elif word == "distinct" and f.word(i - 1) == "select":
            yield Edit("repeated", word, i, i, "")
        elif word == "on" and after == "conflict" and f.word(i + 2) == "do" and f.word(i + 3) == "nothing":
            yield Edit("conflict", word, i, i + 3, "")
        elif word == "coalesce" and after == "(":
            items = f.items(i + 2, f.closing(i + 1) - 1)
            yield Edit("null stays", _head(f, i + 2), i, f.closing(i + 1), f"({f.source(*items[0])})")


def _aggregates(f: Function, i: int) -> bool:
    """Whether this ORDER BY is an aggregate's or a window's: not that of a SELECT."""
    level = f.tokens[i].level
    for j in range(i - 1, f.body, -1):
        if f.tokens[j].level < level:
            return f.word(j + 1) != "select"
    return False


def attributes(f: Function) -> Iterator[Edit]:
    """The function runs with its caller's rights, or looks names up where its caller says."""
    for i in range(f.body):
        if f.word(i) == "security":
            yield Edit("attribute", "security definer", i, i + 1, "")
        elif f.word(i) == "set" and f.word(i + 1) == "search_path":
            yield Edit("attribute", "search_path", i, i + 5, "")


RULES: tuple[Rule, ...] = (
    compare,
    negate,
    drop_operand,
    decide,
    lists,
    words,
    numbers,
    assign,
    insert,
    answer,
    statements,
    locks,
    rows,
    attributes,
)


def _schema_text(name: str) -> str:
    text = (schema.SQL / "schema" / name).read_text(encoding="utf-8")
    return re.sub(r"--[^\n]*", "", text)


def guard_triggers() -> list[tuple[str, str]]:
    """The triggers that functions_end.sql makes, each with its table."""
    made = re.findall(r"\('(_is_\w+)',.*?array\[(.*?)\]", _schema_text("functions_end.sql"), re.DOTALL)
    return [(table, table + end) for end, tables in made for table in re.findall(r"\w+", tables)]


def of_triggers() -> Iterator[Mutant]:
    """A guard trigger is missing, or is an ordinary one that session_replication_role switches off."""
    for table, name in guard_triggers():
        # Without the triggers of guard_write those of them that are missing are no mutants.
        settings = ("on",) if name.endswith("_is_guarded") else ("on", "off")
        missing, ordinary = (
            f"drop trigger {name} on ledger.{table}",
            f"alter table ledger.{table} enable trigger {name}",
        )
        yield Mutant(f"trigger:missing:1:{name}", "trigger", missing, "dropped", None, settings)
        yield Mutant(f"trigger:ordinary:1:{name}", "trigger", ordinary, "not ENABLE ALWAYS", None, settings)


def of_constraints() -> Iterator[Mutant]:
    """A constraint that has a name is missing."""
    text = _schema_text("0002_ledger.sql")
    for what, owner, body in re.findall(r"create (table|domain) (ledger\.\w+)(.*?);\n", text, re.DOTALL):
        for name in re.findall(r"constraint (\w+)", body):
            sql = f"alter {what} {owner} drop constraint {name} cascade"
            yield Mutant(f"constraint:missing:1:{name}", "constraint", sql, f"dropped from {owner}", None)
