"""The reference of the SQL side, written from what the catalog says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from ledger import errors

if TYPE_CHECKING:
    import psycopg

PREFACE = """# SQL reference

Written by `ledger db docs` from the comments and grants in the catalog; a change belongs there, not here. In psql,
`\\df+ ledger.*`, `\\d+ ledger.*` and `\\dT+ ledger.*` say the same. What a refusal asks for is in
[errors.md](errors.md).
"""

# As the files of sql/ spell them, whatever the search_path of the session is.
PATH: LiteralString = "set local search_path = pg_catalog, pg_temp"

RELATIONS: LiteralString = """
    select c.relname, obj_description(c.oid, 'pg_class'),
        array(
            select array[
                a.attname, format_type(a.atttypid, a.atttypmod), case when a.attnotnull then '' else 'yes' end,
                coalesce(
                    pg_get_expr(d.adbin, d.adrelid), case when a.attidentity <> '' then 'identity' end, ''
                ),
                coalesce(col_description(c.oid, a.attnum), '')
            ]
            from pg_attribute as a
            left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            order by a.attnum
        ),
        array(
            select array[k.conname, pg_get_constraintdef(k.oid)]
            from pg_constraint as k where k.conrelid = c.oid and k.contype in ('p', 'u', 'c', 'f')
            order by array_position(array['p', 'u', 'f', 'c']::"char"[], k.contype), k.conname
        ),
        array(
            select array[i.relname, regexp_replace(pg_get_indexdef(i.oid), '^CREATE (UNIQUE )?INDEX .* USING ', '')]
            from pg_index as x join pg_class as i on i.oid = x.indexrelid
            where x.indrelid = c.oid and not exists (select from pg_constraint as k where k.conindid = i.oid)
            order by i.relname
        )
    from pg_class as c
    where c.relnamespace = 'ledger'::regnamespace and c.relkind = %s
    order by c.relname
"""
TYPES: LiteralString = """
    select t.typname, obj_description(t.oid, 'pg_type'),
        case t.typtype
            when 'd' then format_type(t.typbasetype, t.typtypmod)
            else (
                select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum)
                from pg_attribute as a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
            )
        end
    from pg_type as t left join pg_class as c on c.oid = t.typrelid
    where t.typnamespace = 'ledger'::regnamespace and (t.typtype = 'd' or c.relkind = 'c')
    order by t.typname
"""
SEQUENCES: LiteralString = """
    select c.relname, obj_description(c.oid, 'pg_class')
    from pg_class as c
    where c.relnamespace = 'ledger'::regnamespace and c.relkind = 'S' and obj_description(c.oid, 'pg_class') is not null
    order by c.relname
"""
FUNCTIONS: LiteralString = """
    select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
        obj_description(p.oid, 'pg_proc'), p.prosrc,
        array(
            select r.rolname from pg_roles as r
            where r.rolname in ('ledger_worker', 'ledger_operator', 'ledger_reader')
                and has_function_privilege(r.oid, p.oid, 'execute')
            order by r.rolname desc
        )
    from pg_proc as p
    where p.pronamespace = 'ledger'::regnamespace
    order by p.proname
"""
MOVES: LiteralString = """
    select coalesce(t.from_state, ''), t.to_state,
        concat_ws(', ',
            case when t.on_claim then 'claim' end,
            case when t.own_token then 'own token' end,
            case when t.active_token then 'active token' end,
            case when t.person then 'person' end
        ),
        coalesce(t.debit || ' to ' || t.credit, '')
    from ledger.transition as t
    order by array_position(
        array['pending', 'sending', 'unknown', 'accepted', 'review', 'sent', 'failed', 'cancelled', 'returned'],
        t.from_state
    ) nulls first, t.to_state
"""


def write(connection: psycopg.Connection[Any]) -> str:
    """The whole page, as Markdown."""
    with connection.transaction():
        connection.execute(PATH)
        functions = connection.execute(FUNCTIONS).fetchall()
        parts = [
            _functions([row for row in functions if not row[3].startswith("Guard.")]),
            _moves(connection.execute(MOVES).fetchall()),
            _codes(functions),
            _relations("Tables", connection.execute(RELATIONS, ["r"]).fetchall()),
            _relations("Views", connection.execute(RELATIONS, ["v"]).fetchall()),
            _section("Types and domains", "", ("type", "is", "meaning"), _types(connection)),
            _section("Sequences", "", ("sequence", "meaning"), connection.execute(SEQUENCES).fetchall()),
            _guards([row for row in functions if row[3].startswith("Guard.")]),
        ]
    return "\n".join([PREFACE, *parts])


def _functions(rows: Sequence[Sequence[Any]]) -> str:
    text = ["## Functions", ""]
    for name, arguments, result, comment, _, roles in rows:
        text += [f"### {name}", "", "```", f"ledger.{name}({arguments}) returns {result}", "```", "", comment, ""]
        text += [f"For {', '.join(f'`{role}`' for role in roles)}.", ""]
    return "\n".join(text)


def _guards(rows: Sequence[Sequence[Any]]) -> str:
    data = [(f"{name}({arguments})", comment.removeprefix("Guard. ")) for name, arguments, _, comment, *_ in rows]
    return _section("Guards", "Private: what the functions are made of. Nobody calls them.", ("guard", "does"), data)


def _moves(rows: Sequence[Sequence[Any]]) -> str:
    preface = "All that a refund can do, from `ledger.transition`; every other move is refused (LG204)."
    return _section("Moves", preface, ("from", "to", "by", "money moves from, to"), rows)


def _codes(functions: Sequence[Sequence[Any]]) -> str:
    data = [(code, error.__name__, _meaning(error), raised) for code, error, raised in _raised(functions)]
    return _section("Codes", "", ("SQLSTATE", "exception", "meaning", "raised by"), data)


def _raised(functions: Sequence[Sequence[Any]]) -> Iterator[tuple[str, type[errors.Refused], str]]:
    for code, error in sorted(errors.Refused.by_code.items()):
        for name, _, _, _, body, _ in functions:
            if re.search(rf"errcode = '{code}'", body or ""):
                yield code, error, name


def _meaning(error: type[errors.Refused]) -> str:
    return " ".join((error.__doc__ or "").split())


def _relations(title: str, rows: Sequence[Sequence[Any]]) -> str:
    text = [f"## {title}", ""]
    for name, comment, columns, constraints, indexes in rows:
        text += [f"### {name}", "", comment, "", *_table(*_without_empty_columns(columns)), ""]
        text += [f"- `{each}`: {rule}" for each, rule in [*constraints, *indexes]]
        text += [""] if constraints or indexes else []
    return "\n".join(text)


def _without_empty_columns(columns: Sequence[Sequence[str]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    heads = ("column", "type", "null", "default", "meaning")
    is_view = not any(meaning for *_, meaning in columns)
    return (heads[:2], [column[:2] for column in columns]) if is_view else (heads, columns)


def _types(connection: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    return [(name, made_of, comment) for name, comment, made_of in connection.execute(TYPES).fetchall()]


def _section(title: str, preface: str, heads: Sequence[str], data: Sequence[Sequence[str]]) -> str:
    return "\n".join([f"## {title}", "", *([preface, ""] if preface else []), *_table(heads, data), ""])


def _table(heads: Sequence[str], data: Sequence[Sequence[str]]) -> list[str]:
    rows = [heads, *([_cell(value) for value in row] for row in data)]
    head, *lines = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|" + "---|" * len(heads), *lines]


def _cell(value: str) -> str:
    return " ".join(value.replace("|", "\\|").split())
