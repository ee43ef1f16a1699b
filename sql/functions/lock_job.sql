-- Run a job under an advisory lock: take it, draw and activate a token, present it for protected tables, and return
-- it, all in the caller's transaction. Lock, fence and writes live and die together.
--
-- The job lock has a key space of its own: an ordinary fenced write never looks like a held job. A holder whose
-- client is frozen is ended as activation does it.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the resource or the holder is malformed, the kind's leases live in Redis, or this
--                          transaction has already written under the resource
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG107 Paused           an operator paused the job or its kind
--   LG104 LockHeld         the job is running
--   55P03                  older writes are still in flight

create or replace function ledger.lock_job(resource text, holder text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'lock_job', 'resource', resource, 'holder', holder);
    key bigint := hashtextextended(resource, 1);
    callers_limit text := current_setting('lock_timeout');
    callers_ms integer := nullif(ledger.setting_ms('lock_timeout'), 0);
    kind ledger.kind_limits;
    token bigint;
begin
    perform ledger.check_activation(call, resource, holder);
    kind := ledger.check_job(call, resource);

    if not pg_try_advisory_xact_lock((key >> 32)::integer, ((key << 32) >> 32)::integer) then
        perform ledger.end_frozen_sessions(key, 2::smallint, (extract(epoch from kind.idle_limit) * 1000)::integer);
        begin
            perform set_config('lock_timeout', least(1000, callers_ms)::text, true);
            perform pg_advisory_xact_lock((key >> 32)::integer, ((key << 32) >> 32)::integer);
            perform set_config('lock_timeout', callers_limit, true);
        exception
            when lock_not_available then
                perform ledger.refuse_held_lock(call, ledger.lock_holders(key, 2::smallint));
        end;
    end if;

    token := ledger.draw_token(resource);
    perform ledger.activate_token(resource, token, holder);
    perform ledger.bind_token(resource, token);
    return token;
end;
$$;

comment on function ledger.lock_job(text, text) is
    'Take a job''s advisory lock and return an active token, in this transaction. '
    'Refuses: LG304, LG106, LG107, LG104, 55P03.';
