"""`ledger gateway`: the sandbox gateway."""

from __future__ import annotations

import click

from ledger.sandbox.command import command as serve


@click.group("gateway")
def gateway_command() -> None:
    """The sandbox gateway: moves no real money, can misbehave, remembers every movement."""


gateway_command.add_command(serve)
