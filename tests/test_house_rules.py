"""The rules of the house, held by tests and not by a wiki. docs/style.md tells them, one line each."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import psycopg
import pytest

from ledger import calls, records
from ledger.errors import Busy, LedgerError, Refused

CHECKOUT = Path(__file__).parents[1]
GUARDS = sorted((CHECKOUT / "sql/guards").glob("*.sql"))
FUNCTIONS = sorted((CHECKOUT / "sql/functions").glob("*.sql"))
SQL = sorted((CHECKOUT / "sql").rglob("*.sql"))
MODULES = sorted((CHECKOUT / "ledger").rglob("*.py"))
MIGRATIONS = sorted((CHECKOUT / "migrations").rglob("*.py"))
TESTS = sorted((CHECKOUT / "tests").rglob("*.py"))
DOCS = CHECKOUT / "docs"

PRECEDENCE = (
    "LG304", "LG106", "LG107", "LG102", "LG105", "LG101", "LG103", "LG104",
    "LG201", "LG302", "LG301", "LG303", "LG202", "LG203", "LG204",
)  # fmt: skip

# A set-based call answers with a code in place of raising it, the claim has one decision for one row and many, and a
# token is judged once for what is raised and what shadow mode records.
DECIDES_ON_ROWS = {
    "claim_outcome", "add_refunds", "confirm_refunds", "judge_token", "refuse_token", "record_shadow",
    "claim_or_refuse",
}  # fmt: skip

# Whom a module may import; records, errors and gateway are leaves that anyone may.
ARROWS = {
    "errors": set[str](),
    "records": set[str](),
    "gateway": set[str](),
    "observe": set[str](),
    "logs": set[str](),
    "metrics": set[str](),
    "process_metrics": {"observe"},
    "calls": {"records"},
    "client": {"calls", "errors", "observe"},
    "lease": {"client", "errors", "records", "observe"},
    "fencing": {"client", "calls", "lease", "errors"},
    "settlement": {"calls", "gateway", "errors", "records", "observe"},
    "settle": {"settlement", "client", "calls", "lease", "gateway", "errors", "records", "observe"},
    "schema": {"errors"},
    "revision": {"schema"},
    "doctor": {"schema", "lease"},
    "sandbox": {"gateway", "errors"},
    "dev": {"errors"},
    "examples": set[str](),
    "demo": {
        "client", "settle", "settlement", "lease", "schema", "dev", "sandbox", "examples", "gateway", "errors",
        "records",
    },
    "reproduce": {"client", "lease", "schema", "dev", "sandbox", "demo", "gateway", "errors"},
    "commands": {
        "calls", "client", "settle", "settlement", "lease", "schema", "dev", "sandbox", "demo", "examples", "gateway",
        "errors", "records", "observe", "logs", "metrics", "doctor", "reproduce",
    },
    "__main__": {"commands"},
    "__init__": {"client", "lease", "fencing", "errors"},
}  # fmt: skip

RECORDS = {
    "added": records.Added,
    "claim": records.Claim,
    "move": records.Move,
    "row_outcome": records.RowOutcome,
    "finding": records.Finding,
    "kind_limits": records.Kind,
    "attempt": records.Attempt,
    "archived": records.Archived,
    "pruned": records.Pruned,
}
PYTHON_TYPES = {
    "text": "str",
    "bigint": "int",
    "integer": "int",
    "boolean": "bool",
    "interval": "timedelta",
    "timestamp with time zone": "datetime",
    "jsonb": "dict[str, typing.Any]",
}

# What root's servers do can be seen by root alone; a real PgBouncer and Prometheus' promtool come from the system.
WHAT_A_MACHINE_MAY_LACK = {"os.geteuid() != 0", "'there is no pgbouncer here'", "'there is no promtool here'"}

Rows = list[tuple[Any, ...]]


@pytest.fixture
def rows(admin: psycopg.Connection[Any]) -> Callable[..., Rows]:
    """Ask the catalogue of a migrated database."""
    return lambda query, *arguments: admin.execute(query, arguments).fetchall()


def name_of(path: Path) -> str:
    return path.stem


def relative(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def code_of(path: Path) -> str:
    """A file of SQL without its comments, its literals and its quoted names."""
    return re.sub(r"""--[^\n]*|'(?:[^']|'')*'|"[^"]*\"""", "''", path.read_text())


def header_of(path: Path) -> str:
    return "\n".join(re.findall(r"^--.*$", path.read_text().split("create or replace", 1)[0], re.MULTILINE))


def listed_in_header(path: Path) -> list[str]:
    """The codes of a header's list, in its order."""
    _, found, refusals = header_of(path).partition("-- Refuses, first match wins:\n")
    if not found:
        return []
    heads = re.findall(r"^--   ((?:(?:LG\d{3}|55P03|40001)(?:, )?)+)", refusals, re.MULTILINE)
    return [code for head in heads for code in head.split(", ")]


def listed_in_comment(path: Path) -> list[str]:
    comment = path.read_text().split("comment on function", 1)[1]
    return re.findall(r"LG\d{3}|55P03|40001", comment.partition("Refuses")[2])


# SQL, as text


@pytest.mark.parametrize("path", GUARDS + FUNCTIONS, ids=name_of)
def test_a_file_has_its_functions_name(path: Path) -> None:
    assert re.findall(r"create (?:or replace )?function ledger\.(\w+)", path.read_text()) == [path.stem]


def test_no_two_functions_share_a_name(rows: Callable[..., Rows]) -> None:
    found = rows("select proname from pg_proc where pronamespace = 'ledger'::regnamespace order by proname")
    assert [name for (name,) in found] == sorted(path.stem for path in GUARDS + FUNCTIONS)


@pytest.mark.parametrize("path", SQL, ids=name_of)
def test_sql_is_lower_case_without_tabs_in_lines_that_fit(path: Path) -> None:
    text, code = path.read_text(), code_of(path)
    assert code == code.lower()
    assert "\t" not in text
    assert text.endswith("\n")
    assert [line for line in text.splitlines() if len(line) > 120 or line != line.rstrip()] == []


@pytest.mark.parametrize("path", GUARDS, ids=name_of)
def test_guards_call_guards_alone(path: Path) -> None:
    functions = {function.stem for function in FUNCTIONS}
    assert set(re.findall(r"ledger\.(\w+)\s*\(", code_of(path))) & functions == set()


@pytest.mark.parametrize("path", FUNCTIONS, ids=name_of)
def test_a_call_is_described_in_the_words_of_its_parameters(path: Path) -> None:
    literal = re.search(r"call jsonb := jsonb_build_object\((.*?)\);", path.read_text(), re.DOTALL)
    if literal is None:
        return
    first, *pairs = re.findall(r"'(\w+)',\s*('?\w+'?)", literal[1])
    assert first == ("function", f"'{path.stem}'")
    assert [(key, value) for key, value in pairs if key != value] == []


# Codes


def test_each_code_is_raised_in_one_place() -> None:
    raised = [code for path in SQL for code in re.findall(r"errcode = '(\w+)'", path.read_text())]
    assert sorted(raised) == sorted({*PRECEDENCE, "lock_not_available", "serialization_failure"})


def test_nothing_is_raised_without_a_code() -> None:
    raises = [
        (relative(path), re.search(r"errcode", statement) is not None)
        for path in GUARDS + FUNCTIONS
        for statement in re.findall(r"\braise\b[^;]*", code_of(path))
    ]
    assert [path for path, has_code in raises if not has_code] == []


def test_codes_agree_in_sql_errors_and_docs() -> None:
    in_docs = dict(re.findall(r"^### (LG\d{3}) (\w+)$", (DOCS / "errors.md").read_text(), re.MULTILINE))
    assert set(Refused.by_code) == set(PRECEDENCE)
    assert in_docs == {code: error.__name__ for code, error in Refused.by_code.items()}


def test_codes_are_named_where_they_are_raised_and_nowhere_else() -> None:
    strays = [
        (relative(path), literal)
        for path in SQL
        if path.stem not in DECIDES_ON_ROWS
        for literal in re.findall(r"errcode = '\w+'|'(?:[^']|'')*'", re.sub(r"--[^\n]*", "", before_comment(path)))
        if re.search(r"LG\d{3}", literal)
        and not literal.startswith("errcode")
        and not re.search(r"docs/errors\.md, LG\d{3}", literal)
        and literal != "'code is a SQLSTATE of the ledger, like LG101'"
    ]
    assert strays == []


def before_comment(path: Path) -> str:
    return re.sub(r"comment on [^;]*;", "", path.read_text())


@pytest.mark.parametrize("path", GUARDS + FUNCTIONS, ids=name_of)
def test_a_header_names_the_exceptions_by_their_codes(path: Path) -> None:
    named = dict(re.findall(r"^--   (LG\d{3}) (\w+)", header_of(path), re.MULTILINE))
    assert named == {code: Refused.by_code[code].__name__ for code in named}


@pytest.mark.parametrize("path", FUNCTIONS, ids=name_of)
def test_a_function_lists_what_it_refuses_in_order_in_both_places(path: Path) -> None:
    in_header = listed_in_header(path)
    assert in_header == listed_in_comment(path)
    assert [code for code in in_header if code in PRECEDENCE] == [code for code in PRECEDENCE if code in in_header]


@pytest.mark.parametrize("path", FUNCTIONS, ids=name_of)
def test_a_builder_raises_what_its_function_refuses(path: Path) -> None:
    classes: dict[str, type[LedgerError]] = {"55P03": Busy, **Refused.by_code}
    assert raised_by(path.stem) == {classes[code].__name__ for code in listed_in_comment(path)}


def raised_by(name: str) -> set[str]:
    """What a builder's docstring says it raises; it may say: what another one raises, except these."""
    text = " ".join((inspect.getdoc(getattr(calls, name)) or "").split())
    says = text.partition("Raises ")[2].partition(".")[0]
    like = re.match(r"what (\w+) raises(?:, except (.*))?$", says)
    if like is None:
        return set(re.findall(r"[A-Z]\w+", says))
    return raised_by(like[1]) - set(re.findall(r"[A-Z]\w+", like[2] or ""))


# The catalogue


def test_everything_has_a_comment(rows: Callable[..., Rows]) -> None:
    bare = rows(
        """
        select 'function ' || p.oid::regprocedure from pg_proc as p
        where p.pronamespace = 'ledger'::regnamespace and obj_description(p.oid, 'pg_proc') is null
        union all
        select 'relation ' || c.oid::regclass from pg_class as c
        where c.relnamespace = 'ledger'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')
            and obj_description(c.oid, 'pg_class') is null
            and not exists (
                select from pg_depend as d
                where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'
            )
        union all
        select 'type ' || t.oid::regtype from pg_type as t
        left join pg_class as c on c.oid = t.typrelid
        where t.typnamespace = 'ledger'::regnamespace and (c.relkind = 'c' or t.typtype in ('d', 'e', 'r'))
            and obj_description(t.oid, 'pg_type') is null
        union all
        select 'column ' || c.oid::regclass || '.' || a.attname from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'ledger'::regnamespace and c.relkind in ('r', 'p')
            and col_description(c.oid, a.attnum) is null
        union all
        select 'schema' where obj_description('ledger'::regnamespace, 'pg_namespace') is null
        """
    )
    assert bare == []


def test_plpgsql_functions_pin_their_search_path(rows: Callable[..., Rows]) -> None:
    unpinned = rows(
        """
        select p.proname from pg_proc as p join pg_language as l on l.oid = p.prolang
        where p.pronamespace = 'ledger'::regnamespace and l.lanname = 'plpgsql'
            and not coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']
        """
    )
    assert unpinned == []


def test_sql_functions_are_bound_when_created_and_so_need_no_search_path(rows: Callable[..., Rows]) -> None:
    unbound = rows(
        """
        select p.proname from pg_proc as p join pg_language as l on l.oid = p.prolang
        where p.pronamespace = 'ledger'::regnamespace and l.lanname <> 'plpgsql'
            and (l.lanname <> 'sql' or p.prosqlbody is null or p.proconfig is not null)
        """
    )
    assert unbound == []


def test_functions_run_with_the_ledgers_rights_and_guards_with_their_callers(rows: Callable[..., Rows]) -> None:
    definers = rows("select proname from pg_proc where pronamespace = 'ledger'::regnamespace and prosecdef")
    functions = {path.stem for path in FUNCTIONS}
    # Triggers are made by the table's owner, as itself; what they run, and the entry, is ours.
    as_the_owner = {"protect_table", "unprotect_table"}
    for_other_tables = {"register_table", "unregister_table", "missing_triggers", "check_write", "check_row"}
    assert {name for (name,) in definers} == functions - as_the_owner | for_other_tables | {"refuse_unfenced_write"}


@pytest.mark.parametrize("name", [path.stem for path in FUNCTIONS])
def test_parameters_have_the_same_names_types_and_defaults_in_sql_and_in_calls(
    name: str, rows: Callable[..., Rows]
) -> None:
    ((names, types, defaults),) = rows(
        """
        select coalesce(p.proargnames, '{}'),
            array(select format_type(t, null) from unnest(p.proargtypes) with ordinality as a (t, i) order by i),
            p.pronargdefaults
        from pg_proc as p where p.pronamespace = 'ledger'::regnamespace and p.proname = %s
        """,
        name,
    )
    parameters = inspect.signature(getattr(calls, name)).parameters.values()
    assert [parameter.name for parameter in parameters] == names
    assert [calls.TYPES[parameter.name] for parameter in parameters] == types
    optional = [parameter.name for parameter in parameters if parameter.default is not inspect.Parameter.empty]
    assert optional == names[len(names) - defaults :]


def test_every_function_has_a_builder_and_every_builder_a_function() -> None:
    builders = {
        name
        for name, function in inspect.getmembers(calls, inspect.isfunction)
        if function.__module__ == calls.__name__ and not name.startswith("_")
    }
    assert builders == {path.stem for path in FUNCTIONS}


def test_every_named_type_belongs_to_a_parameter() -> None:
    used = {name for path in FUNCTIONS for name in inspect.signature(getattr(calls, path.stem)).parameters}
    assert set(calls.TYPES) == used


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_records_have_the_columns_of_the_types_in_sql(name: str, rows: Callable[..., Rows]) -> None:
    attributes = rows(
        """
        select a.attname, format_type(a.atttypid, null) from pg_attribute as a
        where a.attrelid = ('ledger.' || %s)::regclass and a.attnum > 0 order by a.attnum
        """,
        name,
    )
    hints = get_type_hints(RECORDS[name])
    plain = [(field.name, plain_name(hints[field.name])) for field in dataclasses.fields(RECORDS[name])]
    assert plain == [(column, PYTHON_TYPES[sql_type]) for column, sql_type in attributes]


def plain_name(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return str(text).removesuffix(" | None").removeprefix("datetime.")


def test_the_defaults_of_a_kind_are_those_of_its_table(admin: psycopg.Connection[Any]) -> None:
    limits = "lock, mode, lease_ttl, idle_limit, lock_limit, transaction_limit, max_attempts, key_window"
    told = admin.execute(f"select {limits} from ledger.get_kind('never-used')").fetchone()
    admin.execute("set role ledger_fn")
    written = admin.execute(f"insert into ledger.kind (kind) values ('never-used') returning {limits}").fetchone()
    assert told == written


# Python


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_run_one_way(path: Path) -> None:
    layer = layer_of(path)
    assert layer in ARROWS, "a new module needs its place among the arrows"
    assert imported_layers(path) - {layer} <= ARROWS[layer]


def layer_of(path: Path) -> str:
    return path.relative_to(CHECKOUT / "ledger").parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, "no import reaches out of its package by dots"
            names = [f"{node.module}.{alias.name}" for alias in node.names if node.level == 0]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("ledger.")}
    return found - {"__version__"}


@pytest.mark.parametrize("leaf", ["errors", "records", "gateway"])
def test_a_leaf_loads_nothing_else(leaf: str) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, ledger.{leaf}; print(*sys.modules)"],
        cwd=CHECKOUT, text=True, capture_output=True, check=True,
    ).stdout.split()  # fmt: skip
    assert {name for name in loaded if re.match(r"(ledger|psycopg|redis|alembic|click)\b", name)} == {
        "ledger", f"ledger.{leaf}",
    }  # fmt: skip


def test_the_doorway_opens_on_the_commands_alone() -> None:
    assert imported_layers(CHECKOUT / "cli.py") == {"commands"}


@pytest.mark.parametrize("path", [*MODULES, *MIGRATIONS, CHECKOUT / "cli.py"], ids=relative)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", TESTS, ids=relative)
def test_no_test_is_skipped(path: Path) -> None:
    ways_out = {"skip", "skipif", "xfail", "importorskip"}
    taken = [
        ast.unparse(node.args[0])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ways_out
    ]
    assert set(taken) <= WHAT_A_MACHINE_MAY_LACK


# The tree


def texts() -> Iterator[Path]:
    made = re.compile(r"/(?:\.git$|(?:\.git|\.venv|build|dist|__pycache__|\.\w+_cache|\.hypothesis|[^/]*\.egg-info)/)")
    for path in sorted(CHECKOUT.rglob("*")):
        if path.is_file() and not made.search(f"/{path.relative_to(CHECKOUT)}"):
            yield path


def test_the_tree_names_no_machine_it_was_made_on() -> None:
    place = re.compile(r"/wor[k]/|/tmp/(?:v|pla[n])/|/hom[e]/\w|/User[s]/\w")
    assert [relative(path) for path in texts() if place.search(path.read_text(errors="replace"))] == []


def test_each_rule_of_the_house_names_a_test() -> None:
    rules = re.findall(r"^- .*(?:\n  .*)*", (DOCS / "style.md").read_text(), re.MULTILINE)
    named = [re.findall(r"`(test_\w+)`", rule) for rule in rules]
    assert rules, "the page lists the rules"
    assert [rule for rule, tests in zip(rules, named, strict=True) if not tests] == []


def test_every_test_that_a_page_names_exists() -> None:
    defined = {
        node.name
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    modules = {path.stem for path in TESTS}
    named = {
        (page.name, test)
        for page in sorted(DOCS.rglob("*.md"))
        for test in re.findall(r"\b(test_\w+)\b(?!\.py)", page.read_text())
    }
    assert {(page, test) for page, test in named if test not in defined | modules} == set()
