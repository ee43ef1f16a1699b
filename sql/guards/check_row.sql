-- The row trigger of a protected table, for writes that reach rows and no statement trigger: what logical replication
-- applies, and writes to a partition that was made after protection, by its own name.
--
-- Ordinary sessions don't fire it where the statement triggers are: there it is ENABLE REPLICA. Partitions are given it
-- ENABLE ALWAYS when they are made. After the row, so that it sees what is stored, generated columns too.
--
-- Refuses, first match wins: what check_write refuses.

create or replace function ledger.check_row()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    kind text := split_part(tg_argv[1], ':', 1);
    mode text := ledger.checked_mode(kind);
    call jsonb;
    problem text;
    before text;
    after text;
    resources text[];
begin
    if mode = 'off' or ledger.is_exempt(tg_relid) then
        return null;
    end if;

    call := ledger.write_call('check_row', tg_op, tg_relid);
    if mode = 'enforce' then
        perform ledger.pass_switch(call, tg_relid, can_wait => false);
    end if;
    if tg_argv[0] = 'fixed' then
        perform ledger.check_resources(mode, call, tg_argv[1:1]);
        return null;
    end if;

    problem := ledger.column_problem(tg_relid, tg_argv[2]);
    if problem is not null then
        perform ledger.check_without_column(mode, call, kind, problem);
        return null;
    end if;
    if tg_op <> 'INSERT' then
        execute format('select coalesce(($1).%I::text, '''')', tg_argv[2]) into before using old;
        resources := array[kind || ':' || before];
    end if;
    if tg_op <> 'DELETE' then
        execute format('select coalesce(($1).%I::text, '''')', tg_argv[2]) into after using new;
        if after is distinct from before then
            resources := resources || (kind || ':' || after);
        end if;
    end if;
    perform ledger.check_resources(mode, call, resources);
    return null;
end;
$$;

comment on function ledger.check_row() is
    'Guard. Trigger: rows that no statement trigger sees. Refuses by the guards of check_write.';
