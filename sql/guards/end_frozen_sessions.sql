-- End the sessions that hold an advisory lock and whose client is frozen.
--
-- The idle limit ends a client that is frozen between statements; nothing ends one that is frozen inside a COPY,
-- a pipeline or a large result. So the holders are looked at ten times over one second, and only those are ended
-- that wait for their client at every look, without progress, in a statement or a silence older than the idle
-- limit. The list is finished before anything is ended. A superuser's session is left alone, for we may not.
--
-- Needs pg_signal_backend and pg_read_all_stats for ledger_fn; where the DBA withholds them nobody is ended.

create or replace function ledger.end_frozen_sessions(key bigint, space smallint, idle_ms integer)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    frozen jsonb;
    seen jsonb;
    ended jsonb := jsonb '[]';
    session record;
begin
    if not (
        pg_has_role(current_user, 'pg_signal_backend', 'usage')
        and pg_has_role(current_user, 'pg_read_all_stats', 'usage')
    ) then
        return ended;
    end if;

    for look in 1..10 loop
        perform pg_stat_clear_snapshot();
        select coalesce(jsonb_object_agg(
            a.pid,
            jsonb_build_object(
                'pid', a.pid, 'user', a.usename, 'application', a.application_name, 'state', a.state,
                'query_start', a.query_start, 'backend_start', a.backend_start,
                'wait_event', a.wait_event, 'copied', c.bytes_processed
            )
        ), '{}')
        into seen
        from pg_stat_activity as a
        join pg_roles as r on r.oid = a.usesysid
        left join pg_stat_progress_copy as c on c.pid = a.pid
        where a.pid in (
                select (h ->> 'pid')::integer from jsonb_array_elements(ledger.lock_holders(key, space)) as h
            )
            and not r.rolsuper
            and a.wait_event_type = 'Client'
            and (
                (a.state = 'active' and a.query_start < clock_timestamp() - make_interval(secs => idle_ms / 1000.0))
                or (
                    a.state like 'idle in transaction%'
                    and a.state_change < clock_timestamp() - make_interval(secs => idle_ms / 1000.0)
                )
            );

        select coalesce(jsonb_object_agg(s.key, s.value), '{}')
        into frozen
        from jsonb_each(seen) as s
        where look = 1 or frozen -> s.key = s.value;

        exit when frozen = '{}';
        if look < 10 then
            perform pg_sleep(0.1);
        end if;
    end loop;

    for session in select f.value as facts from jsonb_each(frozen) as f
    loop
        if pg_terminate_backend((session.facts ->> 'pid')::integer) then
            ended := ended || session.facts;
        end if;
    end loop;
    return ended;
end;
$$;

comment on function ledger.end_frozen_sessions(bigint, smallint, integer) is
    'Guard. Ends lock holders whose client is frozen, and says whom. Refuses nothing.';
