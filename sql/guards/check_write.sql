-- The trigger of a protected table, after each statement; before it where one resource guards every row, and before
-- TRUNCATE.
--
-- What a transaction presented is input, not proof: the gate and the check are run again, for every resource whose
-- rows were touched, in one order. Transition tables show final rows: a later BEFORE trigger can't move a row past.
-- TRUNCATE touches the rows of all resources: it needs a token for <kind>:*. A row whose column is null belongs to
-- nobody, and passes only in an exempt transaction.
-- Arguments: 'fixed', resource; or 'column', kind, column. Values are told apart byte by byte: to a collation of
-- the column's two resources may be equal.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the column isn't of a type that protect_table takes
--   55P03                  an exempt transaction is under way, or an activation holds the gate longer than the limit
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
    kind text := split_part(tg_argv[1], ':', 1);
    mode text := ledger.checked_mode(kind);
    problem text;
    names text[];
begin
    if mode = 'off' then
        return null;
    end if;
    if tg_argv[0] = 'fixed' then
        perform ledger.check_statement(mode, tg_op, tg_relid, can_wait => true, resources => tg_argv[1:1]);
        return null;
    elsif tg_op = 'TRUNCATE' then
        perform ledger.check_statement(mode, tg_op, tg_relid, can_wait => true, resources => array[kind || ':*']);
        return null;
    end if;

    problem := ledger.trigger_problem(tg_relid, tg_name, tg_op, tg_argv[2]);
    if problem is not null then
        if not ledger.is_exempt(tg_relid) then
            perform ledger.check_without_column(
                mode, ledger.write_call('check_write', tg_op, tg_relid), kind, problem
            );
        end if;
        return null;
    end if;
    execute format(
        case tg_op
            when 'INSERT' then 'select array(select distinct n.%1$I::text collate "C" from new_rows as n)'
            when 'DELETE' then 'select array(select distinct o.%1$I::text collate "C" from old_rows as o)'
            else 'select array(select n.%1$I::text collate "C" from new_rows as n '
                'union select o.%1$I::text collate "C" from old_rows as o)'
        end,
        tg_argv[2]
    ) into names;
    if cardinality(names) = 1 then
        perform ledger.check_statement(
            mode, tg_op, tg_relid, can_wait => false, resources => array[concat(kind, ':', names[1])]
        );
    elsif cardinality(names) > 1 then
        perform ledger.check_statement(mode, tg_op, tg_relid, can_wait => false, resources => (
            select array_agg(concat(kind, ':', n) order by n collate "C") from unnest(names) as n
        ));
    end if;
    return null;
end;
$$;

comment on function ledger.check_write() is
    'Guard. Trigger: a write to a protected table carries the active token. Refuses by refuse_argument, '
    'refuse_busy, refuse_new_timeline, refuse_token and refuse_unfenced_write.';
