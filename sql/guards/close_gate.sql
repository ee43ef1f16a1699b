-- Take the gate of a resource exclusively: no write under any token is in flight, and none can begin.
--
-- Waits for the idle limit, in which clients that are frozen between statements are ended; then ends those
-- frozen elsewhere; then waits for the lock limit. A lock_timeout of the caller's that is shorter wins.
-- Returns the sessions it ended.
--
-- Refuses, first match wins:
--   55P03   writes under an older token are still in flight; DETAIL names their sessions

create or replace function ledger.close_gate(call jsonb, idle_ms integer, lock_ms integer)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key bigint := hashtextextended(call ->> 'resource', 0);
    callers_limit text := current_setting('lock_timeout');
    callers_ms integer := nullif(ledger.setting_ms('lock_timeout'), 0);
    ended jsonb := jsonb '[]';
begin
    begin
        perform set_config('lock_timeout', least(idle_ms, callers_ms)::text, true);
        perform pg_advisory_xact_lock(key);
    exception
        when lock_not_available then
            if callers_ms <= idle_ms then
                perform ledger.refuse_busy(call, 'gate', key, ended);
            end if;
            ended := ledger.end_frozen_sessions(key, 1::smallint, idle_ms);
            begin
                perform set_config('lock_timeout', least(lock_ms, callers_ms)::text, true);
                perform pg_advisory_xact_lock(key);
            exception
                when lock_not_available then
                    perform ledger.refuse_busy(call, 'gate', key, ended);
            end;
    end;
    perform set_config('lock_timeout', callers_limit, true);
    return ended;
end;
$$;

comment on function ledger.close_gate(jsonb, integer, integer) is
    'Guard. Takes the gate exclusively, ending frozen clients. Refuses by refuse_busy.';
