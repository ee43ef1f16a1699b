-- Wait, shared, for a switch that an exempt transaction holds, for the caller's lock_timeout or five seconds.

create or replace function ledger.wait_at_switch(call jsonb, key bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    callers_limit text := current_setting('lock_timeout');
    callers_ms integer := nullif(ledger.setting_ms('lock_timeout'), 0);
begin
    begin
        perform set_config('lock_timeout', least(5000, callers_ms)::text, true);
        perform pg_advisory_xact_lock_shared(key);
        perform set_config('lock_timeout', callers_limit, true);
    exception
        when lock_not_available then
            perform ledger.refuse_busy(call, 'switch', key, null);
    end;
end;
$$;

comment on function ledger.wait_at_switch(jsonb, bigint) is
    'Guard. Waits for a switch under a limit. Refuses by refuse_busy.';
