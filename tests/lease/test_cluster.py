from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from ledger.dev import binaries
from ledger.lease.redis_lock import RedisLock
from ledger.lease.watchdog import Hold, Reply, watchdog

HALF = 8192
MINE = "host/1/aa:7"

Until = Callable[..., None]


@pytest.fixture(scope="module")
def nodes(pytestconfig: pytest.Config) -> Iterator[list[redis.Redis]]:
    """A cluster of two, each with half of the slots."""
    program = str(binaries.redis_server(pytestconfig.getoption("redis_server")))
    with ExitStack() as stack:
        ports = []
        for _ in range(4):
            probe = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(probe.getsockname()[1])
        stack.close()
        clients = []
        for port, bus in (ports[:2], ports[2:]):
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
            options = f"--port {port} --cluster-port {bus} --cluster-enabled yes --bind 127.0.0.1 --dir {folder}"
            server = subprocess.Popen([program, *options.split(), "--save", ""], stdout=subprocess.DEVNULL)
            stack.callback(server.wait)
            stack.callback(server.terminate)
            clients.append(stack.enter_context(redis.Redis(port=port, decode_responses=True)))
        _join(clients, ports[2], ports[3])
        yield clients


def _join(nodes: list[redis.Redis], port: int, bus: int) -> None:
    end = time.monotonic() + 10
    first, second = nodes
    while not (_up(first) and _up(second)):
        assert time.monotonic() < end
        time.sleep(0.01)
    first.execute_command("cluster addslotsrange", 0, HALF - 1)
    second.execute_command("cluster addslotsrange", HALF, 16383)
    first.execute_command("cluster meet", "127.0.0.1", port, bus)
    while any(node.execute_command("cluster info")["cluster_state"] != "ok" for node in nodes):
        assert time.monotonic() < end
        time.sleep(0.01)


def _up(node: redis.Redis) -> bool:
    try:
        return bool(node.ping())
    except redis.ConnectionError:
        return False


def resources_in_both(nodes: list[redis.Redis]) -> list[str]:
    names = [f"settle:m_{number}" for number in range(20)]
    low = [name for name in names if redis.cluster.key_slot(name.encode()) < HALF]
    high = [name for name in names if redis.cluster.key_slot(name.encode()) >= HALF]
    return [low[0], high[0]]


@pytest.fixture
def url(nodes: list[redis.Redis]) -> str:
    for node in nodes:
        node.flushall()
    return f"redis://127.0.0.1:{nodes[0].connection_pool.connection_kwargs['port']}"


def test_a_lease_lives_on_whichever_node_its_resource_belongs_to(nodes: list[redis.Redis], url: str) -> None:
    for resource, node in zip(resources_in_both(nodes), nodes, strict=True):
        lock = RedisLock(url, resource)

        assert lock.take(MINE, 5) is None
        assert node.get(lock.key) == MINE
        assert lock.renew(MINE, 6) is Reply.HELD
        assert lock.swap(MINE, "host/1/aa:9", 5)
        assert lock.release("host/1/aa:9")
        lock.wait(1)  # woken by the release
        assert node.exists(lock.wake_key) == 0


def test_leases_on_all_nodes_are_kept_alive(nodes: list[redis.Redis], url: str, until: Until) -> None:
    holds = []
    for resource in resources_in_both(nodes):
        lock = RedisLock(url, resource, 0.2)
        lock.take(MINE, 0.9)
        lock.node = None  # as if its slot had moved since
        holds.append(Hold(lock.server, lock, resource, MINE, 0.9, time.monotonic()))
        watchdog().watch(holds[-1])
    first = [hold.until for hold in holds]

    until(lambda: all(hold.until > old + 0.5 for hold, old in zip(holds, first, strict=True)))

    assert [hold.lost for hold in holds] == [None, None]
    for hold in holds:
        hold.close()
        watchdog().forget(hold)


def test_a_lease_whose_slot_is_being_moved_is_asked_for_where_it_went(nodes: list[redis.Redis], url: str) -> None:
    resource = resources_in_both(nodes)[0]
    slot = redis.cluster.key_slot(resource.encode())
    here, there = nodes
    ids = [node.execute_command("cluster myid") for node in nodes]
    there.execute_command("cluster setslot", slot, "importing", ids[0])
    here.execute_command("cluster setslot", slot, "migrating", ids[1])
    try:
        lock = RedisLock(url, resource)

        assert lock.take(MINE, 5) is None
        assert lock.renew(MINE, 6) is Reply.HELD
        assert there.execute_command("cluster countkeysinslot", slot) == 1
    finally:
        there.flushall()
        for node in nodes:
            node.execute_command("cluster setslot", slot, "stable")


def test_a_cluster_client_serves_as_well(nodes: list[redis.Redis], url: str) -> None:
    with redis.RedisCluster.from_url(url) as client:
        for resource in resources_in_both(nodes):
            assert RedisLock(client, resource).take(MINE, 5) is None
