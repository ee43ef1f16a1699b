"""The `ledger` command."""

from __future__ import annotations

import sys

import click

from ledger import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ledger")
def ledger() -> None:
    """Refunds sent once: settle them, look at them, recover by hand."""


def main() -> None:
    """Run the command and leave with its exit code."""
    sys.exit(ledger.main(prog_name="ledger", standalone_mode=True))
