-- The triggers that a protected table lacks, or has otherwise than it should: on itself and on each partition, parents
-- first. No row means that it is protected as its entry says.

create or replace function ledger.missing_triggers(relation regclass)
returns table (part regclass, trigger_name text, definition text, is_there boolean, enabled text)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select
        tree.relid,
        w.trigger_name,
        w.definition,
        coalesce(h.is_right, false),
        case w.enabled when 'A' then 'always' else 'replica' end
    from ledger.protected_table as p
    join pg_class as c on c.oid = p.relation
    cross join lateral (
        select p.relation as relid, 0 as level
        union
        select x.relid, x.level from pg_partition_tree(p.relation) as x
    ) as tree
    cross join lateral ledger.table_triggers(tree.relid, p) as w
    left join lateral (
        select
            t.tgenabled,
            t.tgargs = ledger.trigger_arguments(p)
            and t.tgfoid = w.calls
            and t.tgtype = w.type
            and t.tgqual is null
            and t.tgattr = ''
            and t.tgoldtable is not distinct from w.old_rows
            and t.tgnewtable is not distinct from w.new_rows as is_right
        from pg_trigger as t
        where t.tgrelid = tree.relid and t.tgname = w.trigger_name
    ) as h on true
    where p.relation = missing_triggers.relation
        and (h.is_right is not true or h.tgenabled is distinct from w.enabled)
    order by tree.level, tree.relid::oid, w.trigger_name;
end;
$$;

comment on function ledger.missing_triggers(regclass) is
    'Guard. The triggers that a protected table lacks. Refuses nothing.';
