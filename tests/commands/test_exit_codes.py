"""Every exit code that a command's help names is reached by a fault, and no other is reached."""

from __future__ import annotations

import inspect
import os
import pty
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import psycopg
import pytest

from ledger.client import Ledger
from ledger.lease import Lease
from tests.commands.conftest import CHECKOUT, Cli
from tests.commands.test_usage import LEAVES
from tests.story import ALICE, BOB, RESOURCE, activated, added, as_ledger_fn, in_state, on_a_new_timeline, written

REASON = ("--reason", "ticket 91")
NOWHERE = "postgresql://127.0.0.1:1/x"
NO_REDIS = "redis://127.0.0.1:1"
NO_GATEWAY = "http://127.0.0.1:1"
JOB = "report:daily"
IDLE = "settle:m_7"

Typed = dict[str, str]

# What a person types who gets an answer. A refund is named after the command that is about it.
DONE: Typed = {
    "import": "refunds.csv",
    "settle": "m_2 --gateway shop_of_codes:sends",
    "show": "m_1 show",
    "list": "m_1",
    "history": "m_1 history",
    "verify": "",
    "claim": "m_1 claim",
    "confirm": "m_1 confirm --gateway-ref re_confirm",
    "fail": "m_1 fail",
    "release": "m_1 release",
    "unknown": "m_1 unknown",
    "run": f"{JOB} -- true",
    "mode list": "",
    "mode set": "charges shadow",
    "refusals": "",
    "stuck": "m_2",
    "why": "m_1 why",
    "pause": "charges",
    "resume": "charges",
    "resolve": "m_1 resolve --to sent --gateway-ref re_resolve --evidence seen",
    "requeue": "m_1 requeue --not-at-gateway",
    "cancel": "m_1 cancel --yes",
    "review": "m_1 review",
    "return": "m_1 return --evidence seen --yes",
    "recover failover": "--yes",
    "recover setting": "hold",
    "export": "--from 2026-01-01 --to 2026-12-31",
    "kind list": "",
    "kind set": "settle --max-attempts 7",
    "lease show": RESOURCE,
    "lease list": "",
    "lease advise": "report",
    "lease break": f"{IDLE} --holder {ALICE} --yes",
    "doctor": "",
    "archive": "m_1 --older-than 300d",
    "prune": "--refusals 90d",
    "metrics": "",
    "db upgrade": "--dsn {migrator}",
    "db downgrade": "0002_ledger --dsn {migrator}",
    "db current": "",
    "db sql": "",
    "db grants": "refunds_app --as worker",
    "db docs": "",
    "reproduce": "--protection none --fault lost-reply",
}

STATES = {
    "claim": "pending",
    "cancel": "pending",
    "show": "pending",
    "history": "pending",
    "why": "pending",
    "confirm": "sending",
    "fail": "sending",
    "release": "sending",
    "unknown": "sending",
    "review": "unknown",
    "resolve": "review",
    "requeue": "review",
    "return": "sent",
    "final": "returned",
}

WRONG: Typed = {
    "import": "no-such-file.csv",
    "settle": "m_2",
    "claim": "m_1 claim --all",
    "confirm": "m_1 confirm",
    "fail": "m_1",
    "release": "m_1 --all",
    "unknown": "m_1 --state unknown",
    "run": "report -- true",
    "mode set": "settle off",
    "why": "m_1 why --html no/such/folder/page.html",
    "pause": "settle:",
    "resume": "settle:",
    "resolve": "m_1 resolve --to nowhere",
    "requeue": "m_1",
    "cancel": "m_1 cancel",
    "review": "m_1",
    "return": "m_1 return --evidence seen",
    "recover failover": "",
    "recover setting": "drop",
    "export": "--from 2026-12-31 --to 2026-01-01",
    "kind set": "settle",
    "lease show": "settle",
    "lease break": f"settle --holder {ALICE}",
    "archive": "--older-than 1ms",
    "prune": "",
    "metrics": "--listen nowhere",
    "db upgrade": "9999 --dsn {migrator}",
    "db downgrade": "9999 --dsn {migrator}",
    "db sql": "9999",
    "db grants": "'' --as worker",
    "gateway serve": "--port 99999",
    "dev up": "not-ours",
    "dev down": "nothing-here",
    "dev env": "nothing-here",
    "demo": "--pg 9",
    "reproduce": "",
}

NOT_FOUND: Typed = {
    "settle": "m_9 --gateway shop_of_codes:sends",
    "show": "m_1 nope",
    "history": "m_1 nope",
    "why": "m_1 nope",
    "claim": "m_1 nope",
    "confirm": "m_1 nope --gateway-ref re_nope",
    "fail": "m_1 nope",
    "release": "m_1 nope",
    "unknown": "m_1 nope",
    "resolve": "m_1 nope --to failed --evidence seen",
    "requeue": "m_1 nope --not-at-gateway",
    "cancel": "m_1 nope --yes",
    "review": "m_1 nope",
    "return": "m_1 nope --evidence seen --yes",
    "lease show": "settle:nobody",
    "lease advise": "nothing",
    "lease break": f"settle:nobody --holder {ALICE} --yes",
}

# A refund that is final can't be moved, and the merchant's other one can.
REFUSED: Typed = {
    "settle": "m_2 --gateway shop_of_codes:Late",
    "claim": "m_1 final",
    "confirm": "m_1 final --gateway-ref re_other",
    "fail": "m_1 final",
    "release": "m_1 final",
    "unknown": "m_1 final",
    "resolve": "m_1 final --to failed --evidence seen",
    "requeue": "m_1 final --not-at-gateway",
    "cancel": "m_1 final --yes",
    "review": "m_1 final",
    "return": "m_1 claim --evidence seen --yes",
}

PARTLY: Typed = {
    "settle": "m_2 --gateway shop_of_codes:accepts",
    "claim": "m_1 claim nope",
    "confirm": "m_1 -",
    "fail": "m_1 fail nope",
    "release": "m_1 release nope",
    "unknown": "m_1 unknown nope",
    "resolve": "m_1 resolve nope --to failed --evidence seen",
    "requeue": "m_1 requeue nope --not-at-gateway",
    "cancel": "m_1 cancel nope --yes",
    "review": "m_1 review nope",
    "return": "m_1 return nope --evidence seen --yes",
}

BUSY: Typed = {
    "settle": "m_1 --gateway shop_of_codes:sends",
    "claim": DONE["claim"],
    "confirm": DONE["confirm"],
    "fail": DONE["fail"],
    "release": DONE["release"],
    "unknown": DONE["unknown"],
    "run": DONE["run"],
    "lease break": f"{IDLE} --holder {BOB} --yes",
}

ASKED: Typed = {
    "claim": "m_1 --all --state pending",
    "confirm": "m_1 --all --state sending --gateway-ref re_1",
    "fail": "m_1 --all --state sending",
    "release": "m_1 --all --state sending",
    "unknown": "m_1 --all --state sending",
    "resolve": "m_1 --all --state review --to failed --evidence seen",
    "requeue": "m_1 --all --state review --not-at-gateway",
    "cancel": "m_1 cancel",
    "review": "m_1 --all --state unknown",
    "return": "m_1 return --evidence seen",
    "recover failover": "",
    "lease break": f"{IDLE} --holder {ALICE}",
    "db downgrade": "base --dsn {migrator}",
}

UNKNOWN: Typed = {"settle": "m_2 --gateway shop_of_codes:silent"}
PROBLEMS: Typed = {"verify": "", "stuck": "", "doctor": "--dsn {empty}"}
NOT_EXECUTABLE: Typed = {"run": f"{JOB} -- ./refunds.csv"}
NO_SUCH_PROGRAM: Typed = {"run": f"{JOB} -- no-such-program"}

STOPPED: Typed = {"metrics": "--listen 127.0.0.1:0"}

# What takes a process or servers of its own, and where that is tried.
SETTLE, SERVERS = "tests/commands/test_settle.py", "tests/commands/test_servers.py"
REPRODUCE = "tests/reproduce/test_reproduce.py"
ELSEWHERE = {
    ("settle", 130): f"{SETTLE}::test_a_signal_lets_what_is_in_flight_finish_and_gives_the_rest_back",
    ("settle", 143): f"{SETTLE}::test_a_signal_lets_what_is_in_flight_finish_and_gives_the_rest_back",
    ("run", 8): "tests/commands/test_run.py::test_when_the_lease_is_lost_the_program_is_stopped",
    ("mode set", 6): "tests/commands/test_mode.py::test_transactions_that_go_unchecked_are_waited_for_and_then_named",
    ("gateway serve", 0): f"{SERVERS}::test_the_gateway_serves_until_it_is_stopped",
    ("dev up", 0): f"{SERVERS}::test_the_first_commands_of_a_newcomer_work_one_after_the_other",
    ("dev down", 0): f"{SERVERS}::test_the_first_commands_of_a_newcomer_work_one_after_the_other",
    ("dev env", 0): f"{SERVERS}::test_the_first_commands_of_a_newcomer_work_one_after_the_other",
    ("doctor", 0): "tests/dba/test_doctor.py::test_the_command_ends_in_0_where_there_is_no_fault",
    ("demo", 0): f"{SERVERS}::test_the_demo_as_json_is_one_line_and_its_story_goes_to_stderr",
    ("demo", 1): f"{SERVERS}::test_the_demo_as_json_is_one_line_and_its_story_goes_to_stderr",
    ("reproduce", 0): f"{REPRODUCE}::test_cells_come_out_as_they_must",
    ("reproduce", 1): f"{REPRODUCE}::test_a_cell_that_should_fail_and_does_not_is_an_error",
}

ADAPTERS = '''
import os
import psycopg
from ledger.client import Ledger
from ledger.gateway import Accepted, Nothing, Sent, Unknown

class Gateway:
    def __init__(self, answer):
        self.answer = answer

    def refund(self, refund, token, timeout):
        return self.answer

    def find(self, key, timeout):
        return Nothing()

sends, accepts, silent = Gateway(Sent("re_2")), Gateway(Accepted("re_2")), Gateway(Unknown("timeout"))

class Late(Gateway):
    """A worker that is fenced out while its call is at the gateway."""

    def __init__(self):
        super().__init__(Sent("re_late"))

    def refund(self, refund, token, timeout):
        with psycopg.connect(os.environ["LEDGER_DSN"], autocommit=True) as connection:
            other = Ledger(connection, refusals=connection)
            other.activate_token("settle:m_2", other.draw_token("settle:m_2"), "bob/2/bbbbbbbbbbbbbbbb")
        return self.answer
'''


def documented(command: str) -> dict[int, str]:
    """The exit codes of a command, with what its help says of each."""
    text = inspect.cleandoc(LEAVES[command].help or "").partition("Exit codes:\n")[2]
    cells = (cell for line in text.splitlines() for cell in re.split(r"\s{2,}", line.strip()))
    named = (re.fullmatch(r"(\d+(?:, \d+)*) (.+)", cell) for cell in cells)
    return {int(code): match[2] for match in named if match for code in match[1].split(", ")}


CODES = {command: documented(command) for command in LEAVES}


def telling(code: int, words: str = "") -> list[str]:
    """The commands whose help has these words beside a code."""
    return [command for command, codes in CODES.items() if code in codes and words in codes[code]]


def each_ends_in(cli: Cli, code: int, typed: Typed, *more: str, stdin: str | TextIO = "", **names: str) -> None:
    """Every command that is typed ends in this code; where nothing was done it says why."""
    ends = {}
    for command, words in typed.items():
        said = cli(*REASON, *command.split(), *more, *shlex.split(words.format(**names)), stdin=stdin)
        ends[command] = (said.code, said.err if said.code != code else said.err != "" or code in {0, 7, 8, 10})
    assert ends == dict.fromkeys(typed, (code, True))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[None]:
    """Files and adapters in the folder where the commands are called."""
    (tmp_path / "refunds.csv").write_text("merchant_id,refund_id,amount,currency\nm_3,r_1,70.25,EUR\n")
    (tmp_path / "shop_of_codes.py").write_text(ADAPTERS)
    (tmp_path / "not-ours").mkdir()
    (tmp_path / "not-ours" / "notes.txt").write_text("x")
    yield
    sys.modules.pop("shop_of_codes", None)


@pytest.fixture
def refunds(shop: None, ledger: Ledger, admin: psycopg.Connection[Any]) -> None:
    """A refund for each command, in the state that it is for; leases that nobody has any more."""
    token = activated(ledger)
    for command, state in STATES.items():
        in_state(state, command, token, ledger, admin)
    added(ledger, "r_2", merchant_id="m_2")
    activated(ledger, resource=IDLE)
    job = activated(ledger, resource="report:weekly")
    ledger.record_hold("report:weekly", job, timedelta(seconds=10), 0, 0)


@pytest.fixture
def answering_no() -> Iterator[Callable[[], TextIO]]:
    """A terminal at which a person answers the next question with no."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, encoding="utf-8") as terminal:

        def answer() -> TextIO:
            os.write(ours, b"n\n")
            return terminal

        yield answer
    os.close(ours)


def test_each_code_that_help_names_has_a_case() -> None:
    tried = {(command, code) for command, code in ELSEWHERE}
    for code, typed in {
        0: DONE, 1: ASKED, 2: WRONG, 3: REFUSED, 5: NOT_FOUND, 6: BUSY, 7: UNKNOWN, 8: PARTLY, 10: PROBLEMS,
        126: NOT_EXECUTABLE, 127: NO_SUCH_PROGRAM, 130: STOPPED, 143: STOPPED,
    }.items():  # fmt: skip
        tried |= {(command, code) for command in typed}
    # These two are typed for whichever command names them.
    tried |= {(command, code) for command, codes in CODES.items() for code in (4, 9) if code in codes}
    tried.remove(("run", 0))  # the program's own

    assert tried == {(command, code) for command, codes in CODES.items() for code in codes}
    assert {command for command, codes in CODES.items() if {4, 9} & codes.keys()} <= DONE.keys()


def test_each_case_that_is_elsewhere_exists() -> None:
    for place in ELSEWHERE.values():
        file, name = place.split("::")
        assert f"def {name}(" in (CHECKOUT / file).read_text()


# Each code, by its fault.


@pytest.mark.usefixtures("refunds")
def test_0_is_done(cli: Cli, migrator_dsn: str) -> None:
    done = {command: words for command, words in DONE.items() if (command, 0) not in ELSEWHERE}
    each_ends_in(cli, 0, done, migrator=migrator_dsn)


@pytest.mark.usefixtures("refunds")
def test_1_is_a_question_that_was_answered_with_no(
    cli: Cli, migrator_dsn: str, admin: psycopg.Connection[Any], answering_no: Callable[[], TextIO]
) -> None:
    on_a_new_timeline(admin)
    before = written(admin)
    for command, words in ASKED.items():
        each_ends_in(cli, 1, {command: words}, stdin=answering_no(), migrator=migrator_dsn)
    assert written(admin) == before


@pytest.mark.usefixtures("refunds")
def test_2_is_wrong_usage_or_bad_input(cli: Cli, migrator_dsn: str) -> None:
    each_ends_in(cli, 2, WRONG, migrator=migrator_dsn)


def test_2_is_a_write_by_hand_without_a_reason_too(nowhere: Cli) -> None:
    for command in telling(2, "no reason given"):
        said = nowhere(*command.split(), *shlex.split(DONE[command]))
        assert (command, said.code) == (command, 2)
        assert "needs a reason" in said.err


@pytest.mark.usefixtures("refunds")
def test_3_is_refused(cli: Cli) -> None:
    each_ends_in(cli, 3, REFUSED)


@pytest.mark.usefixtures("shop")
def test_4_is_a_postgres_that_is_away(cli: Cli) -> None:
    away = {command: without_dsn(DONE[command]) for command in telling(4)}
    each_ends_in(cli, 4, away, "--dsn", NOWHERE)


@pytest.mark.usefixtures("refunds")
def test_4_is_a_redis_that_is_away(cli: Cli) -> None:
    each_ends_in(cli, 4, {command: DONE[command] for command in telling(4, "Redis")}, "--redis", NO_REDIS)


@pytest.mark.usefixtures("refunds")
def test_4_is_a_gateway_that_is_away(cli: Cli) -> None:
    away = {command: DONE[command] for command in telling(4, "gateway")}
    away["settle"] = "m_2"
    each_ends_in(cli, 4, away, "--gateway", NO_GATEWAY)


@pytest.mark.usefixtures("refunds")
def test_4_is_a_user_who_may_not(cli: Cli, reader_dsn: str) -> None:
    withheld = {command: DONE[command] for command in telling(4, "this user may not")}
    withheld["recover setting"] = "lift"
    each_ends_in(cli, 4, withheld, "--dsn", reader_dsn)


@pytest.mark.usefixtures("refunds")
def test_5_is_not_found(cli: Cli) -> None:
    each_ends_in(cli, 5, NOT_FOUND)


@pytest.mark.usefixtures("refunds")
def test_6_is_busy(cli: Cli, dsn: str, redis_url: str) -> None:
    with Lease(RESOURCE, db=dsn, redis=redis_url), Lease(JOB, db=dsn, redis=redis_url):
        each_ends_in(cli, 6, BUSY)


@pytest.mark.usefixtures("refunds")
def test_7_is_an_outcome_that_is_not_known(cli: Cli) -> None:
    each_ends_in(cli, 7, UNKNOWN)


@pytest.mark.usefixtures("refunds")
def test_8_is_partly_done(cli: Cli) -> None:
    each_ends_in(cli, 8, PARTLY, stdin="confirm,re_confirm\nnope,re_nope\n")


@pytest.mark.usefixtures("shop")
def test_9_is_a_schema_that_is_missing(cli: Cli, empty_dsn: str) -> None:
    each_ends_in(cli, 9, {command: DONE[command] for command in telling(9)}, "--dsn", empty_dsn)


@pytest.mark.usefixtures("refunds")
def test_10_is_a_check_that_found_problems(cli: Cli, admin: psycopg.Connection[Any], empty_dsn: str) -> None:
    as_ledger_fn(admin, "update ledger.refund set amount_minor = 1 where refund_id = 'show'")
    each_ends_in(cli, 10, PROBLEMS, empty=empty_dsn)


@pytest.mark.usefixtures("refunds")
def test_126_and_127_are_programs_that_can_not_be_started(cli: Cli) -> None:
    each_ends_in(cli, 126, NOT_EXECUTABLE)
    each_ends_in(cli, 127, NO_SUCH_PROGRAM)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_130_and_143_are_signals(cli: Cli, monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    """The signal comes as soon as it serves."""
    monkeypatch.setattr("socketserver.BaseServer.serve_forever", lambda *_, **__: os.kill(os.getpid(), number))
    each_ends_in(cli, code, STOPPED)


def without_dsn(words: str) -> str:
    return words.replace("--dsn {migrator}", "")
