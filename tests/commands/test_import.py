from __future__ import annotations

import os
import pty
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.commands.import_file import minor
from ledger.examples import EXAMPLE
from tests.commands.conftest import Cli
from tests.story import unchanged

HEAD = "merchant_id,refund_id,amount,currency\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "refunds.csv") -> Path:
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def recorded(admin: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return admin.execute(
        "select merchant_id, refund_id, amount_minor, currency from ledger.refund order by 1, 2"
    ).fetchall()


def test_a_file_is_added_and_the_same_file_again_changes_nothing(cli: Cli, admin: psycopg.Connection[Any]) -> None:
    first = cli("import", EXAMPLE, "-o", "json")
    with unchanged(admin):
        again = cli("import", EXAMPLE, "-o", "json")

    assert (first.code, again.code) == (0, 0)
    assert (first.json["added"], first.json["already"]) == (1200, 0)
    assert (again.json["added"], again.json["already"]) == (0, 1200)
    assert admin.execute("select sum(amount_minor) from ledger.refund").fetchone() == (8_430_000,)


def test_a_dry_run_counts_and_adds_nothing(cli: Cli, write: Write, admin: psycopg.Connection[Any]) -> None:
    with unchanged(admin):
        said = cli("import", "--dry-run", write(HEAD + "m_1,r_1,70.25,EUR\n"))

    assert said.code == 0
    assert said.out.startswith("added    1\n")
    assert said.err == "dry run: rolled back, nothing was added\n"


@pytest.mark.parametrize(
    ("text", "exponent", "amount"),
    [("70.25", 2, 7025), ("70", 2, 7000), ("70.2", 2, 7020), ("58", 0, 58), ("0.001", 3, 1), ("0000000000.01", 2, 1)],
)
def test_amounts_are_read_by_their_currency(text: str, exponent: int, amount: int) -> None:
    assert minor(text, exponent) == amount


BAD_AMOUNTS: list[tuple[str, ...]] = [
    ("NaN", "EUR", "is no plain positive decimal"),
    ("Infinity", "EUR", "is no plain positive decimal"),
    ("1e3", "EUR", "is no plain positive decimal"),
    ("-5.00", "EUR", "is no plain positive decimal"),
    ("+5.00", "EUR", "is no plain positive decimal"),
    ('"1,000.00"', "EUR", "is no plain positive decimal"),
    ("1_000", "EUR", "is no plain positive decimal"),
    ("٣", "EUR", "is no plain positive decimal"),
    (".5", "EUR", "is no plain positive decimal"),
    ("0.00", "EUR", "is zero"),
    ("", "EUR", "amount is empty"),
    ("  ", "EUR", "amount is empty"),
    ("58.5", "JPY", "has 1 decimal places, and its currency has 0"),
    ("1.001", "EUR", "has 3 decimal places, and its currency has 2"),
    ("9" * 17 + ".99", "EUR", "is larger than the ledger holds"),
    ("9" * 5000, "EUR", "is larger than the ledger holds"),
    ("5.00", "eur", "the currency 'eur' is not known"),
    ("5.00", "XYZ", "the currency 'XYZ' is not known"),
    ("5.00", "", "currency is empty"),
]


def test_a_bad_amount_is_refused_with_its_line_and_nothing_is_added(
    cli: Cli, write: Write, admin: psycopg.Connection[Any]
) -> None:
    for amount, currency, problem in BAD_AMOUNTS:
        with unchanged(admin):
            said = cli("import", write(f"{HEAD}m_1,r_1,5.00,EUR\nm_1,r_2,{amount},{currency}\nm_1,r_3,6.00,EUR\n"))

        assert said.code == 2, amount
        assert said.err.startswith("error: line 3: ")
        assert problem in said.err
        assert "Nothing was added" in said.err
        assert said.out == ""


BAD_LINES: list[tuple[str, ...]] = [
    (f"{'m' * 101},r_2,5.00,EUR", "line 3: a merchant id is printable, 1 to 100 characters"),
    (f"m_1,{'r' * 151},5.00,EUR", "line 3: a refund id is printable, 1 to 150 characters"),
    ("m/1,r_2,5.00,EUR", "line 3: a merchant id is printable, 1 to 100 characters, without slash"),
    ("m_1, r_2,5.00,EUR", "line 3: a refund id is printable, 1 to 150 characters, without braces or outer blanks"),
    ('m_1,"r\n2",5.00,EUR', "line 3: a refund id is printable"),
    (",r_2,5.00,EUR", "line 3: merchant_id is empty"),
    ("m_1,,5.00,EUR", "line 3: refund_id is empty"),
    ("m_1,r_2,5.00", "line 3: it has 3 fields, the header has 4"),
    ("m_1,r_2,5,00,EUR", "line 3: it has 5 fields, the header has 4"),
    ("m_1,r\0_2,5.00,EUR", "line 3: refund_id holds a NUL character"),
    ('m_1,"r_2,5.00,EUR', "line 3: it is no CSV: unexpected end of data"),
    ('m_1,"r_2"x,5.00,EUR', "line 3: it is no CSV"),
    ("m_1,r_1,6.00,EUR", "line 3: m_1 r_1 is recorded, or stands on an earlier line, with another amount."),
]


def test_a_malformed_line_is_refused_with_its_number_and_nothing_is_added(
    cli: Cli, write: Write, admin: psycopg.Connection[Any]
) -> None:
    for line, problem in BAD_LINES:
        said = cli("import", write(f"{HEAD}m_1,r_1,5.00,EUR\n{line}\n"))

        assert said.code == 2, line
        assert problem in said.err
        assert recorded(admin) == []


def test_a_record_of_several_lines_is_named_by_its_first(cli: Cli, write: Write) -> None:
    head = "merchant_id,refund_id,amount,currency,payment_ref\n"
    said = cli("import", write(f'{head}m_1,r_1,5.00,EUR,pay\n\nm_1,r_2,5.00,EUR,"a\nb\nc"\n'))

    assert "error: line 4: a payment reference is printable" in said.err


def test_a_refund_twice_with_the_same_content_counts_as_there_already(cli: Cli, write: Write) -> None:
    said = cli("import", write(HEAD + "m_1,r_1,5.00,EUR\nm_1,r_1,5.00,EUR\n"), "-o", "json")

    assert (said.code, said.json["added"], said.json["already"]) == (0, 1, 1)


def test_another_refund_with_a_recorded_key_is_refused(cli: Cli, write: Write) -> None:
    head = "merchant_id,refund_id,amount,currency,idempotency_key\n"
    said = cli("import", write(head + "m_1,r_1,5.00,EUR,k\nm_1,r_2,5.00,EUR,k\n"))

    assert said.code == 2
    assert "line 3: the idempotency key k belongs to another refund. Nothing was added" in said.err


def test_spreadsheets_files_are_read(cli: Cli, write: Write, admin: psycopg.Connection[Any]) -> None:
    """A byte order mark, CRLF, quoted fields with commas, blank lines, blanks around numbers."""
    text = '\ufeffmerchant_id,refund_id,amount,currency,payment_ref\r\n"m_1","r,1", 5.00 ,EUR,"pay ""1"""\r\n\r\n'

    assert cli("import", write(text)).code == 0
    assert recorded(admin) == [("m_1", "r,1", 500, "EUR")]
    assert admin.execute("select payment_ref from ledger.refund").fetchone() == ('pay "1"',)


def test_columns_are_found_by_name_in_any_order(cli: Cli, write: Write, admin: psycopg.Connection[Any]) -> None:
    head = "currency,gateway,refund_id,idempotency_key,merchant_id,amount\n"
    text = head + "EUR,stripe,r_1,old/1,m_1,5.00\nJPY,,r_2,,m_1,58\n"

    assert cli("import", write(text)).code == 0
    assert recorded(admin) == [("m_1", "r_1", 500, "EUR"), ("m_1", "r_2", 58, "JPY")]
    assert admin.execute("select gateway, idempotency_key from ledger.refund order by refund_id").fetchall() == [
        ("stripe", "old/1"),
        (None, "m_1/r_2"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("merchant_id,refund_id,amount\n", "line 1: the header lacks the column 'currency'"),
        (HEAD.strip() + ",colour\n", "line 1: the header names the unknown column 'colour'"),
        (HEAD.strip() + ",amount\n", "line 1: the header repeats 'amount'"),
        (HEAD.replace(",", ";"), "line 1: the header names the unknown column 'merchant_id;refund_id;amount;currency'"),
        ("m_1,r_1,5.00,EUR\n", "line 1: the header names the unknown column"),
        ((HEAD + "m_1,r_ä,5.00,EUR\n").encode("latin-1"), "the file is not UTF-8, somewhere after line 1"),
        ((HEAD + "m_1,r_1,5.00,EUR\n").encode("utf-16"), "the file is not UTF-8"),
    ],
)
def test_a_file_of_another_form_is_refused(cli: Cli, write: Write, text: str | bytes, problem: str) -> None:
    said = cli("import", write(text))

    assert said.code == 2
    assert problem in said.err
    assert "Nothing was added" in said.err
    assert "\n  next: " in said.err


def test_a_file_of_nothing_but_its_header_adds_nothing(cli: Cli, write: Write) -> None:
    assert cli("import", write(HEAD), "-o", "csv").out.splitlines()[1].startswith("0,0,")


@pytest.mark.parametrize(("file", "problem"), [("nope.csv", "does not exist"), (".", "is a directory")])
def test_what_is_no_file_is_refused(cli: Cli, file: str, problem: str) -> None:
    said = cli("import", file)

    assert said.code == 2
    assert problem in said.err
    assert said.err.endswith("  next: ledger import --help\n")


def test_a_file_that_vanishes_before_it_is_opened_is_bad_input(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(HEAD)
    there = Path.open

    def vanish(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == file:
            file.unlink()
        return there(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", vanish)
    said = cli("import", file)

    assert said.code == 2
    assert f"{file} can't be read: No such file or directory. Nothing was added" in said.err


def test_a_file_may_come_from_stdin(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("import", "-", "-o", "json", stdin=subprocess.PIPE)
    out, err = process.communicate(HEAD + "m_1,r_1,5.00,EUR\n")

    assert (process.returncode, err) == (0, "")
    assert '"added": 1' in out


def test_merchants_may_be_interleaved_and_one_bad_line_undoes_them_all(
    cli: Cli, write: Write, admin: psycopg.Connection[Any]
) -> None:
    lines = [f"m_{n % 7},r_{n},1.00,EUR" for n in range(7 * 1_100)]

    with unchanged(admin):
        assert cli("import", write(HEAD + "\n".join([*lines, "m_1,r_x,0,EUR"]))).code == 2
    assert cli("import", write(HEAD + "\n".join(lines)), "-o", "json").json["added"] == 7_700
    assert admin.execute("select count(*) from ledger.refund group by merchant_id").fetchall() == [(1_100,)] * 7


def test_what_the_ledger_refuses_comes_before_what_is_wrong_further_down(cli: Cli, write: Write) -> None:
    """The lines below are read while it looks at those above."""
    lines = [f"m_1,r_{n},1.00,EUR" for n in range(1_500)]
    lines[3], lines[1_200] = "m_1,{r_3},1.00,EUR", "m_1,r_1200,none,EUR"

    said = cli("import", write(HEAD + "\n".join(lines)))

    assert said.code == 2
    assert "line 5: a refund id is printable" in said.err


def test_memory_stays_flat(cli: Cli, write: Write) -> None:
    """As much for 9,000 lines as for 3,000, which are full batches already."""

    def peak(lines: int) -> int:
        rows = "".join(f"m_1,r_{lines}_{n:06d},1.00,EUR\n" for n in range(lines))
        file = write(HEAD + rows, f"{lines}.csv")
        del rows
        tracemalloc.start()
        try:
            assert cli("import", file).code == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1_000)  # what is imported and kept once
    small, large = peak(3_000), peak(9_000)

    assert large < small + 500_000


def test_the_progress_bar_is_for_terminals(start: Callable[..., subprocess.Popen[str]], write: Write) -> None:
    file = write(HEAD + "".join(f"m_1,r_{n},1.00,EUR\n" for n in range(2_500)))
    piped = start("import", file)
    assert piped.communicate()[1] == ""

    ours, theirs = pty.openpty()
    shown = start("import", file, stderr=theirs)
    os.close(theirs)
    assert shown.wait(20) == 0
    assert b"importing" in os.read(ours, 65536)
    os.close(ours)


def test_import_needs_a_schema(nowhere: Cli, empty_dsn: str, write: Write) -> None:
    said = nowhere("import", write(HEAD), "--dsn", empty_dsn)

    assert said.code == 9
    assert said.err.startswith("error: schema ledger is missing, or older than this release needs")


def test_import_needs_postgres(nowhere: Cli, write: Write) -> None:
    assert nowhere("import", write(HEAD), "--dsn", "postgresql://127.0.0.1:1/x").code == 4
