-- Take a table's protection off again: its triggers and its entry. A column fence that protection added stays, for it
-- is evidence; its owner may drop it.
--
-- Run by the table's owner, as itself. Locks the table ACCESS EXCLUSIVE for milliseconds, and waits for that two
-- seconds at most.
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
    ours record;
begin
    perform ledger.unregister_table(relation);
    perform set_config('lock_timeout', '2s', true);
    for ours in
        select distinct t.tgrelid::regclass as name, t.tgname
        from (
            select unprotect_table.relation::oid as relid
            union
            select tree.relid::oid from pg_partition_tree(unprotect_table.relation) as tree
        ) as part
        join pg_trigger as t on t.tgrelid = part.relid
        where t.tgname like 'zz\_ledger\_%' and t.tgparentid = 0
    loop
        execute format('drop trigger if exists %I on %s', ours.tgname, ours.name);
    end loop;
    perform set_config('lock_timeout', callers_limit, true);
end;
$$;

comment on function ledger.unprotect_table(regclass) is
    'Take a table''s protection off; run by its owner. Refuses: LG304, 55P03.';
