"""The scripts of docs/examples print what stands beside them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ledger import dev
from tests.dba.linters import CHECKOUT

pytestmark = pytest.mark.heavy

EXAMPLES = sorted((CHECKOUT / "docs/examples").glob("*.sql"))
CODES = {"stale_token": {"LG101", "LG102", "LG103"}, "takeover": {"LG204"}, "lock_job": {"LG103"},
         "protected_table": {"LG101", "LG103"}}  # fmt: skip

VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d)?"), "<time>"),
    (re.compile(r'(?<="pid": )\d+|(?<=\bpid )\d+'), "<pid>"),
)


def masked(text: str) -> str:
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return text


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_stands_beside_it(script: Path, running: dev.Servers, migrator_dsn: str) -> None:
    with script.open() as text:
        done = subprocess.run(
            [running.pg_bin / "psql", migrator_dsn, "-X", "-a"],
            stdin=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, cwd="/",
            env={**os.environ, "PATH": f"{running.pg_bin}:{os.environ['PATH']}"},
        )  # fmt: skip
    assert masked(done.stdout) == masked(script.with_suffix(".out").read_text())


def test_each_example_is_on_their_page_and_has_its_output() -> None:
    page = (CHECKOUT / "docs/examples/README.md").read_text()
    assert EXAMPLES
    assert {f"{name}.sql" for name in re.findall(r"^\| \[(\w+)\.sql\]", page, re.MULTILINE)} == {
        path.name for path in EXAMPLES
    }
    assert {path.stem for path in (CHECKOUT / "docs/examples").glob("*.out")} == {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fails_only_where_it_is_meant_to(script: Path) -> None:
    output = script.with_suffix(".out").read_text()
    assert set(re.findall(r"^(LG\d{3})$", output, re.MULTILINE)) == CODES.get(script.stem, set())
    told = script.read_text().count("LAST_ERROR_SQLSTATE") + script.read_text().count("\\! psql -X -v")
    assert output.count("ERROR:  ") == told
