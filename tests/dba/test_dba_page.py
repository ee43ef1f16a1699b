"""docs/dba.md is run from top to bottom, as the roles that it names, none of which is a superuser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ledger import dev, schema
from ledger.client import Ledger
from tests.dba.linters import CHECKOUT
from tests.story import activated, added

Connection = psycopg.Connection[Any]
PAGE = (CHECKOUT / "docs/dba.md").read_text()
PEOPLE = {"deploy": "", "role_team": "createrole", "shop_worker": "", "on_call": "", "auditor": ""}


def blocks(section: str, language: str) -> list[str]:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Site:
    """A site's shell, in a folder of its own, and its servers, which have never heard of the ledger."""

    def __init__(self, servers: dev.Servers, folder: Path) -> None:
        self.servers, self.folder = servers, folder
        self.superuser = servers.dsn("postgres", "postgres")

    def run(self, section: str) -> str:
        """Run a section's commands; what they printed."""
        ledger = f'ledger() {{ "{sys.executable}" -m ledger "$@"; }}'
        script = "\n".join(["set -euo pipefail", ledger, *blocks(section, "sh")])
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False, env={
                "PATH": f"{self.servers.pg_bin}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT),
                "PGHOST": str(self.servers.sockets), "PGPORT": str(self.servers.postgres.port),
                "HOME": str(self.folder),
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def connect(self, role: str) -> Connection:
        return psycopg.connect(self.servers.dsn(role, "shop"), autocommit=True)


@pytest.fixture(scope="module")
def site(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with dev.temporary(pytestconfig.getoption("pg")) as servers:
        with psycopg.connect(servers.dsn("postgres", "postgres"), autocommit=True) as root:
            for name, attributes in PEOPLE.items():
                root.execute(sql.SQL("create role {} login ").format(sql.Identifier(name)) + sql.SQL(attributes))
            root.execute("create database shop owner deploy")
        yield Site(servers, tmp_path_factory.mktemp("site"))


@pytest.mark.heavy
@pytest.mark.timeout(180)
def test_the_page_is_true_from_top_to_bottom(site: Site) -> None:
    site.run("Install")
    assert "(0 rows)" in site.run("Verify")

    down = schema.offline_sql(f"head:{schema.revisions()[-2]}", down=True)
    with site.connect("deploy") as deploy, deploy.transaction():
        deploy.execute(down)  # type: ignore[call-overload]
    site.run("Upgrade")
    assert schema.head() in site.run("Verify")

    with site.connect("shop_worker") as working:
        worker = Ledger(working)
        added(worker, "r_1")
        assert worker.claim_refund("m_1", "r_1", activated(worker)).outcome == "claimed"
    with site.connect("on_call") as inspecting:
        for statement in "".join(blocks("Inspect", "sql")).split(";\n"):
            inspecting.execute(statement)  # type: ignore[call-overload]

    site.run("Keep house")

    with site.connect("deploy") as deploy:
        deploy.execute("set role ledger_owner; alter table ledger.refund disable trigger user")
    assert "trigger_is_on" in site.run("Verify")
    site.run("Repair")
    assert "(0 rows)" in site.run("Verify")

    site.run("Remove")
    with psycopg.connect(site.superuser) as root:
        left = "select count(*) from pg_roles where rolname ~ '^ledger_'"
        assert root.execute(left).fetchone() == (0,)
    with psycopg.connect(site.servers.dsn("postgres", "shop")) as root:
        assert root.execute("select to_regnamespace('ledger')").fetchone() == (None,)


def test_no_command_of_the_page_is_left_out() -> None:
    sections = ("Install", "Verify", "Upgrade", "Keep house", "Repair", "Remove")
    run = [block for section in sections for block in blocks(section, "sh")]
    assert re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) == run


def test_the_locks_it_tells_of_are_those_that_are_taken() -> None:
    """A key space of the ledger's is the seed of a hash."""
    taken = {
        seed
        for path in schema.SQL.rglob("*.sql")
        for seed in re.findall(r"hashtextextended\([^;]*?, (\d)\)", path.read_text())
    }
    assert set(re.findall(r"`hashtextextended\([^)]*, (\d)\)`", PAGE)) == taken


def test_what_it_says_is_granted_set_and_waited_for_is_so(admin: Connection) -> None:
    can = "rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls"
    text = "".join(path.read_text() for path in schema.SQL.rglob("*.sql"))
    made = re.findall(r"create role %I (\w+)", text)
    assert made == ["nologin"]
    owners = admin.execute(f"select count(*) from pg_roles where rolname in ('ledger_owner', 'ledger_fn') and ({can})")
    assert owners.fetchone() == (0,)
    assert set(re.findall(r"set_config\(\s*'(\w+)'", text)) == {
        "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout", "synchronous_commit",
    }  # fmt: skip
    assert re.findall(r"set_config\([^;]*?, false\)", text) == []
    (limits,) = admin.execute("select (idle_limit, lock_limit, transaction_limit)::text from ledger.get_kind('x')")
    assert limits == ("(00:00:10,00:00:05,)",)
