-- Take a kind's switch exclusively, so that no transaction goes unchecked under it, and lock its row, made where
-- missing. Returns the mode as it is.
--
-- Refuses, first match wins:
--   55P03   such transactions are under way for longer than two seconds, or than the caller's lock_timeout

create or replace function ledger.close_switch(call jsonb, kind text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key bigint := hashtextextended(kind, 4);
    callers_limit text := current_setting('lock_timeout');
    callers_ms integer := nullif(ledger.setting_ms('lock_timeout'), 0);
    mode text;
begin
    begin
        perform set_config('lock_timeout', least(2000, callers_ms)::text, true);
        perform pg_advisory_xact_lock(key);
        -- Whoever is making the row holds this one.
        key := hashtextextended(kind, 2);
        perform pg_advisory_xact_lock(key);
        perform ledger.ensure_kind(kind, 'advisory');
        select k.mode into mode from ledger.kind as k where k.kind = close_switch.kind for update;
        perform set_config('lock_timeout', callers_limit, true);
    exception
        when lock_not_available then
            perform ledger.refuse_busy(call, 'switch', key, null);
    end;
    return mode;
end;
$$;

comment on function ledger.close_switch(jsonb, text) is
    'Guard. Takes a kind''s switch exclusively. Refuses by refuse_busy.';
