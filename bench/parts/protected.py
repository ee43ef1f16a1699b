"""What protection costs those who write to a table of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy import orm

from bench.measuring import Bench, by_round, interleaved, measures, over, seconds
from bench.servers import HOLDER, Database
from ledger.client import Ledger
from ledger.fencing import fenced

Connection = psycopg.Connection[Any]

ONE, ORG = "charges:all", "charges:org_7"
ROWS = 100_000
BULK_TURNS = 3
TURNS = 12
TRANSACTIONS = 40
TABLE = """
create table {name} (id integer primary key, org_id text not null, amount integer not null default 0)
    with (fillfactor = 50, autovacuum_enabled = off);
insert into {name} select n, 'org_7', 0 from generate_series(1, {rows}) as n;
"""


@contextmanager
def _tables(bench: Bench, rows: int) -> Iterator[tuple[Database, Connection, dict[str, int]]]:
    """Three tables: `plain`; `fixed`, with one resource for all rows; `by_column`, with a resource for each org."""
    with (
        bench.servers.fast.database() as database,
        psycopg.connect(database.admin, autocommit=True) as admin,
        psycopg.connect(database.worker, autocommit=True, prepare_threshold=0) as connection,
    ):
        admin.execute("grant create on schema public to ledger_worker")
        for name in ("plain", "fixed", "by_column"):
            connection.execute(TABLE.format(name=name, rows=rows), prepare=False)
        ledger = Ledger(connection)
        ledger.protect_table("fixed", resource=ONE)
        ledger.protect_table("by_column", kind="charges", column_name="org_id")
        connection.execute("vacuum analyze plain, fixed, by_column", prepare=False)
        tokens = {}
        for resource in (ONE, ORG):
            tokens[resource] = ledger.draw_token(resource)
            ledger.activate_token(resource, tokens[resource], HOLDER)
        yield database, connection, tokens


@measures("protected_bulk")
def protected_bulk(bench: Bench) -> None:
    """Microseconds a row that protection by one resource adds to an UPDATE of 100,000 rows.

    The token was presented before, in the same transaction; each UPDATE is rolled back. `protected_bulk_update` is what
    the UPDATE takes by itself, and `protected_bulk_by_column` what protection by a column adds.
    """
    with _tables(bench, ROWS) as (_, connection, tokens):

        def update(table: str, resource: str | None) -> Callable[[], float]:
            def run() -> float:
                with connection.transaction(force_rollback=True):
                    if resource:
                        Ledger(connection).present_token(resource, tokens[resource])
                    took = seconds(lambda: connection.execute(f"update {table} set amount = amount + 1"))  # type: ignore[arg-type]
                connection.execute(f"vacuum {table}", prepare=False)  # type: ignore[arg-type]
                return took / ROWS * 1e6

            return run

        variants = {"plain": update("plain", None), "fixed": update("fixed", ONE), "column": update("by_column", ORG)}
        interleaved(1, variants)
        found = {
            name: by_round(all_turns, BULK_TURNS)
            for name, all_turns in interleaved(bench.rounds * BULK_TURNS, variants).items()
        }
    bench.record("protected_bulk", _minus(found["fixed"], found["plain"]))
    bench.record("protected_bulk_by_column", _minus(found["column"], found["plain"]))
    bench.record("protected_bulk_update", found["plain"])


def _minus(values: list[float], others: list[float]) -> list[float]:
    return [value - other for value, other in zip(values, others, strict=True)]


class Base(orm.DeclarativeBase):
    """The tables as an ORM sees them."""


class _Charge:
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    org_id: orm.Mapped[str]
    amount: orm.Mapped[int]


class Plain(_Charge, Base):
    """The one without protection."""

    __tablename__ = "plain"


class Fixed(_Charge, Base):
    """The one with one resource for all."""

    __tablename__ = "fixed"


class ByColumn(_Charge, Base):
    """The one with a resource for each org."""

    __tablename__ = "by_column"


@measures("protected_row")
def protected_row(bench: Bench) -> None:
    """A transaction with one row, as an ORM sends it, over the same without protection.

    BEGIN, present the token, UPDATE by primary key, COMMIT: four round trips in place of three, and nothing else, on a
    socket, with fsync off. Protection is by one resource; `protected_row_by_column` is by a column's. Through an ORM
    itself, SQLAlchemy, `with session.begin(), fenced(session, ...)`, load an object, change it: `protected_row_orm` and
    `protected_row_orm_by_column`.
    """
    with _tables(bench, 1000) as (database, connection, tokens):
        engine = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(database.worker, prepare_threshold=0)
        )
        variants = {
            "plain": _by_hand(connection, "plain"),
            "fixed": _by_hand(connection, "fixed", ONE, tokens[ONE]),
            "column": _by_hand(connection, "by_column", ORG, tokens[ORG]),
            "orm_plain": _by_orm(engine, Plain),
            "orm_fixed": _by_orm(engine, Fixed, ONE, tokens[ONE]),
            "orm_column": _by_orm(engine, ByColumn, ORG, tokens[ORG]),
        }
        interleaved(1, variants)
        found = interleaved(bench.rounds * TURNS, variants)
        engine.dispose()

    def ratio(name: str, base: str) -> list[float]:
        return by_round(over(found[name], found[base]), TURNS)

    bench.record("protected_row", ratio("fixed", "plain"))
    bench.record("protected_row_by_column", ratio("column", "plain"))
    bench.record("protected_row_orm", ratio("orm_fixed", "orm_plain"))
    bench.record("protected_row_orm_by_column", ratio("orm_column", "orm_plain"))


def _by_hand(
    connection: Connection, table: str, resource: str | None = None, token: int | None = None
) -> Callable[[], float]:
    update = f"update {table} set amount = amount + 1 where id = %s"

    def run() -> float:
        return seconds(lambda: [one(number) for number in range(1, TRANSACTIONS + 1)])

    def one(number: int) -> None:
        with connection.transaction():
            if resource:
                connection.execute("select ledger.present_token(%s, %s)", [resource, token])
            connection.execute(update, [number])  # type: ignore[arg-type]

    return run


def _by_orm(
    engine: sqlalchemy.Engine, table: Any, resource: str | None = None, token: int | None = None
) -> Callable[[], float]:
    def run() -> float:
        return seconds(lambda: [one(number) for number in range(1, TRANSACTIONS + 1)])

    def one(number: int) -> None:
        with orm.Session(engine) as session, session.begin():
            if resource is None:
                change(session, number)
            else:
                with fenced(session, resource, token):
                    change(session, number)

    def change(session: orm.Session, number: int) -> None:
        session.get_one(table, number).amount += 1

    return run
