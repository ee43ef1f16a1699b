"""A database that is put back after each test, which costs a tenth of making a new one.

Its rows go, its sequences begin again, and what was broken is as it was. A test that changed anything else, such as a
table, a role's rights or a setting of the database, is found out by the catalogue: then the database is thrown away.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import psycopg

from ledger import schema
from tests.proof.mutants import instrument
from tests.proof.mutants.generate import Mutated, guard_triggers
from tests.proof.mutants.tokens import Function
from tests.proof.sql_files import file_of

FIXED = ("currency", "transition", "schema_version")
KEPT = ("kind", "server")

FINGERPRINT = """
select md5(concat_ws('|',
    (select string_agg(c.oid || ' ' || c.xmin || ' ' || c.relfilenode, ',' order by c.oid) from pg_class as c
     where c.relnamespace not in ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)),
    (select string_agg(p.oid || ' ' || p.xmin, ',' order by p.oid) from pg_proc as p
     where p.pronamespace <> 'pg_catalog'::regnamespace),
    (select string_agg(t.oid || ' ' || t.xmin, ',' order by t.oid) from pg_trigger as t),
    (select string_agg(k.oid || ' ' || k.xmin, ',' order by k.oid) from pg_constraint as k),
    (select string_agg(y.oid || ' ' || y.xmin, ',' order by y.oid) from pg_type as y where y.oid > 16000),
    (select string_agg(n.oid || ' ' || n.xmin, ',' order by n.oid) from pg_namespace as n
     where n.nspname !~ '^pg_t'),
    (select string_agg(s.oid || ' ' || s.xmin, ',' order by s.oid) from pg_cast as s where s.oid > 16000),
    (select string_agg(e.oid || ' ' || e.xmin, ',' order by e.oid) from pg_event_trigger as e),
    (select string_agg(d.setdatabase || ' ' || d.setrole || ' ' || d.xmin, ',' order by 1)
     from pg_db_role_setting as d),
    (select string_agg(r.oid || ' ' || r.xmin, ',' order by r.oid) from pg_authid as r),
    (select string_agg(m.oid || ' ' || m.xmin, ',' order by m.oid) from pg_auth_members as m),
    (select string_agg(b.xmin || ' ' || b.datdba, ',') from pg_database as b where b.datname = current_database()),
    (select string_agg(x.gid, ',') from pg_prepared_xacts as x where x.database = current_database()),
    (select string_agg(u.xmin::text, ',' order by u.currency) from ledger.currency as u),
    (select string_agg(v.xmin::text, ',' order by v.ctid) from ledger.transition as v)
))
"""


class Database:
    """One clone of the template, with the guard triggers `on` or `off`, or with functions that tell where they come."""

    def __init__(self, where: dict[str, Any], template: str, setting: str) -> None:
        self._text = instrument.instrumented if setting == "reach" else text_of
        self.name = f"ledger_mutant_{setting}"
        self._where = where
        self._everywhere(f"drop database if exists {self.name} with (force)")
        self._everywhere(f"create database {self.name} template {template} strategy file_copy owner ledger_admin")
        self._own = psycopg.connect(**where, dbname=self.name)
        if setting == "off":
            for table, trigger in guard_triggers():
                if trigger.endswith("_is_guarded"):
                    self._own.execute(f"alter table ledger.{table} disable trigger {trigger}")
        if setting == "reach":
            instrument.prepare(self._own)
        self._restore = self._restoring()
        self._seal = ""
        self._broken: Mutated | None = None

    def is_up(self) -> bool:
        """Whether nobody has crashed its server since."""
        with contextlib.suppress(psycopg.Error):
            self._own.execute("select 1")
        return not self._own.broken

    def break_it(self, mutant: Mutated | None) -> None:
        """Put a mutant in. Raises what Postgres says when it is no SQL."""
        self._broken = mutant
        if mutant:
            self._own.execute(mutant.sql)
        self._seal = self._fingerprint()

    def reached(self) -> list[str]:
        """Where the functions have come."""
        return instrument.reached(self._own)

    def put_back(self) -> bool:
        """Be as it was at first; False where the test left something that can't be undone."""
        try:
            self._own.execute(
                "select pg_terminate_backend(a.pid, 5000) from pg_stat_activity as a "
                "where a.datname = current_database() and a.pid <> pg_backend_pid()"
            )
            if self._fingerprint() != self._seal or (self._broken and not self._broken.function):
                return False
            self._own.execute(self._restore)
            if self._broken:
                self._own.execute(self._text(self._broken.function))
        except psycopg.Error:
            return False
        return True

    def throw_away(self) -> None:
        """Drop it, with what was prepared in it."""
        self._own.close()
        with contextlib.suppress(psycopg.Error):
            self._roll_back_prepared()
        self._everywhere(f"drop database if exists {self.name} with (force)")

    def _fingerprint(self) -> str:
        row = self._own.execute(FINGERPRINT).fetchone()
        return str(row[0] if row else "")

    def _restoring(self) -> str:
        """The statements that put the rows back; the triggers that refuse it look away for as long."""
        tables = [row[0] for row in self._own.execute("select tablename from pg_tables where schemaname = 'ledger'")]
        sequences = self._own.execute("select sequencename, start_value from pg_sequences where schemaname = 'ledger'")
        guards = sorted(path.stem for path in schema.function_files() if path.stem.startswith("guard_"))
        steps = [
            f"create or replace function ledger.{name}() returns trigger language plpgsql as 'begin return null; end'"
            for name in guards
        ]
        steps += [f"delete from ledger.{table}" for table in tables if table not in FIXED]
        for table in KEPT:
            row = self._own.execute(f"select jsonb_agg(to_jsonb(t)) from ledger.{table} as t").fetchone()
            kept = json.dumps(row[0] if row else []).replace("'", "''")
            steps.append(
                f"insert into ledger.{table} select * from jsonb_populate_recordset(null::ledger.{table}, '{kept}')"
            )
        steps += [f"select setval('ledger.{name}', {start}, false)" for name, start in sequences]
        return ";\n".join([*steps, *(self._text(name) for name in guards)])

    def _everywhere(self, statement: str) -> None:
        with psycopg.connect(**self._where, dbname="postgres") as maintenance:
            maintenance.execute(statement)

    def _roll_back_prepared(self) -> None:
        with psycopg.connect(**self._where, dbname=self.name) as own:
            for (gid,) in own.execute(
                "select gid from pg_prepared_xacts where database = current_database()"
            ).fetchall():
                own.execute(f"rollback prepared '{gid}'")


def text_of(name: str) -> str:
    """A function as it is in the file."""
    return Function.read(file_of(name)).text
