-- The row trigger of a protected partitioned table, cloned to every partition that is ever made.
--
-- A partition that was made later has no statement triggers of its own, and a write by its own name would pass
-- unseen. Where they are, this looks away.
--
-- Refuses, first match wins: what check_write refuses.

create or replace function ledger.check_row()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb;
    name text;
    names text[] := '{}';
begin
    if exists (
        select from pg_trigger as t where t.tgrelid = tg_relid and t.tgname = 'zz_ledger_truncate' and t.tgenabled = 'A'
    ) then
        return case tg_op when 'DELETE' then old else new end;
    end if;

    call := jsonb_build_object(
        'function', 'check_row', 'operation', lower(tg_op), 'relation', tg_relid,
        'table', format('%I.%I', tg_table_schema, tg_table_name), 'role', session_user
    );
    if tg_argv[0] = 'fixed' then
        names := array[tg_argv[1]];
    else
        perform ledger.check_column(call, tg_relid, tg_argv[2]);
        if tg_op <> 'DELETE' then
            execute format('select $1.%I::text', tg_argv[2]) into name using new;
            names := names || (tg_argv[1] || ':' || coalesce(name, ''));
        end if;
        if tg_op <> 'INSERT' then
            execute format('select $1.%I::text', tg_argv[2]) into name using old;
            names := names || (tg_argv[1] || ':' || coalesce(name, ''));
        end if;
    end if;

    foreach name in array names
    loop
        perform ledger.check_fenced(
            call || jsonb_build_object('resource', name), name, ledger.presented_token(name)
        );
    end loop;
    return case tg_op when 'DELETE' then old else new end;
end;
$$;

comment on function ledger.check_row() is
    'Guard. Trigger: rows of partitions made after protection. Refuses by the guards of check_write.';
