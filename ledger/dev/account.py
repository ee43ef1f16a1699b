"""Who the servers run as: this user, or for root an unprivileged one, since Postgres won't run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.dev.errors import DevError
from ledger.dev.waiting import wait_until

SERVER_USER = "pgserver"
SPARE_USER = "nobody"


@dataclass(frozen=True, slots=True)
class Account:
    """A system user, and whether it is another one than ours."""

    name: str
    uid: int
    gid: int
    foreign: bool

    def run(self, *command: str | Path) -> None:
        """Run a command as this user. Raises DevError with what it printed when it fails."""
        # A file and not a pipe: a server left behind would keep the pipe open, and us waiting.
        with tempfile.TemporaryFile() as output:
            status = self._call(command, output)
            if status != 0:
                output.seek(0)
                printed = output.read().decode(errors="replace").strip()
                raise DevError(f"{Path(command[0]).name} failed with status {status}:\n{printed}")

    def succeeds(self, *command: str | Path) -> bool:
        """Whether a command can be started by this user at all, and ends with status 0."""
        try:
            return self._call(command, subprocess.DEVNULL) == 0
        except PermissionError:
            return False

    def own(self, path: Path) -> None:
        """Hand a path over to this user, with all that is in it."""
        if self.foreign:
            os.chown(path, self.uid, self.gid)
            for entry in path.rglob("*"):
                os.chown(entry, self.uid, self.gid, follow_symlinks=False)

    def _call(self, command: tuple[str | Path, ...], output: Any) -> int:
        identity: dict[str, Any] = {}
        if self.foreign:
            identity = {"user": self.uid, "group": self.gid, "extra_groups": []}
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Nothing of the caller's: PGPORT, PGOPTIONS and the language would all reach the servers.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            cwd="/",
            check=False,
            **identity,
        ).returncode


def server_account() -> Account:
    """The account for the servers. Root's is made when missing, so this may add a system user."""
    if os.geteuid() != 0:
        uid = os.geteuid()
        return Account(_name(uid), uid, os.getegid(), foreign=False)
    entry = _find(SERVER_USER) or _add(SERVER_USER) or pwd.getpwnam(SPARE_USER)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, foreign=True)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise DevError(
            f"user id {uid} has no entry in the password file, and Postgres refuses to run without one. "
            "Nothing was started. Run as a user that has one."
        ) from None


def _find(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _add(name: str) -> pwd.struct_passwd | None:
    useradd = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if useradd is None:
        return None
    subprocess.run(
        [useradd, "--system", "--no-create-home", "--shell", "/bin/false", name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    # Two test workers add it at once; the one that was refused finds the other's a moment later.
    wait_until(lambda: _find(name) is not None, seconds=2)
    return _find(name)
