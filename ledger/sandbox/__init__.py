"""The sandbox gateway: an HTTP server that moves no real money, can misbehave, and remembers every movement.

Its log is the judge of every double send: count its movements, not the ledger's rows.
"""

from __future__ import annotations

from .client import AsyncSandboxGateway, SandboxGateway
from .control import SandboxControl
from .engine import Behaviour, Calls, Fault
from .log import SandboxError
from .movements import Movement, Movements, read_movements
from .process import SandboxProcess
from .server import SandboxServer, serve

__all__ = [
    "AsyncSandboxGateway",
    "Behaviour",
    "Calls",
    "Fault",
    "Movement",
    "Movements",
    "SandboxControl",
    "SandboxError",
    "SandboxGateway",
    "SandboxProcess",
    "SandboxServer",
    "read_movements",
    "serve",
]
