-- Wait for the gate while an activation is under way, for the lower of the caller's lock_timeout and the kind's.

create or replace function ledger.wait_at_gate(call jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    callers_limit text := current_setting('lock_timeout');
    callers_ms integer := nullif(ledger.setting_ms('lock_timeout'), 0);
    kind ledger.kind_limits := ledger.kind_or_defaults(split_part(call ->> 'resource', ':', 1));
    kinds_ms integer := extract(epoch from kind.lock_limit) * 1000;
begin
    begin
        perform set_config('lock_timeout', least(kinds_ms, callers_ms)::text, true);
        perform pg_advisory_xact_lock_shared(hashtextextended(call ->> 'resource', 0));
        perform set_config('lock_timeout', callers_limit, true);
    exception
        when lock_not_available then
            perform ledger.refuse_busy(call, 'gate', hashtextextended(call ->> 'resource', 0), null);
    end;
end;
$$;

comment on function ledger.wait_at_gate(jsonb) is
    'Guard. Waits for the shared gate under a limit. Refuses by refuse_busy.';
