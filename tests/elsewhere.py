"""The same tests from elsewhere: through a pooler (`--pooler`), and in a ledger restored from a dump (`--restored`).

The superuser and the migrating role go straight to the server: they look, break things and mend them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import dev, schema
from tests.dba.dump import dump, restore

# psycopg prepares what it has sent five times, unless told otherwise.
POOLERS: dict[str, dict[str, Any]] = {"default": {}, "unprepared": {"prepare_threshold": None}}

# Tests that no pooler in transaction mode lets pass, for it lends a client another session with each transaction.
NEED_A_SESSION = {
    "looks for the client's process in the server": (
        "functions/test_activate_token.py::test_older_writes_in_flight_are_named_when_the_wait_is_over",
        "functions/test_exempt_transaction.py::test_fenced_writers_are_kept_out_meanwhile_and_not_in_the_way",
        "functions/test_exempt_transaction.py::test_it_waits_for_fenced_writers_under_way",
        "functions/test_job_holders.py::test_a_transaction_that_runs_it_is_named_until_its_end",
        "functions/test_lock_job.py::test_a_holder_that_was_silent_for_the_idle_limit_loses_the_job",
        "functions/test_lock_job.py::test_a_job_that_is_running_is_named",
        "functions/test_lock_job.py::test_writes_in_flight_that_do_not_end_make_it_busy",
        "functions/test_present_token.py::test_an_activation_that_takes_too_long_is_busy",
        "functions/test_set_mode.py::test_a_kind_that_is_being_made_elsewhere_is_waited_for",
        "functions/test_set_mode.py::test_a_transaction_that_goes_unchecked_is_named_when_it_takes_too_long",
        "protected/test_modes.py::test_shadow_neither_waits_nor_limits_while_an_activation_holds_the_gate",
        "test_gate.py::test_a_call_waits_at_the_gate_no_longer_than_the_kinds_lock_limit",
    ),
    "sets something for its session": (
        "functions/test_lock_job.py::test_a_shorter_lock_timeout_of_the_callers_wins",
        "functions/test_lock_job.py::test_a_wait_leaves_the_callers_lock_timeout_as_it_was",
        "test_client.py::test_a_gate_that_stays_closed_is_busy",
        "test_client.py::test_a_recorder_that_fails_does_not_hide_the_refusal",
        "test_client.py::test_psycopgs_other_errors_come_through_as_they_are",
        "test_gate.py::test_a_shorter_lock_timeout_of_the_callers_wins",
        "test_gate.py::test_a_wait_leaves_the_callers_lock_timeout_as_it_was",
        "test_races.py::test_under_the_stricter_levels_the_second_is_told_to_try_again",
    ),
    "holds a session's lock": (
        "functions/test_free_job.py::test_another_sessions_lock_is_left_alone",
        "functions/test_hold_job.py::test_a_job_is_held_for_the_session_and_not_the_transaction",
        "functions/test_hold_job.py::test_a_wait_leaves_the_callers_lock_timeout_as_it_was",
        "functions/test_hold_job.py::test_a_wait_that_runs_out_names_the_holder",
        "functions/test_hold_job.py::test_a_waiter_is_woken_by_the_release",
        "functions/test_hold_job.py::test_holding_twice_is_given_back_twice",
        "functions/test_hold_job.py::test_the_lock_is_the_one_that_lock_job_takes",
        "functions/test_job_holders.py::test_a_session_that_holds_it_is_named",
        "settle/test_settle.py::test_a_kind_whose_leases_are_advisory_locks_needs_no_redis",
    ),
}

# As recover_failover does it, but for the event, which tests would count among their own.
KNOWN = """
    set local role ledger_fn;
    update ledger.server
    set system_identifier = c.system_identifier,
        timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
        started_at = pg_postmaster_start_time()
    from pg_control_system() as c
"""


def add_options(parser: pytest.Parser) -> None:
    """The options, for the suite's conftest."""
    parser.addoption("--pooler", choices=POOLERS, help="go through PgBouncer, with psycopg's defaults or unprepared")
    parser.addoption("--restored", action="store_true", help="test a ledger that was dumped in another cluster")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Through a pooler, what needs a session of its own."""
    if config.getoption("pooler") is None:
        return
    needing = {name for names in NEED_A_SESSION.values() for name in names}
    left_out = [item for item in items if item.nodeid.partition("[")[0].removeprefix("tests/") in needing]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def restore_from_elsewhere(servers: dev.Servers, database: str) -> None:
    """Make the ledger in another cluster, and restore it here as the migrating role, who is no superuser."""
    with dev.temporary(servers.pg) as others, tempfile.TemporaryDirectory() as folder:
        others.prepare()
        schema.upgrade(others.dsn())
        restore(servers, servers.dsn(dbname=database), dump(others, others.dsn(), Path(folder) / "ledger.dump"))
    with psycopg.connect(servers.dsn("postgres", database)) as superuser:
        superuser.execute(KNOWN)
