-- The triggers that a protected table lacks, or has otherwise than it should: on itself and on each partition. No row
-- means that it is protected as its entry says.

create or replace function ledger.missing_triggers(relation regclass)
returns table (part regclass, trigger_name text, definition text)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select tree.relid::regclass, w.trigger_name, w.definition
    from ledger.protected_table as p
    cross join lateral (
        select p.relation::oid as relid
        union
        select x.relid::oid from pg_partition_tree(p.relation) as x
    ) as tree
    cross join lateral ledger.table_triggers(tree.relid::regclass, p) as w
    left join pg_trigger as t on t.tgrelid = tree.relid and t.tgname = w.trigger_name
    where p.relation = missing_triggers.relation
        and (
            t.tgenabled is distinct from 'A'
            or t.tgargs is distinct from ledger.trigger_arguments(p)
        )
    order by 1, 2;
end;
$$;

comment on function ledger.missing_triggers(regclass) is
    'Guard. The triggers that a protected table lacks. Refuses nothing.';
