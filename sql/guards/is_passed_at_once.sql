-- Whether a write under enforce is right in every respect, found out in as few steps as possible: nobody waits at the
-- table's switch or at a gate, this is the known server, and for each resource the active token was presented, under
-- limits and a synchronous_commit as pass_gate sets them. Takes what pass_gate and pass_switch take.
--
-- False says nothing: then the guards that refuse go through it all, one by one. Only under READ COMMITTED, where a
-- later statement sees the newest fence.

create or replace function ledger.is_passed_at_once(relation oid, resources text[])
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    tokens jsonb;
    resource text;
    passed integer;
begin
    if current_setting('transaction_isolation') <> 'read committed'
        or current_setting('synchronous_commit') not in ('on', 'remote_apply')
        or coalesce(current_setting('ledger.tokens', true), '') = ''
        or cardinality(resources) > 500
    then
        return false;
    end if;
    tokens := current_setting('ledger.tokens', true)::jsonb;
    if not pg_try_advisory_xact_lock_shared(hashtextextended(relation::text, 5)) then
        return false;
    end if;
    foreach resource in array resources
    loop
        if not pg_try_advisory_xact_lock_shared(hashtextextended(resource, 0)) then
            return false;
        end if;
    end loop;

    select count(*) into passed
    from ledger.server as s, ledger.fence as f
    where s.started_at = pg_postmaster_start_time()
        and s.timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
        and f.resource = any(resources)
        and tokens -> f.resource = to_jsonb(f.active)
        and f.transaction_limit_ms is null
        and extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000
            between 1 and f.idle_limit_ms;
    return passed = cardinality(resources);
exception
    when data_exception then
        return false;
end;
$$;

comment on function ledger.is_passed_at_once(oid, text[]) is
    'Guard. Whether a write is right in every respect, found out quickly. Refuses nothing.';
