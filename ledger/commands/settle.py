"""`ledger settle`: send a merchant's refunds, each once."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, cast

import click

from ledger.client import Ledger
from ledger.commands import output
from ledger.commands.app import App, BadInput, NotFound, command, pass_app
from ledger.commands.durations import DURATION
from ledger.commands.exits import INTERRUPTED, PARTLY, REFUSED, TERMINATED, UNKNOWN, describe
from ledger.gateway import Gateway
from ledger.settle import Options, settle
from ledger.settlement import Event, Report

SANDBOX_LOG = Path("sandbox-gateway.log")


@command(name="settle")
@click.argument("merchant")
@click.option(
    "--gateway",
    required=True,
    metavar="sandbox|URL|MODULE:NAME",
    help="sandbox: one of its own, with its log here; URL: a sandbox that runs; MODULE:NAME: your adapter.",
)
@click.option("--ttl", type=DURATION, help="The lease's time limit.  [default: the kind's]")
@click.option("--wait", type=DURATION, default="0", show_default=True, help="How long to wait for a busy lease.")
@click.option("--in-flight", type=click.IntRange(1, 1000), default=32, show_default=True, help="Gateway calls at once.")
@click.option("--batch", type=click.IntRange(1, 1000), default=100, show_default=True, help="Refunds a claim takes.")
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="For one gateway call.")
@click.option("--grace", type=DURATION, default="10s", show_default=True, help="For calls under way after a stop.")
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
    Exit codes: 0 all done, 3 refused by the fence, 4 unreachable, 5 no such merchant, 6 a live holder has the lease,
    7 some outcome is unknown, 8 open rows remain, 130/143 stopped.
    """
    app.refuse_dry_run("settle")
    options = Options(in_flight, batch, timeout.total_seconds(), grace.total_seconds())
    redis, open_now = _look_first(app, merchant)
    with (
        _gateway(gateway) as adapter,
        _stop_on_signals() as stopped,
        click.progressbar(
            length=open_now, label=f"settling {merchant}", file=sys.stderr, hidden=not sys.stderr.isatty()
        ) as bar,
    ):

        def notify(event: Event) -> None:
            if event.name in ("recorded", "refused"):
                bar.update(1)

        report = settle(
            merchant,
            db=app.connect,
            gateway=adapter,
            redis=redis,
            ttl=None if ttl is None else ttl.total_seconds(),
            wait=wait.total_seconds(),
            options=options,
            stop=stopped,
            notify=notify,
        )
    _tell(app, report)
    return stopped.code or _exit_code(report)


class Stopped(threading.Event):
    """Set by the first signal; `code` is the exit code that the signal stands for."""

    code = 0


@contextmanager
def _stop_on_signals() -> Iterator[Stopped]:
    """While the block runs, the first Ctrl-C or SIGTERM asks it to stop, a second one ends it at once."""
    stopped = Stopped()
    codes = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
    before = {number: signal.getsignal(number) for number in codes}

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.code = codes[signal.Signals(number)]
        stopped.set()
        output.say("stopping: waiting for what is at the gateway; again ends at once")
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in codes:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _look_first(app: App, merchant: str) -> tuple[str | None, int]:
    """Where the lease lives (None: in Postgres), and how many refunds are open."""
    with app.connect() as connection:
        ledger = Ledger(connection)
        known = connection.execute(
            "select exists (select from ledger.refund where merchant_id = %s)", (merchant,)
        ).fetchone()
        if known is None or not known[0]:
            raise NotFound(f"merchant {merchant} has no refunds.\nAdd them with ledger import FILE")
        open_now = sum(row.refunds for row in ledger.count_open(merchant))
        if ledger.get_kind("settle").lock == "advisory":
            return None, open_now
    return app.need_redis("the leases of kind settle live in Redis"), open_now


@contextmanager
def _gateway(name: str) -> Iterator[Gateway]:
    from ledger.sandbox import SandboxGateway, SandboxProcess

    if name == "sandbox":
        with SandboxProcess(SANDBOX_LOG) as process, SandboxGateway(process.url) as adapter:
            output.say(f"sandbox gateway at {process.url}, its movements in {SANDBOX_LOG}")
            yield adapter
    elif name.startswith(("http://", "https://")):
        with SandboxGateway(name) as adapter:
            yield adapter
    else:
        yield _load(name)


def _load(name: str) -> Gateway:
    """A user's adapter, MODULE:NAME; a class or function is called without arguments."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise BadInput(f"--gateway {name!r} is neither sandbox, a URL, nor MODULE:NAME. Nothing was sent.")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"--gateway {name!r} can't be loaded: {error}. Nothing was sent.") from None
    if isinstance(found, type) or (callable(found) and not hasattr(found, "refund")):
        found = found()
    if not (hasattr(found, "refund") and hasattr(found, "find")):
        raise BadInput(f"--gateway {name!r} has no refund and find, see ledger.gateway.Gateway. Nothing was sent.")
    return cast("Gateway", found)


def _tell(app: App, report: Report) -> None:
    open_by_state: dict[str, int] = {}
    for row in report.open:
        open_by_state[row.state] = open_by_state.get(row.state, 0) + row.refunds
    facts: dict[str, Any] = {
        "merchant_id": report.merchant_id,
        "token": report.token,
        "holder": report.holder,
        "sent": report.counts.get("sent", 0),
        "sent_minor": report.sent_minor,
        "failed": report.counts.get("failed", 0),
        "taken_over": report.counts.get("taken_over", 0),
        "left_open": open_by_state,
        "not_recorded": report.unrecorded,
        "refused": [{"refund_id": refund, "code": code} for refund, code in report.refused],
        "stopped": report.stopped,
    }
    output.one(app, facts)
    for why in (report.refusal, report.lost):
        if why is not None:
            message, _, hint = describe(why)
            output.say(f"ended early: {message}" + (f"\n  next: {hint}" if hint else ""))
    if report.unrecorded:
        output.say("the gateway's answers that were not recorded are above; the next holder asks it about them")
    for state, refunds in open_by_state.items():
        output.say(f"{refunds} left {state}: ledger list {report.merchant_id} --state {state}")


def _exit_code(report: Report) -> int:
    if report.refusal is not None:
        return REFUSED
    if report.lost is not None or report.left_open() > report.left_open("unknown"):
        return PARTLY
    return UNKNOWN if report.left_open("unknown") else 0
