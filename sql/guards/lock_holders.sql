-- The other sessions and prepared transactions that hold an advisory lock, as JSON.
--
-- space is 1 for the gate's keys (bigint) and 2 for job locks (two integers), as pg_locks tells them apart.
-- Without pg_read_all_stats the state of other users' sessions isn't visible and stays out.

create or replace function ledger.lock_holders(key bigint, space smallint)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_stat_clear_snapshot();
    return (
        select jsonb_agg(
            jsonb_strip_nulls(jsonb_build_object(
                'pid', l.pid,
                'user', a.usename,
                'application', nullif(a.application_name, ''),
                'state', a.state,
                'since', a.xact_start,
                'prepared', case when l.pid is null then l.virtualtransaction end
            )) order by l.pid
        )
        from pg_locks as l
        left join pg_stat_activity as a on a.pid = l.pid
        where l.locktype = 'advisory'
            and l.database = (select d.oid from pg_database as d where d.datname = current_database())
            and l.classid = ((key >> 32) & 4294967295)::oid
            and l.objid = (key & 4294967295)::oid
            and l.objsubid = space
            and l.granted
            and l.pid is distinct from pg_backend_pid()
    );
end;
$$;

comment on function ledger.lock_holders(bigint, smallint) is
    'Guard. Who else holds an advisory lock: pid, user, application. Refuses nothing.';
