from __future__ import annotations

from datetime import timedelta

from ledger.client import Ledger
from ledger.records import Kind
from tests.conftest import Connect
from tests.story import Connection, activated, limited, unchanged

DEFAULTS = Kind(
    kind="invoice",
    lock="redis",
    mode="enforce",
    lease_ttl=timedelta(seconds=30),
    idle_limit=timedelta(seconds=10),
    lock_limit=timedelta(seconds=5),
    transaction_limit=None,
    max_attempts=5,
    key_window=timedelta(hours=23),
    known=False,
)


def test_a_kind_that_was_never_used_has_the_defaults(ledger: Ledger, admin: Connection) -> None:
    with unchanged(admin):
        assert ledger.get_kind("invoice") == DEFAULTS


def test_the_defaults_are_what_the_first_activation_writes(ledger: Ledger, admin: Connection) -> None:
    promised = ledger.get_kind("invoice")
    activated(ledger, resource="invoice:2026")

    row = admin.execute(
        "select kind, lock, mode, lease_ttl, idle_limit, lock_limit, transaction_limit, max_attempts, key_window, false"
        " from ledger.kind where kind = 'invoice'"
    ).fetchone()
    assert row is not None
    assert Kind(*row) == promised


def test_settle_is_known_from_the_start(ledger: Ledger) -> None:
    settle = ledger.get_kind("settle")

    assert (settle.known, settle.lock, settle.mode) == (True, "redis", "enforce")


def test_a_kind_shows_what_was_set(ledger: Ledger, operators: Ledger) -> None:
    limited(operators, "invoice", idle=0.25, lock=0.125)
    kind = ledger.get_kind("invoice")

    assert (kind.known, kind.idle_limit, kind.lock_limit) == (
        True,
        timedelta(milliseconds=250),
        timedelta(milliseconds=125),
    )


def test_a_kind_is_told_from_its_namesakes_in_other_letters(ledger: Ledger) -> None:
    assert not ledger.get_kind("Settle").known


def test_a_malformed_kind_has_the_defaults_too_since_nothing_is_refused(connection: Connection) -> None:
    assert connection.execute("select kind, known from ledger.get_kind(null)").fetchone() == (None, False)
    assert connection.execute("select kind, known from ledger.get_kind('a:{b}')").fetchone() == ("a:{b}", False)


def test_a_reader_may_look(connect: Connect, reader_dsn: str) -> None:
    assert Ledger(connect(reader_dsn)).get_kind("settle").known
