-- The triggers that a protected table should have on one relation, itself or a partition: name, the statement that
-- makes it (null for a partition's copy of its parent's), and what the catalog then says of it.
--
-- One resource for all rows needs no look at the rows: one trigger before each statement. A column needs the rows'
-- final values: one trigger after each kind of statement. zz_ sorts them after other people's. The row trigger fires in
-- ordinary sessions only where no statement trigger is: it is for replication, and for partitions to come.

create or replace function ledger.table_triggers(relation regclass, protection ledger.protected_table)
returns table (
    trigger_name text,
    definition text,
    calls regprocedure,
    type smallint,
    enabled "char",
    old_rows text,
    new_rows text
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    arguments text := case
        when protection.resource is not null then format('%L, %L', 'fixed', protection.resource)
        else format('%L, %L, %L', 'column', protection.kind, protection.column_name)
    end;
    is_partitioned boolean := exists (select from pg_class as c where c.oid = relation and c.relkind = 'p');
begin
    return query
    select
        t.name,
        case
            when t.level = 'statement' or relation = protection.relation then format(
                'create or replace trigger %s %s on %s %s for each %s execute function ledger.%s(%s)',
                t.name, t.at, relation,
                'referencing' || nullif(concat(' new table as ' || t.new_rows, ' old table as ' || t.old_rows), ''),
                t.level, t.function, arguments
            )
        end,
        format('ledger.%s()', t.function)::regprocedure,
        t.type::smallint,
        (case when t.function = 'check_row' and not is_partitioned then 'R' else 'A' end)::"char",
        t.old_rows,
        t.new_rows
    from (
        values
            ('zz_ledger_truncate', 'before truncate', 'statement', 'check_write', 34, null, null, true),
            ('zz_ledger_write', 'before insert or update or delete', 'statement', 'check_write', 30, null, null,
                protection.resource is not null),
            ('zz_ledger_insert', 'after insert', 'statement', 'check_write', 4, null, 'new_rows',
                protection.resource is null),
            ('zz_ledger_update', 'after update', 'statement', 'check_write', 16, 'old_rows', 'new_rows',
                protection.resource is null),
            ('zz_ledger_delete', 'after delete', 'statement', 'check_write', 8, 'old_rows', null,
                protection.resource is null),
            ('zz_ledger_row', 'after insert or update or delete', 'row', 'check_row', 29, null, null, true),
            ('zz_ledger_stamp', 'before insert or update', 'row', 'stamp_row', 23, null, null, protection.stamp)
    ) as t (name, at, level, function, type, old_rows, new_rows, is_wanted)
    where t.is_wanted;
end;
$$;

comment on function ledger.table_triggers(regclass, ledger.protected_table) is
    'Guard. The triggers that protection puts on a relation. Refuses nothing.';
