-- The trigger of a protected table, after each statement (before it, where one resource guards every row).
--
-- What a transaction presented is input, not proof: the gate and the check are run again, for every resource whose
-- rows were touched, in one order. Transition tables show final rows: a later BEFORE trigger can't move a row past.
-- TRUNCATE touches the rows of all resources: it needs a token for <kind>:*. A row whose column is null belongs to
-- nobody, and passes only in an exempt transaction.
-- Arguments: 'fixed', resource; or 'column', kind, column. The column's type is looked at again, for a cast of a
-- user's own type must never run with our rights.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the column isn't of a type that protect_table takes
--   55P03                  an activation holds the gate longer than the limit
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG102, LG105, LG101    the token isn't the active one
--   LG103 UnfencedWrite    no token was presented for the resource

create or replace function ledger.check_write()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'check_write', 'operation', lower(tg_op), 'relation', tg_relid,
        'table', format('%I.%I', tg_table_schema, tg_table_name), 'role', session_user
    );
    names text[];
    name text;
begin
    if tg_argv[0] = 'fixed' then
        perform ledger.check_fenced(
            call || jsonb_build_object('resource', tg_argv[1]), tg_argv[1], ledger.presented_token(tg_argv[1])
        );
        return null;
    end if;

    if tg_op = 'TRUNCATE' then
        name := tg_argv[1] || ':*';
        perform ledger.check_fenced(
            call || jsonb_build_object('resource', name), name, ledger.presented_token(name)
        );
        return null;
    end if;

    perform ledger.check_column(call, tg_relid, tg_argv[2]);
    if tg_op = 'INSERT' then
        execute format('select array_agg(distinct n.%I::text) from new_rows as n', tg_argv[2]) into names;
    elsif tg_op = 'DELETE' then
        execute format('select array_agg(distinct o.%I::text) from old_rows as o', tg_argv[2]) into names;
    else
        execute format(
            'select array_agg(distinct u.name) from ('
            'select n.%1$I::text as name from new_rows as n union select o.%1$I::text from old_rows as o) as u',
            tg_argv[2]
        ) into names;
    end if;

    foreach name in array coalesce(names, '{}')
    loop
        name := tg_argv[1] || ':' || coalesce(name, '');
        perform ledger.check_fenced(
            call || jsonb_build_object('resource', name), name, ledger.presented_token(name)
        );
    end loop;
    return null;
end;
$$;

comment on function ledger.check_write() is
    'Guard. Trigger: a write to a protected table carries the active token. Refuses by refuse_argument, '
    'refuse_busy, refuse_new_timeline, refuse_token and refuse_unfenced_write.';
