from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import redis

from ledger import dev
from ledger.client import Ledger
from ledger.sandbox import Fault, SandboxControl, SandboxProcess, read_movements
from tests.recipes.conftest import PATIENCE, Program, Recipe
from tests.story import until

pytestmark = pytest.mark.heavy

PAGE = "recipes/payouts.md"
RESOURCE = "payout:p_1"
KEY = "payout/p_1"
ATTEMPTS = 3

Waiting = Callable[[str], None]
Connection = psycopg.Connection[Any]


def limited(operators: Ledger, lease_ttl: float = 2.0) -> None:
    operators.set_kind(
        "payout",
        lease_ttl=timedelta(seconds=lease_ttl),
        idle_limit=timedelta(seconds=1),
        lock_limit=timedelta(seconds=1),
        max_attempts=ATTEMPTS,
        actor="tests",
        reason="short limits",
    )


@pytest.fixture
def payouts(recipe: Recipe, connection: Connection, operators: Ledger, gateway: SandboxProcess) -> Recipe:
    """A payout that is due; its leases live in Postgres."""
    connection.execute(recipe.sql("schema.sql"))
    connection.execute(recipe.sql("fence.sql"))
    connection.execute("insert into payout values ('p_1', 'a_1', 12000)")
    limited(operators)
    redis_url = recipe.environment.pop("LEDGER_REDIS_URL")
    recipe.environment |= {
        "PROCESSOR_URL": gateway.url,
        "PROCESSOR_TIMEOUT": "1",
        "NAIVE_REDIS_URL": redis_url,
        "NAIVE_TTL": "1",
    }
    return recipe


@pytest.fixture
def without_key(payouts: Recipe, connection: Connection) -> None:
    connection.execute("alter table booking drop constraint booked_once")


def pay(payouts: Recipe) -> str:
    return payouts.python("payouts.py", "p_1").output()


def bookings(connection: Connection) -> int:
    return len(connection.execute("select from booking").fetchall())


def outcomes(connection: Connection) -> list[str]:
    return [outcome for (outcome,) in connection.execute("select outcome from delivery order by at").fetchall()]


def frozen(payouts: Recipe, function: str, lease_ended: Waiting) -> Program:
    worker = payouts.frozen_after(function, "payouts.py", "p_1")
    lease_ended(RESOURCE)
    return worker


def test_a_worker_frozen_with_the_answer_is_overtaken(
    payouts: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting
) -> None:
    worker = frozen(payouts, "ask_processor", lease_ended)
    assert pay(payouts) == "paid\n"
    worker.wake()

    assert worker.output() == "overtaken\n"
    assert (len(control.movements()), bookings(connection)) == (1, 1)


@pytest.mark.heavy
def test_a_worker_frozen_right_before_it_sends_does_so_under_the_same_key(
    payouts: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting
) -> None:
    worker = frozen(payouts, "look_up", lease_ended)
    assert pay(payouts) == "paid\n"
    worker.wake()

    assert worker.output() == "overtaken\n"
    assert (len(control.movements()), bookings(connection)) == (1, 1)


@pytest.mark.heavy
def test_with_the_fence_off_the_payment_key_in_the_ledger_still_holds(
    payouts: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting, unfenced: Waiting
) -> None:
    unfenced("payout")
    worker = frozen(payouts, "ask_processor", lease_ended)
    assert pay(payouts) == "paid\n"
    worker.wake()

    assert "booked_once" in worker.output()
    assert (len(control.movements()), bookings(connection)) == (1, 1)


@pytest.mark.usefixtures("without_key")
def test_with_the_fence_off_and_no_key_in_the_ledger_it_is_booked_twice(
    payouts: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting, unfenced: Waiting
) -> None:
    unfenced("payout")
    worker = frozen(payouts, "ask_processor", lease_ended)
    assert pay(payouts) == "paid\n"
    worker.wake()
    worker.output()

    assert (len(control.movements()), bookings(connection)) == (1, 2)


@pytest.mark.heavy
@pytest.mark.usefixtures("without_key")
def test_the_fence_alone_keeps_the_bookings_right(
    payouts: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting
) -> None:
    worker = frozen(payouts, "ask_processor", lease_ended)
    assert pay(payouts) == "paid\n"
    worker.wake()

    assert worker.output() == "overtaken\n"
    assert (len(control.movements()), bookings(connection)) == (1, 1)


def test_a_processor_without_keys_pays_twice_whatever_the_fence_does(
    payouts: Recipe, connection: Connection, forgetful_gateway: SandboxProcess, lease_ended: Waiting
) -> None:
    payouts.environment["PROCESSOR_URL"] = forgetful_gateway.url
    worker = frozen(payouts, "look_up", lease_ended)
    assert pay(payouts) == "paid\n"
    worker.wake()

    assert worker.output() == "overtaken\n"
    assert (len(read_movements(forgetful_gateway.log)), bookings(connection)) == (2, 1)


def test_a_payout_whose_worker_died_before_it_could_say_so_is_not_paid_again(
    payouts: Recipe, connection: Connection, control: SandboxControl, lease_ended: Waiting
) -> None:
    payouts.frozen_after("write_down", "payouts.py", "p_1").end()
    lease_ended(RESOURCE)

    assert pay(payouts) == "paid before\n"
    assert (len(control.movements()), bookings(connection)) == (1, 1)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, and how to make it deliver a frozen worker's job again."""

    recipe: Recipe
    file: str

    def send(self) -> None:
        program = self.recipe.python(self.file, "send", "p_1")
        assert program.output() == "", "it was sent"

    def worker(self) -> Program:
        return self.recipe.python(self.file, "worker")

    def frozen_worker(self) -> int:
        """The pid of a worker that froze with the processor's answer in hand."""
        self.send()
        return self.recipe.child_frozen_after("payouts.ask_processor", self.file, "worker")

    def redeliver(self) -> None:
        raise NotImplementedError


class CeleryQueue(Queue):
    def redeliver(self) -> None:
        """Celery does so by itself, as soon as another worker looks."""


class ProcrastinateQueue(Queue):
    def redeliver(self) -> None:
        until(lambda: self._rescued() > 1, within=PATIENCE)

    def _rescued(self) -> int:
        self.recipe.python(self.file, "rescue").output()
        with psycopg.connect(self.recipe.environment["LEDGER_DSN"]) as connection:
            return len(
                connection.execute(
                    "select from procrastinate_events where type in ('deferred', 'deferred_for_retry')"
                ).fetchall()
            )


@pytest.fixture(params=["celery", "procrastinate"])
def queue(
    request: pytest.FixtureRequest, payouts: Recipe, operators: Ledger, running: dev.Servers, redis_url: str
) -> Queue:
    if request.param == "celery":
        assert isinstance(operators.connection, psycopg.Connection)
        operators.connection.execute(payouts.sql("operator.sql"))
        payouts.environment |= {
            "LEDGER_REDIS_URL": redis_url,
            "BROKER_URL": redis_url.replace("unix://", "redis+socket://"),
            "VISIBILITY_TIMEOUT": "3",
        }
        return CeleryQueue(payouts, "celery_app.py")
    payouts.environment["HEARTBEAT"] = "0.3"
    payouts.python("procrastinate_app.py", "schema").output()
    return ProcrastinateQueue(payouts, "procrastinate_app.py")


@pytest.fixture
def before(queue: Queue, connection: Connection) -> Queue:
    """The same queue with the job as it was before."""
    connection.execute("select ledger.unprotect_table('booking')")
    shutil.copy(queue.recipe.folder / "payouts_before.py", queue.recipe.folder / "payouts.py")
    return queue


@pytest.fixture
def naive_lock_ended(redis_url: str) -> Callable[[], None]:
    def wait() -> None:
        with redis.Redis.from_url(redis_url) as client:
            until(lambda: not client.exists("payout-lock:p_1"), within=PATIENCE)

    return wait


def until_delivered(connection: Connection, *expected: str) -> None:
    until(lambda: set(expected) <= set(outcomes(connection)), within=PATIENCE)


@pytest.mark.heavy
def test_redelivered_before_it_is_paid_and_booked_twice(
    before: Queue, connection: Connection, control: SandboxControl, naive_lock_ended: Callable[[], None]
) -> None:
    pid = before.frozen_worker()
    naive_lock_ended()
    before.redeliver()
    before.worker()
    until_delivered(connection, "paid")
    os.kill(pid, signal.SIGCONT)
    until(lambda: outcomes(connection).count("paid") == 2, within=PATIENCE)

    assert (len(control.movements()), bookings(connection)) == (2, 2)


@pytest.mark.heavy
def test_redelivered_it_is_paid_once(
    queue: Queue, connection: Connection, control: SandboxControl, lease_ended: Waiting
) -> None:
    pid = queue.frozen_worker()
    lease_ended(RESOURCE)
    queue.redeliver()
    queue.worker()
    until_delivered(connection, "paid")
    os.kill(pid, signal.SIGCONT)
    until_delivered(connection, "overtaken")

    assert outcomes(connection).count("paid") == 1
    assert (len(control.movements()), bookings(connection)) == (1, 1)


@pytest.mark.heavy
def test_lock_missed_before_it_is_dropped_when_the_holder_dies(before: Queue, connection: Connection) -> None:
    before.recipe.environment["NAIVE_TTL"] = "60"
    before.frozen_worker()
    holder = before.recipe.started[-1]
    before.redeliver()
    before.worker()
    until_delivered(connection, "lock missed")
    holder.end()

    until(lambda: is_empty(before, connection), within=PATIENCE)
    assert bookings(connection) == 0


@pytest.mark.heavy
def test_lock_missed_it_goes_back_to_the_queue_and_is_paid(
    queue: Queue, connection: Connection, control: SandboxControl, operators: Ledger
) -> None:
    limited(operators, lease_ttl=8)
    queue.frozen_worker()
    holder = queue.recipe.started[-1]
    queue.redeliver()
    queue.worker()
    until_delivered(connection, "lock missed")
    holder.end()
    until_delivered(connection, "paid")

    assert (len(control.movements()), bookings(connection)) == (1, 1)


@pytest.mark.heavy
def test_failing_every_time_before_it_is_gone_without_a_reason(
    before: Queue, connection: Connection, gateway: SandboxProcess
) -> None:
    before.recipe.environment["PROCESSOR_URL"] = "http://127.0.0.1:9"
    before.send()
    worker = before.worker()

    until(lambda: "no usable answer" in worker.errors.read_text(), within=PATIENCE)
    until(lambda: is_empty(before, connection), within=PATIENCE)
    assert outcomes(connection) == []
    assert bookings(connection) == 0


@pytest.mark.heavy
def test_failing_every_time_it_ends_in_review_with_its_reason(
    queue: Queue, connection: Connection, control: SandboxControl
) -> None:
    control.plan(KEY, Fault.ERROR, times=9)
    queue.send()
    queue.worker()
    until(lambda: in_review(connection) is not None, within=PATIENCE)
    until(lambda: is_empty(queue, connection), within=PATIENCE)

    attempts, reason = in_review(connection) or (0, "")
    assert attempts == ATTEMPTS
    assert reason.startswith(f"{ATTEMPTS} attempts used up; the last one failed: ")
    assert outcomes(connection)[:-1] == ["failed"] * (ATTEMPTS - 1)
    assert len(control.movements()) == 0


def in_review(connection: Connection) -> tuple[int, str] | None:
    return connection.execute("select attempts, reason from ledger.work where state = 'review'").fetchone()


def is_empty(queue: Queue, connection: Connection) -> bool:
    """Whether nothing is waiting to be delivered, now or later."""
    if isinstance(queue, CeleryQueue):
        with redis.Redis.from_url(queue.recipe.environment["NAIVE_REDIS_URL"]) as client:
            return not client.exists("celery", "unacked")
    found = connection.execute("select from procrastinate_jobs where status in ('todo', 'doing')").fetchone()
    return found is None
