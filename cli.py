"""The doorway of a checkout: `python cli.py` is the `ledger` command."""

from __future__ import annotations

from ledger.commands import main

if __name__ == "__main__":
    main()
