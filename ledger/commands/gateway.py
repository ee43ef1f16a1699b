"""`ledger gateway`: the sandbox gateway."""

from __future__ import annotations

from ledger.commands.app import add_global_options, group
from ledger.sandbox.command import command as serve


@group("gateway")
def gateway_command() -> None:
    """The sandbox gateway: moves no real money, can misbehave, remembers every movement."""


gateway_command.add_command(add_global_options(serve))
