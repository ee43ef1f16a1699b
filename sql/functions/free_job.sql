-- Give back a lock that hold_job took; false if this session doesn't hold it.
--
-- A lock of lock_job's ends with its transaction and can't be given back earlier. pg_locks doesn't tell the two
-- apart, so Postgres finds that out and warns; the answer false says the same.

create or replace function ledger.free_job(resource text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set client_min_messages = error
as $$
declare
    key bigint := hashtextextended(resource, 1);
begin
    if not exists (
        select
        from pg_locks as l
        where l.pid = pg_backend_pid()
            and l.locktype = 'advisory'
            and l.classid = ((key >> 32) & 4294967295)::oid
            and l.objid = (key & 4294967295)::oid
            and l.objsubid = 2
    ) then
        return false;
    end if;
    return pg_advisory_unlock((key >> 32)::integer, ((key << 32) >> 32)::integer);
end;
$$;

comment on function ledger.free_job(text) is
    'Give back a lock that hold_job took. Refuses nothing.';
