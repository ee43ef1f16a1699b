-- Why a trigger that derives resources from a column can't be trusted; null when it can.
--
-- Anybody may put our trigger functions on a table of their own. Without the transition tables that protect_table
-- names, new_rows would be whatever the session has under that name, a view over its own functions included, and would
-- run with our rights.

create or replace function ledger.trigger_problem(
    relation oid,
    trigger_name text,
    operation text,
    column_name text
)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select
        from pg_trigger as t
        where t.tgrelid = relation
            and t.tgname = trigger_problem.trigger_name
            and (operation = 'DELETE' or t.tgnewtable is not distinct from 'new_rows')
            and (operation = 'INSERT' or t.tgoldtable is not distinct from 'old_rows')
    ) then
        return format('the trigger %I isn''t as protect_table makes it', trigger_name);
    end if;
    return ledger.column_problem(relation, column_name);
end;
$$;

comment on function ledger.trigger_problem(oid, text, text, text) is
    'Guard. Why a trigger can''t be trusted, or null. Refuses nothing.';
