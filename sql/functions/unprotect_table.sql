-- Take a table's protection off again: its triggers and its entry. A column fence that protection added stays, for it
-- is evidence; its owner may drop it. The triggers of a partition that was detached since are taken off by naming it.
--
-- Run by the table's owner, as itself. Locks the table and its partitions ACCESS EXCLUSIVE for milliseconds, and waits
-- for all of that two seconds at most, less where the caller's lock_timeout is lower.
--
-- Refuses, first match wins:
--   LG304 BadArgument   not a table of one's own
--   55P03               the table can't be locked within two seconds

create or replace function ledger.unprotect_table(relation regclass)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    callers_limit text := current_setting('lock_timeout');
    deadline timestamptz := clock_timestamp()
        + least(interval '2 seconds', nullif(callers_limit::interval, interval '0'));
    ours record;
begin
    perform ledger.unregister_table(relation);
    for ours in
        select t.relid as part, array_agg(g.tgname) filter (where g.tgparentid = 0) as names
        from (select relation as relid, 0 as level union select p.relid, p.level from pg_partition_tree(relation) as p)
            as t
        join pg_trigger as g on g.tgrelid = t.relid and g.tgname like 'zz\_ledger\_%'
        join pg_proc as f on f.oid = g.tgfoid and f.pronamespace = 'ledger'::regnamespace
        group by t.relid, t.level
        order by t.level, t.relid::oid
    loop
        perform set_config(
            'lock_timeout',
            greatest(1, (extract(epoch from deadline - clock_timestamp()) * 1000)::integer)::text, true
        );
        execute format('lock table only %s in access exclusive mode', ours.part);
        for position in 1..coalesce(cardinality(ours.names), 0) loop
            execute format('drop trigger %I on %s', ours.names[position], ours.part);
        end loop;
    end loop;
    perform set_config('lock_timeout', callers_limit, true);
end;
$$;

comment on function ledger.unprotect_table(regclass) is
    'Take a table''s protection off; run by its owner. Refuses: LG304, 55P03.';
