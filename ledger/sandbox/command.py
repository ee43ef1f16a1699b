"""The command `ledger gateway serve`, also `python -m ledger.sandbox`."""

from __future__ import annotations

from pathlib import Path

import click

from .engine import Behaviour, Fault
from .log import SandboxError
from .server import serve


class _BadInput(click.ClickException):
    exit_code = 2


def _planned(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, Fault], ...]:
    return tuple(_plan(value) for value in values)


def _plan(value: str) -> tuple[str, Fault]:
    key, _, name = value.rpartition("=")
    if not key or name not in list(Fault):
        raise click.BadParameter(f"{value!r}; KEY=FAULT was expected, with FAULT one of {', '.join(Fault)}")
    return key, Fault(name)


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: a free one.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    default="sandbox-gateway.log",
    show_default=True,
    help="Every movement of money, one JSON line each. Read back at the start.",
)
@click.option("--latency", type=float, default=0.0, show_default=True, help="Seconds each call takes.")
@click.option("--no-keys", is_flag=True, help="No idempotency keys: every request moves money.")
@click.option("--key-window", type=float, help="Seconds until a key is forgotten.  [default: never]")
@click.option("--check-token", is_flag=True, help="Refuse a lower token than one seen under the key.")
@click.option(
    "--fault",
    "faults",
    metavar="KEY=FAULT",
    multiple=True,
    callback=_planned,
    help=f"Let the next request under KEY meet FAULT: {', '.join(Fault)}. May be repeated.",
)
def command(
    host: str,
    port: int,
    log: Path,
    latency: float,
    no_keys: bool,
    key_window: float | None,
    check_token: bool,
    faults: tuple[tuple[str, Fault], ...],
) -> None:
    """Run a payment gateway that moves no real money and can misbehave.

    It says where it listens, then serves until SIGTERM or Ctrl-C. It asks nobody who they are: keep it on
    loopback.
    """
    try:
        behaviour = Behaviour(latency, not no_keys, key_window, check_token)
        serve(log, host=host, port=port, behaviour=behaviour, faults=faults)
    except SandboxError as error:
        raise _BadInput(str(error)) from error
