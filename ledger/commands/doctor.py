"""`ledger doctor`: what is wrong with an installation, and how to mend it."""

from __future__ import annotations

from contextlib import ExitStack

from redis import RedisError

from ledger.commands import output
from ledger.commands.app import App, Unreachable, command, pass_app, usable
from ledger.commands.exits import PROBLEMS

COLUMNS = ["level", "check", "finding", "mend"]


@command(name="doctor")
@pass_app
def doctor_command(app: App) -> int:
    """Examine the database, and the Redis where the leases live, and say what is wrong and how to mend it.

    A fault has to be mended; a note may be meant so. Changes nothing. Sees most as a member of pg_monitor.

    \b
    Example:
      ledger doctor
      ledger doctor -o json | jq '.[] | select(.level == "fault")'
    \b
    Exit codes:
      0 no fault       4 Postgres or Redis can't be reached       10 faults
    """
    from ledger import doctor

    with ExitStack() as stack:
        connection = stack.enter_context(app.connect())
        redis = None
        if app.redis:
            from ledger.lease.redis_lock import client_of

            with usable():
                redis = stack.enter_context(client_of(app.redis))
        try:
            found = doctor.examine(connection, connect=app.connect, redis=redis)
        except RedisError as error:
            raise Unreachable(f"Redis can't be reached: {error}. Nothing was changed", "Check --redis") from None
    faults = sum(diagnosis.level == "fault" for diagnosis in found)
    output.rows(app, [output.as_row(each) for each in found], COLUMNS, empty="nothing is wrong")
    if found and not app.output:
        output.say(f"{faults} to mend, {len(found) - faults} to know")
    return PROBLEMS if faults else 0
