"""`python -m ledger.sandbox` runs a sandbox gateway."""

from __future__ import annotations

from .command import command

if __name__ == "__main__":
    command(prog_name="python -m ledger.sandbox")
