"""docs/adopt.md, run from the page itself: from a table that is there to `enforce`, and back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ledger import dev

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "adopt.md").read_text()
STEPS = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$|^<!-- (a day passes) -->$", re.MULTILINE | re.DOTALL)
USERS = {"example": "shop_owner", "owner": "shop_owner", "app": "shop_app", "dba": "dba", "carol": "carol"}

DJANGO = """
import os, django
from django.conf import settings
settings.configure(INSTALLED_APPS=[], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "USER": "shop_app"}})
django.setup()
from django.db import models
class Charge(models.Model):
    charge_id = models.BigAutoField(primary_key=True)
    org_id = models.TextField()
    month = models.DateField()
    amount_minor = models.BigIntegerField()
    class Meta:
        app_label, db_table, managed = "shop", "charge", False
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """The reader's place: a database, a shell, and somebody who looks on."""

    folder: Path
    environment: dict[str, str]
    admin: psycopg.Connection[Any]

    def run(self, *command: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """Run something there."""
        return subprocess.run(
            command, input=stdin, cwd=self.folder, env=self.environment | more, capture_output=True, text=True,
            check=False, timeout=50,
        )  # fmt: skip

    def months(self) -> list[tuple[str, int]]:
        """What was charged."""
        return self.admin.execute("select month::text, amount_minor from charge order by 1").fetchall()


@pytest.fixture
def shop(running: dev.Servers, empty_dsn: str, tmp_path: Path) -> Iterator[Shop]:
    """An empty database with people in it, before the ledger is installed."""
    database = str(psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"])
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ledger").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ledger "$@"\n')
    (programs / "ledger").chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PG", "LEDGER", "REDIS"))},
        "PATH": f"{programs}:{running.pg_bin}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "PGHOST": str(running.sockets),
        "PGPORT": str(running.postgres.port),
        "PGDATABASE": database,
    }
    people = [sql.Identifier(name) for name in ("dba", "carol", "shop_owner", "shop_app")]
    with psycopg.connect(running.dsn("postgres", database), autocommit=True) as admin:
        for name in people:
            admin.execute(sql.SQL("create role {} login").format(name))
        admin.execute("alter role dba superuser")
        admin.execute("grant create on schema public to shop_owner")
        try:
            yield Shop(tmp_path, environment, admin)
        finally:
            for name in people:
                admin.execute(sql.SQL("reassign owned by {0} to postgres; drop owned by {0}").format(name))
                admin.execute(sql.SQL("drop role {}").format(name))


@pytest.mark.heavy
def test_the_page_from_its_first_command_to_its_last(shop: Shop) -> None:
    outputs = []
    for language, info, text, aside in STEPS.findall(PAGE):
        if aside:
            a_day_passes(shop)
            continue
        done = take_step(shop, language, info, text)
        code = int((re.findall(r"exit=(\d+)", info) or ["3" if "refused" in info else "0"])[0])
        assert done.returncode == code, f"{text}\n{done.stdout}\n{done.stderr}"
        outputs.append(done.stdout + done.stderr)

    said = "\n".join(outputs)
    assert "charged under token" in said
    assert "failed 1 of 5 no price for April" in said
    assert "no token was presented for monthly-charges:org_7" in said, "the write that enforce refuses"
    assert shop.months() == [
        ("2026-11-01", 1201),
        ("2026-12-01", 1250),
        ("2027-01-01", 1200),
        ("2027-02-01", 1200),
        ("2027-03-01", 1200),
        ("2027-06-01", 900),
    ]
    assert trigger_names(shop) == [], "everything is taken off again"
    modes = shop.admin.execute(
        "select actor, detail ->> 'after' from ledger.event where event = 'mode_set' order by event_id"
    ).fetchall()
    assert [after for _, after in modes] == ["shadow", "enforce", "off"]


def take_step(shop: Shop, language: str, info: str, text: str) -> subprocess.CompletedProcess[str]:
    if language == "sh":
        return shop.run("bash", "-euo", "pipefail", "-c", text)
    if language == "sql":
        user = USERS[info.split(maxsplit=1)[0]]
        return shop.run("psql", "-X", "-v", "ON_ERROR_STOP=1", "-f", "-", stdin=text, PGUSER=user)
    if info == "django":
        text = f"{DJANGO}\n{text}\ncharge('org_7', '2027-06-01', 900)\n"
    return shop.run(sys.executable, "-c", text)


def a_day_passes(shop: Shop) -> None:
    guard: Callable[[str], Any] = lambda how: shop.admin.execute(  # noqa: E731
        sql.SQL("alter table ledger.refusal {} trigger refusal_is_guarded").format(sql.SQL(how))  # type: ignore[arg-type]
    )
    guard("disable")
    shop.admin.execute("update ledger.refusal set at = at - interval '25 hours'")
    guard("enable always")


def trigger_names(shop: Shop) -> list[Any]:
    return shop.admin.execute("select tgname from pg_trigger where tgrelid = 'charge'::regclass").fetchall()
