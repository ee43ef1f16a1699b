from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.client import Ledger
from ledger.lease import Lease
from ledger.lease.redis_lock import SCRIPTS
from ledger.sandbox import Fault, SandboxControl, SandboxProcess
from tests.faults import FaultProxy
from tests.recipes.conftest import CHECKOUT, Program, Recipe
from tests.recipes.page import write_files
from tests.story import ALICE, BOB, MERCHANT, RESOURCE, activated, added, raised, until

PAGE = "other-languages.md"
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin") or "pgbouncer"
KEY = f"{MERCHANT}/r_1"

Waiting = Callable[[str], None]
Connection = psycopg.Connection[Any]

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180)]


@pytest.fixture
def pooled_dsn(network: FaultProxy, database: str) -> Iterator[str]:
    """The database behind a PgBouncer that gives each transaction its one connection."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        config = Path(folder, "pgbouncer.ini")
        config.write_text(
            f"[databases]\n{database} = host={network.host} port={network.port} user=ledger_worker\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 1\n"
        )
        as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
        with subprocess.Popen([PGBOUNCER, "-q", *as_user, str(config)]) as pooler:
            try:
                until(lambda: accepts(port))
                yield f"postgresql://ledger_worker@127.0.0.1:{port}/{database}?sslmode=disable"
            finally:
                pooler.terminate()


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Node worker's package.json asks for."""
    folder = tmp_path_factory.mktemp("node")
    write_files(PAGE, folder)
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=120)
    return folder / "node_modules"


@pytest.fixture
def workers(
    recipe: Recipe, ledger: Ledger, operators: Ledger, gateway: SandboxProcess, pooled_dsn: str, redis_url: str
) -> Recipe:
    """Three refunds, and all that the workers of the page need to settle them."""
    added(ledger, "r_1", "r_2", "r_3")
    operators.set_kind(
        "settle",
        lease_ttl=timedelta(seconds=3),
        idle_limit=timedelta(seconds=1),
        lock_limit=timedelta(seconds=1),
        actor="tests",
        reason="short limits",
    )
    path = redis_url.removeprefix("unix://")
    recipe.environment |= {
        "LEDGER_DSN": pooled_dsn,
        "LEDGER_REDIS": path,
        "REDIS_CLI": f"redis-cli -s {path}",
        "LEDGER_SCRIPTS": str(SCRIPTS),
        "GATEWAY_URL": gateway.url,
    }
    return recipe


@pytest.fixture(params=["node", "bash"])
def worker(request: pytest.FixtureRequest, workers: Recipe) -> Callable[[], Program]:
    """Start a worker, in either language."""
    if request.param == "bash":
        return lambda: workers.start("bash", "worker.sh", MERCHANT)
    return node(workers, request.getfixturevalue("node_modules"))


@pytest.fixture
def node_worker(workers: Recipe, node_modules: Path) -> Callable[[], Program]:
    return node(workers, node_modules)


def node(workers: Recipe, modules: Path) -> Callable[[], Program]:
    (workers.folder / "node_modules").symlink_to(modules)
    return lambda: workers.start("node", "worker.js", MERCHANT)


def ended(program: Program) -> tuple[int, str]:
    """The exit code, and what it printed."""
    said, _ = program.process.communicate(timeout=60)
    return program.process.returncode, said


def states(connection: Connection) -> list[str]:
    return [s for (s,) in connection.execute("select state from ledger.refund order by refund_id").fetchall()]


def test_a_worker_settles_what_is_open(
    worker: Callable[[], Program], admin: Connection, control: SandboxControl
) -> None:
    code, said = ended(worker())

    assert (code, len(said.splitlines())) == (0, 3), said
    assert states(admin) == ["sent"] * 3
    assert len(control.movements()) == 3


def test_a_worker_that_finds_the_lease_taken_says_by_whom(
    worker: Callable[[], Program], dsn: str, redis_url: str, admin: Connection
) -> None:
    with Lease(RESOURCE, db=dsn, redis=redis_url) as held:
        assert ended(worker()) == (6, f"busy: {held.holder}:{held.token} has the lease\n")

    assert states(admin) == ["pending"] * 3


def test_what_the_gateway_refuses_or_leaves_open_is_recorded_so(
    worker: Callable[[], Program], admin: Connection, control: SandboxControl
) -> None:
    control.plan(f"{MERCHANT}/r_1", Fault.DECLINE)
    control.plan(f"{MERCHANT}/r_2", Fault.ACCEPT)
    control.plan(f"{MERCHANT}/r_3", Fault.DROP_REPLY)

    assert ended(worker())[0] == 7
    assert states(admin) == ["failed", "accepted", "unknown"]


def test_what_an_earlier_worker_has_sent_is_asked_for_and_not_sent_again(
    worker: Callable[[], Program], admin: Connection, control: SandboxControl
) -> None:
    control.plan(KEY, Fault.DROP_REPLY)
    ended(worker())
    assert states(admin) == ["unknown", "sent", "sent"]

    assert ended(worker())[0] == 0
    assert states(admin) == ["sent"] * 3
    assert control.calls(KEY).refunds == 1


def test_a_worker_whose_token_is_superseded_stops(
    worker: Callable[[], Program], ledger: Ledger, admin: Connection, control: SandboxControl
) -> None:
    control.plan(KEY, Fault.HOLD)
    overtaken = worker()
    control.wait_until_held(KEY, timeout=30)
    activated(ledger)
    control.release(KEY)

    code, said = ended(overtaken)
    assert code == 3
    assert "LG101" in said + overtaken.errors.read_text()
    assert states(admin) == ["sending", "pending", "pending"]


def test_a_node_worker_frozen_past_its_lease_sends_once_and_records_nothing(
    node_worker: Callable[[], Program], admin: Connection, control: SandboxControl, lease_ended: Waiting
) -> None:
    control.plan(KEY, Fault.HOLD)
    frozen = node_worker()
    control.wait_until_held(KEY, timeout=30)
    frozen.process.send_signal(signal.SIGSTOP)
    frozen.wait_until_frozen()
    lease_ended(RESOURCE)
    code, said = ended(node_worker())
    assert (code, said.splitlines()[0]) == (0, "r_1 taken_over sent")

    control.release(KEY)
    frozen.wake()
    code, said = ended(frozen)
    assert code == 3, said
    assert "LG101" in said
    assert states(admin) == ["sent"] * 3
    assert len(control.movements()) == 3
    assert control.calls(KEY).refunds == 2


def test_a_job_of_one_transaction_runs_behind_the_pooler(pooled_dsn: str) -> None:
    """Two clients share the pool's one connection; the second isn't told that it has the lock of the first."""
    with psycopg.connect(pooled_dsn, prepare_threshold=None) as client:
        first = Ledger(client).lock_job("report:daily", ALICE)
    with psycopg.connect(pooled_dsn, prepare_threshold=None) as client:
        second = Ledger(client).lock_job("report:daily", BOB)
        Ledger(client).present_token("report:daily", second)
        with raised("LG101"):
            Ledger(client).present_token("report:daily", first)


def test_the_page_lists_every_script() -> None:
    page = (CHECKOUT / "docs" / PAGE).read_text()

    assert [path.name for path in SCRIPTS.glob("*.lua") if f"| `{path.name}` |" not in page] == []
