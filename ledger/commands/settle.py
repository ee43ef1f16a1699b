"""`ledger settle`: send a merchant's refunds, each once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import click

from ledger.commands import gateways, output
from ledger.commands.app import App, NotFound, command, pass_app
from ledger.commands.durations import DURATION, DURATION_OR_ZERO
from ledger.commands.exits import BUSY, INTERRUPTED, PARTLY, REFUSED, TERMINATED, UNKNOWN, Terminated, describe
from ledger.commands.holders import told
from ledger.errors import Busy, Paused
from ledger.settle import Options, settle
from ledger.settlement import Event, Report


@command(name="settle")
@click.argument("merchant")
@click.option(
    "--gateway",
    required=True,
    metavar=gateways.METAVAR,
    help="sandbox: one of its own, with its log here; URL: a sandbox that runs; MODULE:NAME: your adapter.",
)
@click.option("--ttl", type=DURATION, help="The lease's time limit.  [default: the kind's]")
@click.option(
    "--wait", type=DURATION_OR_ZERO, default="0", show_default=True, help="How long to wait for a busy lease."
)
@click.option("--in-flight", type=click.IntRange(1, 1000), default=32, show_default=True, help="Gateway calls at once.")
@click.option("--batch", type=click.IntRange(1, 1000), default=100, show_default=True, help="Refunds a claim takes.")
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="For one gateway call.")
@click.option(
    "--grace", type=DURATION_OR_ZERO, default="10s", show_default=True, help="For calls under way after a stop."
)
@pass_app
def settle_command(
    app: App,
    merchant: str,
    gateway: str,
    ttl: timedelta | None,
    wait: timedelta,
    in_flight: int,
    batch: int,
    timeout: timedelta,
    grace: timedelta,
) -> int:
    """Send MERCHANT's open refunds to the gateway, each once, and record what it said.

    Ctrl-C and SIGTERM: nothing more is begun, what is at the gateway is waited for and recorded, the rest and the lease
    are given back.

    \b
    Example:
      ledger settle m_4471 --gateway sandbox
      ledger settle m_4471 --gateway myshop.payments:gateway --in-flight 8
    \b
    Exit codes:
      0 all done       2 bad input       3 refused by the fence       4 Postgres, Redis or the gateway can't be reached
      5 no such merchant                 6 a live holder has the lease       7 some outcome is unknown
      8 open rows remain                 9 schema missing or behind          130, 143 stopped by Ctrl-C, SIGTERM
    """
    app.refuse_dry_run("settle")
    before = _look_first(app, merchant)
    options = Options(in_flight, batch, timeout.total_seconds(), grace.total_seconds())
    with (
        gateways.opened(gateway) as adapter,
        _stop_on_signals() as stopped,
        click.progressbar(
            length=before.refunds, label=f"settling {merchant}", file=sys.stderr, hidden=not sys.stderr.isatty()
        ) as bar,
    ):

        def notify(event: Event) -> None:
            if event.name in ("recorded", "refused"):
                bar.update(1)

        try:
            report = settle(
                merchant,
                db=app.connect,
                gateway=adapter,
                redis=before.redis,
                ttl=None if ttl is None else ttl.total_seconds(),
                wait=wait.total_seconds(),
                options=options,
                stop=stopped,
                notify=notify,
            )
        except Busy as busy:
            with app.connect() as connection:
                raise told(busy, app.ledger(connection), f"settle:{merchant}") from busy
    _tell(app, report, before.exponents)
    return stopped.code or _exit_code(report)


class Stopped(threading.Event):
    """Set by the first signal; `code` is the exit code that the signal stands for."""

    code = 0
    is_looked_at = False

    def is_set(self) -> bool:
        """Whether to stop. Who asks has the lease by now, and will give back what it has claimed."""
        self.is_looked_at = True
        return super().is_set()


@contextmanager
def _stop_on_signals() -> Iterator[Stopped]:
    """While the block runs, the first Ctrl-C or SIGTERM asks it to stop, a second one ends it at once."""
    stopped = Stopped()
    codes = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.getsignal(number) for number in codes}

    def stop(number: int, frame: FrameType | None) -> None:
        if not stopped.is_looked_at:
            # Still waiting for the lease: there is nothing yet that has to be finished.
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        stopped.code = codes[signal.Signals(number)]
        stopped.set()
        for one, handler in before.items():
            signal.signal(one, handler)
        output.say("stopping: waiting for what is at the gateway; the same again ends at once")

    for number in codes:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Before:
    """What a merchant's settlement begins with: where its lease lives (None: in Postgres), and what is open."""

    redis: str | None
    refunds: int
    exponents: dict[str, int]


def _look_first(app: App, merchant: str) -> Before:
    """Raises NotFound for a merchant without refunds, and Unreachable where Redis is needed and not named."""
    with app.connect() as connection:
        ledger = app.ledger(connection)
        exponents = connection.execute(
            "select c.currency, c.exponent from ledger.currency as c"
            " where exists (select from ledger.refund as r where r.merchant_id = %s and r.currency = c.currency)",
            (merchant,),
        ).fetchall()
        if not exponents:
            raise NotFound(f"merchant {merchant} has no refunds", "Check the id, or add them: ledger import FILE")
        redis = app.need_redis("settle") if ledger.get_kind("settle").lock == "redis" else None
        return Before(redis, sum(row.refunds for row in ledger.count_open(merchant)), dict(exponents))


def _tell(app: App, report: Report, exponents: dict[str, int]) -> None:
    counts = report.counts
    left_open: dict[str, int] = {}
    for row in report.open:
        left_open[row.state] = left_open.get(row.state, 0) + row.refunds
    facts: dict[str, Any] = {
        "merchant_id": report.merchant_id,
        "token": report.token,
        "holder": report.holder,
        "sent": counts.get("sent", 0),
        "sent_minor": report.sent_minor,
        "failed": counts.get("failed", 0),
        "accepted": counts.get("accepted", 0),
        "unknown": counts.get("unknown", 0),
        "review": counts.get("review", 0),
        "given_back": counts.get("pending", 0),
        "taken_over": counts.get("taken_over", 0),
        "left_open": left_open,
        "not_recorded": report.unrecorded,
        "refused": [{"refund_id": refund, "code": code} for refund, code in report.refused],
        "stopped": report.stopped,
    }
    output.one(app, facts, human=_readable(facts, exponents))
    for why in (report.refusal, report.lost):
        if why is not None:
            message, _, hint = describe(why)
            output.say(f"ended early: {message}" + (f"\n  next: {hint}" if hint else ""))
    if report.unrecorded:
        output.say("what the gateway answered and nobody recorded is above; the next holder asks it again")
    for state, refunds in left_open.items():
        output.say(f"{refunds} left {state}: ledger list {report.merchant_id} --state {state}")


def _readable(facts: dict[str, Any], exponents: dict[str, int]) -> dict[str, Any]:
    """The same for a person: sums as money, and nothing of what didn't happen."""
    sums = [
        output.money(total, currency, exponents.get(currency, 2)) for currency, total in facts["sent_minor"].items()
    ]
    told = {name: value for name, value in facts.items() if name not in ("sent", "sent_minor") and value}
    refused = [f"{one['refund_id']} {one['code']}" for one in facts["refused"]]
    head = {name: told.pop(name) for name in ("merchant_id", "token", "holder")}
    sent = f"{facts['sent']} refunds" + "".join(f", {total}" for total in sums)
    return head | {"sent": sent} | told | {"refused": refused}


def _exit_code(report: Report) -> int:
    if report.refusal is not None:
        return BUSY if isinstance(report.refusal, Paused) else REFUSED
    if report.lost is not None or report.left_open() > report.left_open("unknown"):
        return PARTLY
    return UNKNOWN if report.left_open("unknown") else 0
