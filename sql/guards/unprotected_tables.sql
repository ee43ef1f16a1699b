-- Where protected tables aren't protected as their entries say, for verify: a trigger is missing, the column can't name
-- a resource any more, rows can be written through another table's name, or the table is gone.

create or replace function ledger.unprotected_tables()
returns table (relation regclass, finding text, detail jsonb)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select
        p.relation,
        format('%s lacks the trigger %s, or has it otherwise', m.part, m.trigger_name),
        jsonb_build_object('table', m.part::text, 'trigger', m.trigger_name)
    from ledger.protected_table as p
    cross join lateral ledger.missing_triggers(p.relation) as m;

    return query
    select p.relation, ledger.column_problem(p.relation, p.column_name), jsonb_build_object('column', p.column_name)
    from ledger.protected_table as p
    join pg_class as c on c.oid = p.relation
    where p.column_name is not null and ledger.column_problem(p.relation, p.column_name) is not null;

    return query
    select
        p.relation,
        format(
            'its rows can be written through %s',
            (case i.inhrelid when p.relation then i.inhparent else i.inhrelid end)::regclass
        ),
        jsonb_build_object('parent', i.inhparent::regclass::text, 'child', i.inhrelid::regclass::text)
    from ledger.protected_table as p
    join pg_class as c on c.oid = p.relation
    join pg_inherits as i on i.inhrelid = p.relation or (i.inhparent = p.relation and c.relkind = 'r');

    return query
    select p.relation, 'the table is gone; unprotect_table removes its entry', '{}'::jsonb
    from ledger.protected_table as p
    where not exists (select from pg_class as c where c.oid = p.relation);
end;
$$;

comment on function ledger.unprotected_tables() is
    'Guard. Where protected tables aren''t protected as their entries say. Refuses nothing.';
