"""A Postgres and a Valkey that belong together, kept in one folder."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import quote

from ledger.dev import binaries
from ledger.dev.account import Account, server_account
from ledger.dev.errors import DevError
from ledger.dev.postgres import SUPERUSER, Postgres
from ledger.dev.roles import MIGRATOR, prepare_database
from ledger.dev.valkey import Valkey

NOTE = "ledger-dev.json"
MADE_BY = "fenced-ledger"
DATABASE = "ledger"
POSTGRES_PORT = 5432
UNSAFE = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Note:
    """What the folder remembers of its servers. Paths are absolute; those of programs come last."""

    pg: str
    home: str
    sockets: str
    pg_bin: str = ""
    redis_program: str = ""
    port: int = POSTGRES_PORT
    redis_port: int | None = None
    password: str | None = None

    def write(self, folder: Path) -> None:
        """Save, in one step, readable by this user alone: it may hold a password."""
        fresh = folder / f".{NOTE}.new"
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps({"made_by": MADE_BY, **asdict(self)}, indent=2) + "\n")
        fresh.rename(folder / NOTE)

    @classmethod
    def read(cls, folder: Path) -> Note | None:
        """What was saved; None where the folder is empty or absent. Raises DevError if it isn't ours."""
        try:
            fields = json.loads((folder / NOTE).read_text())
            if fields.pop("made_by") == MADE_BY:
                return cls(**fields)
        except FileNotFoundError:
            if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        raise DevError(
            f"{folder} is not empty and was not made by `ledger dev up`. Nothing in it was touched. "
            "Choose an empty folder, or one that doesn't exist yet."
        )


class Servers:
    """The pair. It outlives the process that started it; `stop` ends what is running, and only that."""

    def __init__(self, folder: Path, note: Note) -> None:
        account = server_account()
        home, sockets = Path(note.home), Path(note.sockets)
        self.folder = folder
        self.pg = note.pg
        self.home = home
        self.sockets = sockets
        self.note = note
        self.postgres = Postgres(
            bin=Path(note.pg_bin),
            data=home / "postgres",
            log=home / "postgres.log",
            sockets=sockets,
            port=note.port,
            tcp=note.password is not None,
            account=account,
        )
        self.redis = Valkey(
            program=Path(note.redis_program),
            folder=home,
            socket=sockets / "redis.sock",
            port=note.redis_port,
            password=note.password,
            account=account,
        )

    @classmethod
    def start(
        cls,
        folder: str | Path,
        pg: str = "18",
        *,
        fsync: bool = True,
        tcp: bool = False,
        redis: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Servers:
        """Start the pair in `folder`, made where missing; one that runs already is left as it is.

        `pg` is the major version, `redis` the server program in place of the wheel's. `fsync=False` is
        for data nobody will miss. `tcp` opens both on 127.0.0.1, with a password, beside the sockets;
        it counts when the folder is made. `settings` go into postgresql.conf.
        Raises DevError when the folder isn't ours, holds another version, or a server doesn't start.
        """
        folder = Path(folder).expanduser().absolute()
        programs = binaries.postgres_initdb(pg), binaries.redis_server(redis)
        with _alone(folder):
            note = Note.read(folder) or _settle_in(folder, pg, tcp=tcp)
            if note.pg != pg:
                raise DevError(
                    f"{folder} holds a PostgreSQL {note.pg}, and {pg} was asked for. Nothing was changed. "
                    "Choose another folder, or leave the version as it is."
                )
            servers = cls(folder, note)
            if servers.running:
                return servers
            servers = cls(folder, _furnish(folder, note, *programs))
            servers._launch({**({} if fsync else UNSAFE), **(settings or {})})
        return servers

    @classmethod
    def at(cls, folder: str | Path) -> Servers:
        """The pair kept in `folder`, running or not. Raises DevError where there is none."""
        folder = Path(folder).expanduser().absolute()
        note = Note.read(folder)
        if note is None:
            raise DevError(f"there are no servers in {folder}. `ledger dev up {folder}` makes them.")
        return cls(folder, note)

    @property
    def running(self) -> bool:
        """Whether both are running."""
        return self.postgres.pid is not None and self.redis.pid is not None

    @property
    def pg_bin(self) -> Path:
        """The folder of Postgres' programs: psql, pg_dump and the like."""
        return self.postgres.bin

    @property
    def redis_url(self) -> str:
        """Valkey by its socket."""
        login = f":{self.note.password}@" if self.note.password else ""
        return f"unix://{login}{self.redis.socket}"

    @property
    def redis_tcp_url(self) -> str:
        """Valkey by TCP. Raises DevError for servers that were made without."""
        return f"redis://:{self._tcp_password()}@127.0.0.1:{self.note.redis_port}/0"

    def dsn(self, user: str = MIGRATOR, dbname: str = DATABASE) -> str:
        """A database by the socket, as any of the roles; nobody else can enter the socket's folder."""
        place = f"host={quote(str(self.sockets), safe='/')}&port={self.note.port}"
        return f"postgresql://{quote(user, safe='')}@/{quote(dbname, safe='')}?{place}"

    def tcp_dsn(self, user: str = MIGRATOR, dbname: str = DATABASE) -> str:
        """A database by TCP. Raises DevError for servers that were made without."""
        login = f"{quote(user, safe='')}:{self._tcp_password()}"
        return f"postgresql://{login}@127.0.0.1:{self.note.port}/{quote(dbname, safe='')}"

    def prepare(self, database: str = DATABASE) -> None:
        """Create the roles and an empty database owned by `ledger_admin`, whichever are missing."""
        prepare_database(self.dsn(SUPERUSER, "postgres"), database, self.note.password)

    def start_postgres(self) -> None:
        """Start Postgres again with the settings it had; a no-op while it runs."""
        self.postgres.start()

    def stop_postgres(self, mode: str = "fast") -> None:
        """Stop Postgres; a no-op while it's down."""
        self.postgres.stop(mode)

    def restart_postgres(self, mode: str = "fast") -> None:
        """Stop and start Postgres; its clients lose their connections."""
        self.postgres.stop(mode)
        self.postgres.start()

    def crash_postgres(self) -> None:
        """Stop Postgres without a checkpoint: the next start recovers from the log."""
        self.postgres.stop("immediate")

    def start_redis(self) -> None:
        """Start Valkey, empty; a no-op while it runs."""
        self.redis.start()

    def kill_redis(self) -> None:
        """End Valkey at once, with all that it held."""
        self.redis.kill()

    def stop(self, mode: str = "fast") -> None:
        """Stop both. The data stays."""
        self.redis.stop()
        self.postgres.stop(mode)

    def remove(self) -> None:
        """Stop both and delete all that they left. An empty folder remains."""
        self.stop("immediate")
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)
        (self.folder / NOTE).unlink()

    def _launch(self, settings: Mapping[str, str]) -> None:
        self.postgres.make()
        if self.postgres.pid is None:
            self.postgres.configure(settings)
        self.postgres.start()
        self.redis.start()

    def _tcp_password(self) -> str:
        if self.note.password is None:
            raise DevError(f"the servers in {self.folder} have no TCP port. Make new ones with tcp=True.")
        return self.note.password


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two starts in one folder, made where missing, take turns."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise DevError(f"{folder} can't be used: {error.strerror}. Choose another folder.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _settle_in(folder: Path, pg: str, *, tcp: bool) -> Note:
    """Decide on the places of new servers, and remember them before anything is put there."""
    account = server_account()
    note = Note(pg, home=str(_choose_home(folder, account)), sockets=str(_make_sockets(account)))
    if tcp:
        port, redis_port = _free_ports()
        note = replace(note, port=port, redis_port=redis_port, password=secrets.token_hex(16))
    note.write(folder)
    return note


def _furnish(folder: Path, note: Note, initdb: Path, redis_program: Path) -> Note:
    """Make whatever the servers need and isn't there; a new venv or a reboot may have taken some away."""
    account = server_account()
    home = Path(note.home)
    home.mkdir(mode=0o700, exist_ok=True)
    account.own(home)
    note = replace(
        note,
        pg_bin=str(binaries.within_reach(initdb, home / "programs", account).parent),
        redis_program=str(binaries.within_reach(redis_program, home / "programs", account)),
        sockets=note.sockets if Path(note.sockets).is_dir() else str(_make_sockets(account)),
    )
    note.write(folder)
    return note


def _make_sockets(account: Account) -> Path:
    # A socket's path has to fit into about 100 bytes, however deep the servers' folder lies.
    sockets = Path(tempfile.mkdtemp(prefix="ledger-", dir="/tmp"))
    account.own(sockets)
    return sockets


def _choose_home(folder: Path, account: Account) -> Path:
    if account.foreign:
        folder.chmod(folder.stat().st_mode | 0o011)
        if not account.succeeds("test", "-x", folder):
            # Root's servers run as another user, who can't enter a folder below /root.
            return Path(tempfile.mkdtemp(prefix="ledger-servers-", dir="/var/tmp"))
    return folder / "servers"


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
