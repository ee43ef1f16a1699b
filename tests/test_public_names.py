"""What `import ledger` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ledger


@pytest.mark.parametrize("name", ledger.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(ledger, name).__name__ == name


def test_the_list_is_sorted_and_every_name_has_one_home() -> None:
    homed = [name for names in ledger._HOMES.values() for name in names]

    assert ledger.__all__ == sorted(ledger.__all__)
    assert sorted(homed) == ledger.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Legder"):
        ledger.Legder  # noqa: B018


def test_neither_the_package_nor_the_help_loads_a_driver() -> None:
    script = (
        "import sys, ledger.commands; "
        "print(*({'psycopg', 'redis', 'alembic', 'sqlalchemy'} & {m.split('.')[0] for m in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert loaded.split() == []
