-- Hold a job's advisory lock for the session, for jobs that are longer than one transaction. Waits up to `wait`,
-- and is woken by the release.
--
-- Holds the same lock as lock_job. Needs a connection of its own, not one behind a transaction pooler. Holding
-- it is the lease; a token is drawn and activated beside it.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the wait isn't from zero to 24 days, the resource is malformed, or the kind's leases
--                          live in Redis
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG104 LockHeld         the job is running

create or replace function ledger.hold_job(resource text, wait interval default '0')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'hold_job', 'resource', resource);
    key bigint := hashtextextended(resource, 1);
    callers_limit text := current_setting('lock_timeout');
    wait_ms integer;
begin
    if coalesce(wait < interval '0' or wait > interval '24 days', true) then
        perform ledger.refuse_argument(call, 'wait is from zero to 24 days');
    end if;
    perform ledger.check_job(call, resource);
    if pg_try_advisory_lock((key >> 32)::integer, ((key << 32) >> 32)::integer) then
        return;
    end if;

    wait_ms := extract(epoch from wait) * 1000;
    if wait_ms > 0 then
        begin
            perform set_config('lock_timeout', wait_ms::text, true);
            perform pg_advisory_lock((key >> 32)::integer, ((key << 32) >> 32)::integer);
            perform set_config('lock_timeout', callers_limit, true);
            return;
        exception
            when lock_not_available then
                null;
        end;
    end if;
    perform ledger.refuse_held_lock(call, ledger.lock_holders(key, 2::smallint));
end;
$$;

comment on function ledger.hold_job(text, interval) is
    'Hold a job''s advisory lock for the session. Refuses: LG304, LG106, LG104.';
