"""Whether the schema is what the release made: bodies, owners, grants, triggers and their enabled state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psycopg import Connection

from ledger.doctor import manifest
from ledger.doctor.symptom import Symptom, fault

REPLACE = "ledger db sql --part functions | psql -v ON_ERROR_STOP=1 -1 -f - replaces functions, grants and triggers"
BY_HAND = "Find out who changed it and why; ledger db sql shows how the release makes it"
ENABLED = {"O": "as an ordinary trigger", "D": "not at all", "R": "on a replica alone", "A": "always"}

PUBLIC = """
    select 'function ' || p.oid::regprocedure as name, a.privilege_type
    from pg_proc as p cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
    where p.pronamespace = 'ledger'::regnamespace and a.grantee = 0
    union all
    select case c.relkind when 'S' then 'sequence ' else 'table ' end || c.oid::regclass, a.privilege_type
    from pg_class as c cross join aclexplode(c.relacl) as a
    where c.relnamespace = 'ledger'::regnamespace and a.grantee = 0
    union all
    select 'schema ledger', a.privilege_type
    from pg_namespace as n cross join aclexplode(n.nspacl) as a
    where n.nspname = 'ledger' and a.grantee = 0
    order by 1, 2
"""


def drift(connection: Connection[Any]) -> Iterator[Symptom]:
    """What is missing, what was added, and what is otherwise than the release makes it."""
    released, found = manifest.released(), manifest.found(connection)
    for name in sorted(released.keys() - found.keys()):
        yield fault(f"{name} is missing", _mend(name))
    for name in sorted(found.keys() - released.keys()):
        yield fault(f"{name} is none of the release's", f"If nobody needs it: drop {name}")
    for name in sorted(released.keys() & found.keys()):
        for fact in sorted(released[name].keys() | found[name].keys()):
            wanted, is_so = released[name].get(fact), found[name].get(fact)
            if wanted != is_so:
                yield fault(f"{name}: {_difference(fact, is_so, wanted)}", _mend(name, fact, is_so, wanted))


def public_grants(connection: Connection[Any]) -> Iterator[Symptom]:
    """What everybody may do."""
    for name, privilege in connection.execute(PUBLIC).fetchall():
        right = str(privilege).lower()
        yield fault(f"everybody has {right} on {name}", f"revoke {right} on {name} from public")


def _difference(fact: str, is_so: Any, wanted: Any) -> str:
    if fact == "enabled":
        return f"it fires {ENABLED.get(is_so, is_so)}, not {ENABLED[wanted]}"
    if fact in ("body", "digest"):
        return f"its {'rows are' if fact == 'digest' else 'text is'} not the release's"
    if isinstance(is_so, list) and isinstance(wanted, list):
        more, less = [each for each in is_so if each not in wanted], [each for each in wanted if each not in is_so]
        parts = ([f"{', '.join(more)} too many"] if more else []) + ([f"{', '.join(less)} missing"] if less else [])
        return f"{fact}: {'; '.join(parts) or 'in another order'}"
    return f"{fact} is {is_so}, the release has {wanted}"


def _mend(name: str, fact: str = "", is_so: Any = None, wanted: Any = None) -> str:
    kind, _, rest = name.partition(" ")
    if fact == "grants":
        too_many = [each for each in is_so if each not in wanted]
        if too_many:
            role, _, right = too_many[0].rpartition(" ")
            of = "" if kind == "view" else f"{kind} "
            return f"revoke {right} on {of}{rest} from {role}"
        if kind != "function":
            role, _, right = next(each for each in wanted if each not in is_so).rpartition(" ")
            return f"grant {right} on {'' if kind == 'view' else kind + ' '}{rest} to {role}"
    if fact == "owner" and kind != "rows":
        return f"alter {kind} {rest} owner to {wanted}"
    return REPLACE if kind in ("function", "trigger") else BY_HAND
