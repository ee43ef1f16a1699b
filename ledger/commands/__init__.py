"""The `ledger` command. Each command's module is imported when it is called, so that `ledger --help` stays quick."""

from __future__ import annotations

import importlib
import sys

import click

from ledger import __version__
from ledger.commands.app import add_global_options, take_global_options
from ledger.commands.exits import run

COMMANDS = {
    "import": ("ledger.commands.import_file", "Add refunds from a CSV file, all or nothing."),
    "settle": ("ledger.commands.settle", "Send a merchant's refunds, each once."),
    "show": ("ledger.commands.look", "One refund as it stands, and what may be done now."),
    "list": ("ledger.commands.look", "A merchant's refunds."),
    "history": ("ledger.commands.look", "Everything that happened to a refund."),
    "verify": ("ledger.commands.look", "Compare everything that is written down twice."),
    "claim": ("ledger.commands.by_hand", "Take refunds over by hand, and print the token."),
    "confirm": ("ledger.commands.by_hand", "Record by hand that the gateway sent a refund."),
    "fail": ("ledger.commands.by_hand", "Record by hand that the gateway refused for good."),
    "release": ("ledger.commands.by_hand", "Give back by hand what was certainly not sent."),
    "unknown": ("ledger.commands.by_hand", "Record by hand that the outcome isn't known."),
    "run": ("ledger.commands.run", "Any program under a lease."),
    "mode": ("ledger.commands.mode", "How protected tables are checked: off, shadow, enforce."),
    "refusals": ("ledger.commands.refusals", "What was refused, to whom."),
    "stuck": ("ledger.commands.stuck", "What needs a person, oldest first."),
    "why": ("ledger.commands.why", "A refund's whole story, as a table or a page."),
    "pause": ("ledger.commands.pause", "Stop a kind or a resource from beginning anything."),
    "resume": ("ledger.commands.pause", "Let it go on."),
    "resolve": ("ledger.commands.resolve", "Record what became of refunds in review, with evidence."),
    "requeue": ("ledger.commands.resolve", "Put refunds in review back to work."),
    "cancel": ("ledger.commands.resolve", "Cancel refunds that were certainly never sent."),
    "review": ("ledger.commands.resolve", "Take refunds out of the work until a person has looked."),
    "return": ("ledger.commands.resolve", "Record that sent refunds came back."),
    "recover": ("ledger.commands.recover", "Go on after a promotion or a restore."),
    "export": ("ledger.commands.export", "Entries and balances by day, for whoever reconciles."),
    "kind": ("ledger.commands.kind", "The kinds of jobs and their limits."),
    "lease": ("ledger.commands.lease", "Who holds what: list, show, break."),
    "doctor": ("ledger.commands.doctor", "What is wrong with an installation, and how to mend it."),
    "archive": ("ledger.commands.archive", "Move finished refunds out of the way, keys and totals kept."),
    "prune": ("ledger.commands.archive", "Forget old refusals and unused draws."),
    "metrics": ("ledger.commands.metrics", "What to watch, as Prometheus text."),
    "db": ("ledger.commands.db", "The schema: upgrade, downgrade, current, sql, grants, docs."),
    "gateway": ("ledger.commands.gateway", "The sandbox gateway."),
    "dev": ("ledger.commands.dev", "Embedded servers, to try things out."),
    "demo": ("ledger.commands.demo", "See a double send happen, and see it prevented."),
    "reproduce": ("ledger.commands.reproduce", "Count what each kind of lock lets happen, fault by fault."),
}

EXIT_CODES = """\b
Exit codes:
    0  done; also: nothing to do, done already
    1  unexpected; or a question was answered with no
    2  wrong usage or bad input
    3  refused by the fence
    4  Postgres, Redis or the gateway can't be reached
    5  not found
    6  busy: a lease, a lock or the gate is held; paused
    7  a gateway outcome is unknown
    8  partly done, open rows remain
    9  the schema is missing or behind
   10  a check found problems
  130, 141, 143  ended by Ctrl-C, by a reader that went away, by SIGTERM; a lease is given back
Where several fit: 3, then 8, then 7.
"""


class Commands(click.Group):
    """The commands by name, each imported when it is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which one needs them, not by the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command("ledger", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, "-V", "--version", prog_name="ledger")
@click.pass_context
def ledger(ctx: click.Context) -> None:
    """Refunds sent once, also when a worker freezes, dies or is cut off.

    The options below may stand before or after a command.
    """
    take_global_options(ctx)


add_global_options(ledger, hidden=False)


def main() -> None:
    """Run the command and leave with its exit code."""
    sys.exit(run(ledger))
