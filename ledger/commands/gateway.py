"""`ledger gateway`: the sandbox gateway."""

from __future__ import annotations

from typing import Any

from ledger.commands.app import App, command, group, pass_app
from ledger.sandbox.command import command as sandbox


@group("gateway")
def gateway_command() -> None:
    """The sandbox gateway: moves no real money, can misbehave, remembers every movement."""


@command(gateway_command, "serve")
@pass_app
def serve(app: App, /, **options: Any) -> None:
    """Run a payment gateway that moves no real money and can misbehave.

    It says where it listens, then serves until SIGTERM or Ctrl-C. It asks nobody who they are: keep it on loopback.

    With -o json its errors are JSON, and nothing else is.

    \b
    Example:
      ledger gateway serve --port 8080 --latency 0.2
      ledger gateway serve --fault m_4471/r_815=drop_reply
    \b
    Exit codes:
      0 stopped by SIGTERM or Ctrl-C       2 bad input, or the port or the log can't be had
    """
    app.refuse_dry_run("gateway serve")
    assert sandbox.callback is not None
    sandbox.callback(**options)


serve.params[:0] = sandbox.params
