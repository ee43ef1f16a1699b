-- The triggers that a protected table should have on one relation: name, and the statement that makes it.
--
-- One resource for all rows needs no look at the rows: one trigger before each statement. A column needs the rows'
-- final values: one trigger after each kind of statement. zz_ sorts them after other people's.

create or replace function ledger.table_triggers(relation regclass, protection ledger.protected_table)
returns table (trigger_name text, definition text)
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
    trigger_name := 'zz_ledger_truncate';
    definition := format(
        'create or replace trigger zz_ledger_truncate before truncate on %s '
        'for each statement execute function ledger.check_write(%s)', relation, arguments
    );
    return next;

    if protection.resource is not null then
        trigger_name := 'zz_ledger_write';
        definition := format(
            'create or replace trigger zz_ledger_write before insert or update or delete on %s '
            'for each statement execute function ledger.check_write(%s)', relation, arguments
        );
        return next;
    else
        trigger_name := 'zz_ledger_insert';
        definition := format(
            'create or replace trigger zz_ledger_insert after insert on %s referencing new table as new_rows '
            'for each statement execute function ledger.check_write(%s)', relation, arguments
        );
        return next;
        trigger_name := 'zz_ledger_update';
        definition := format(
            'create or replace trigger zz_ledger_update after update on %s '
            'referencing new table as new_rows old table as old_rows '
            'for each statement execute function ledger.check_write(%s)', relation, arguments
        );
        return next;
        trigger_name := 'zz_ledger_delete';
        definition := format(
            'create or replace trigger zz_ledger_delete after delete on %s referencing old table as old_rows '
            'for each statement execute function ledger.check_write(%s)', relation, arguments
        );
        return next;
    end if;

    if is_partitioned and relation = protection.relation then
        trigger_name := 'zz_ledger_row';
        definition := format(
            'create or replace trigger zz_ledger_row before insert or update or delete on %s '
            'for each row execute function ledger.check_row(%s)', relation, arguments
        );
        return next;
    end if;
    if protection.stamp and relation = protection.relation then
        trigger_name := 'zz_ledger_stamp';
        definition := format(
            'create or replace trigger zz_ledger_stamp before insert or update on %s '
            'for each row execute function ledger.stamp_row(%s)', relation, arguments
        );
        return next;
    end if;
end;
$$;

comment on function ledger.table_triggers(regclass, ledger.protected_table) is
    'Guard. The triggers that protection puts on a relation. Refuses nothing.';
