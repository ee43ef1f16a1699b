"""A superuser who goes past everything: it can't be prevented, and is found."""

from __future__ import annotations

import psycopg

from ledger.doctor import examine
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.worker import Hold
from tests.proof.chaos.world import World

ROWS = (
    "update ledger.refund set amount_minor = amount_minor + 1 where refund_id = 'r_1'",
    "update ledger.refund set fence = fence + 1000000 where refund_id = 'r_1'",
    "update ledger.refund set gateway_ref = 're_other' where refund_id = 'r_1'",
    "update ledger.refund set state = 'failed' where refund_id = 'r_1'",
    "update ledger.refund set state = 'pending', settled_at = null where refund_id = 'r_1'",
    "update ledger.refund set currency = 'USD' where refund_id = 'r_1'",
    "delete from ledger.refund where refund_id = 'r_1'",
    "delete from ledger.journal where refund_id = 'r_1'",
    "delete from ledger.journal where refund_id = 'r_1' and number = 1",
    "delete from ledger.journal where refund_id = 'r_1' and to_state = 'sent'",
    "update ledger.journal set amount_minor = amount_minor + 1 where refund_id = 'r_1' and number = 1",
    "update ledger.journal set credit = 'merchant_available' where refund_id = 'r_1' and to_state = 'sent'",
    "update ledger.journal set token = token + 1000000 where refund_id = 'r_1' and to_state = 'sent'",
    "update ledger.journal set to_state = 'failed' where refund_id = 'r_1' and to_state = 'sent'",
    "update ledger.fence set active = 1",
    "delete from ledger.fence",
)
"""Found by verify. Each in a transaction in which the guards are off, which is rolled back."""

CATALOGUE = (
    "alter table ledger.refund disable trigger refund_is_guarded",
    "alter table ledger.refund enable trigger refund_is_guarded",
    "alter table ledger.refund enable replica trigger refund_is_guarded",
    "drop trigger journal_is_guarded on ledger.journal",
    "grant update on ledger.refund to ledger_worker",
    "grant ledger_fn to ledger_worker",
    "grant execute on function ledger.draw_token(text) to public",
    "alter function ledger.draw_token(text) owner to ledger_owner",
    "alter function ledger.draw_token(text) security invoker",
    "alter function ledger.draw_token(text) reset search_path",
    "alter table ledger.refund owner to ledger_admin",
    "create or replace function ledger.keep_commit() returns void language plpgsql as 'begin end'",
    "alter table ledger.refund add column note text",
    "alter table ledger.journal drop constraint journal_pkey cascade",
)
"""Found by doctor."""

GUARDED = ("refund", "journal", "fence")


@scenario(
    "tampered-with", "A superuser changes rows, guards, grants and functions, in every way on a list; all are found"
)
def tampered_with(world: World) -> None:
    world.refunds()
    worker = world.worker("A", hold=Hold("before claim", 2))
    worker.until_held()
    worker.kill()
    world.recover()  # under token 2
    ways = [*ROWS, *CATALOGUE]
    world.rng.shuffle(ways)
    usual = found(world.admin)
    for way in ways:
        with world.admin.transaction(force_rollback=True):
            finds = found_by_verify(world.admin, way) if way in ROWS else found_by_doctor(world.admin, way, usual)
        world.fault(f"{way}: {', '.join(sorted(finds)) or 'not found'}")
        if not finds:
            world.breaches.append(f"I3: nobody finds: {way}")


def found_by_verify(admin: psycopg.Connection, statement: str) -> set[str]:
    """The checks that find it."""
    for table in GUARDED:
        admin.execute(f"alter table ledger.{table} disable trigger user".encode())
    admin.execute(statement.encode())
    return {check for (check,) in admin.execute('select "check" from ledger.verify()').fetchall()} - {"trigger_is_on"}


def found_by_doctor(admin: psycopg.Connection, statement: str, usual: set[tuple[str, str]]) -> set[str]:
    """The checks that find it."""
    admin.execute(statement.encode())
    return {check for check, _ in found(admin) - usual}


def found(admin: psycopg.Connection) -> set[tuple[str, str]]:
    """What doctor calls a fault."""
    return {(each.check, each.finding) for each in examine(admin) if each.level == "fault"}
