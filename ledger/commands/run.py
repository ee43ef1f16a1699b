"""`ledger run`: any program under a lease."""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import timedelta

import click

from ledger.commands.app import App, BadInput, Problem, command, pass_app, usable
from ledger.commands.durations import DURATION, DURATION_OR_ZERO
from ledger.commands.exits import PARTLY
from ledger.commands.holders import told
from ledger.commands.program import Program
from ledger.errors import Busy, LeaseLost
from ledger.lease import AdvisoryLease, Lease

LOOK_EVERY = 0.1


class Stopped(Problem):
    """The lease was lost, so the program was stopped. Exit code 8."""

    exit_code = PARTLY


@command(name="run")
@click.argument("resource", metavar="KIND:NAME")
@click.argument("arguments", metavar="-- COMMAND ...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--lock", type=click.Choice(["redis", "advisory"]), help="Where the lease lives.  [default: the kind's]")
@click.option("--ttl", type=DURATION, help="The lease's time limit.  [default: the kind's]")
@click.option(
    "--wait", type=DURATION_OR_ZERO, default="0", show_default=True, help="How long to wait for a busy lease."
)
@click.option(
    "--grace", type=DURATION_OR_ZERO, default="10s", show_default=True, help="From SIGTERM to SIGKILL after a loss."
)
@pass_app
def run_command(
    app: App,
    resource: str,
    arguments: tuple[str, ...],
    lock: str | None,
    ttl: timedelta | None,
    wait: timedelta,
    grace: timedelta,
) -> int:
    """Run COMMAND under a lease on KIND:NAME, and give the lease back when it has ended.

    The command finds its token in LEDGER_TOKEN, and what it is for in LEDGER_RESOURCE. When the lease is lost the
    command is sent SIGTERM, and SIGKILL after the grace. SIGINT, SIGTERM and SIGHUP go on to the command.

    What is printed is the command's own. With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      ledger run report:daily --lock advisory -- python report.py
      ledger run payouts:p_1 --wait 1m -- ./payout p_1 || [ $? = 6 ]     # 6: it runs already
    \b
    Exit codes:
      the command's own; 128 and the signal's number for one that a signal ended (130, 143)
      2 bad input      4 Postgres or Redis can't be reached      6 a live holder has the lease; nothing was started
      8 the lease was lost and the command stopped               9 schema missing or behind
      126 the command can't be executed                        127 there is no such command
    """
    app.refuse_dry_run("run")
    kind, colon, name = resource.partition(":")
    if not (kind and colon and name):
        raise BadInput(f"{resource!r} is no resource: those are kind:name. Nothing was changed", "report:daily")
    program = Program(arguments)
    program.check()
    with ExitStack() as stack:
        lease = _acquire(app, stack, resource, lock, ttl, wait)
        facts = {"LEDGER_TOKEN": str(lease.token), "LEDGER_RESOURCE": resource, "LEDGER_HOLDER": lease.holder}
        stack.enter_context(program.getting_our_signals())
        program.start(os.environ | facts)
        return _watch(program, lease, grace.total_seconds())


def _watch(program: Program, lease: Lease | AdvisoryLease, grace: float) -> int:
    """The program's exit code. Raises Stopped when the lease was lost meanwhile."""
    try:
        while (code := program.ended(LOOK_EVERY)) is None:
            lease.ensure()
    except LeaseLost as lost:
        program.stop(grace)
        raise Stopped(
            f"{lost.message}. The command was stopped",
            "What it has written under its token stays. Look how far it came, then run it again",
        ) from lost
    except BaseException:
        program.stop(grace)
        raise
    return code


def _acquire(
    app: App, stack: ExitStack, resource: str, lock: str | None, ttl: timedelta | None, wait: timedelta
) -> Lease | AdvisoryLease:
    """A lease that is held, and given back when the stack is left. Raises Busy, which tells all about who has it."""
    kind = resource.partition(":")[0]
    seconds = None if ttl is None else ttl.total_seconds()
    with app.connect() as connection:
        ledger = app.ledger(connection)
        with usable():
            lease: Lease | AdvisoryLease = (
                AdvisoryLease(resource, db=app.connect, ttl=seconds, wait=wait.total_seconds())
                if (lock or ledger.get_kind(kind).lock) == "advisory"
                else Lease(resource, db=app.connect, redis=app.need_redis(kind), ttl=seconds, wait=wait.total_seconds())
            )
        stack.push(lease)
        try:
            return lease.acquire()
        except Busy as busy:
            raise told(busy, ledger, resource) from busy
