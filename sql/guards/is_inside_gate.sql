-- Whether this transaction is inside the gate of a resource already: it presented a token or wrote under it.
--
-- Asked of the lock table, not remembered: a savepoint that rolls back takes the gate away, together with what
-- was written under it.

create or replace function ledger.is_inside_gate(resource text)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key bigint := hashtextextended(resource, 0);
begin
    return exists (
        select
        from pg_locks as l
        where l.pid = pg_backend_pid()
            and l.locktype = 'advisory'
            and l.classid = ((key >> 32) & 4294967295)::oid
            and l.objid = (key & 4294967295)::oid
            and l.objsubid = 1
            and l.mode = 'ShareLock'
    );
end;
$$;

comment on function ledger.is_inside_gate(text) is
    'Guard. Whether this transaction presented or wrote under the resource. Refuses nothing.';
