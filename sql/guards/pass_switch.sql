-- Take a table's switch, shared, until the end of the transaction: while a transaction is exempt, which holds it
-- exclusively, no fenced one writes.
--
-- Waits only where no row is locked yet (can_wait): a writer that waited with its rows locked would be in the way of
-- the very migration that it waits for. Elsewhere it is refused at once.
--
-- Refuses, first match wins:
--   55P03   an exempt transaction is under way: after the caller's lock_timeout, five seconds at most

create or replace function ledger.pass_switch(call jsonb, relation oid, can_wait boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key bigint := hashtextextended(relation::text, 5);
    callers_limit text := current_setting('lock_timeout');
    callers_ms integer := nullif(ledger.setting_ms('lock_timeout'), 0);
begin
    if pg_try_advisory_xact_lock_shared(key) then
        return;
    end if;
    if not can_wait then
        perform ledger.refuse_busy(call, 'switch', key, null);
    end if;
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

comment on function ledger.pass_switch(jsonb, oid, boolean) is
    'Guard. Takes a table''s switch, shared. Refuses by refuse_busy.';
