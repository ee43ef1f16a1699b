-- Fence an existing table: from now on only transactions that presented the active token write to it.
--
-- Either one resource guards every row (resource => 'report:daily'), or each row's own does: <kind>:<value of the
-- column> (kind => 'monthly-charges', column_name => 'org_id'). Nothing of the table is rewritten, and none of its
-- columns is changed, unless stamp asks for a column fence that shows which token wrote a row last.
--
-- Run by the table's owner, as itself. Locks the table and its partitions SHARE ROW EXCLUSIVE for milliseconds (for
-- stamp's column ACCESS EXCLUSIVE), and waits for all of that two seconds at most, less where the caller's
-- lock_timeout is lower: writers that are under way end first. Run again, it mends what is missing and locks nothing
-- where nothing is. How a kind is checked (off, shadow, enforce) is set by set_mode; begin with shadow.
--
-- Refuses, first match wins:
--   LG304 BadArgument   not a table of one's own that can be protected whole, not exactly one way of naming the
--                       resource, a column of a type that can't name one, or protected otherwise already
--   55P03               the table can't be locked within two seconds

create or replace function ledger.protect_table(
    relation regclass,
    resource text default null,
    kind text default null,
    column_name text default null,
    stamp boolean default false
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    callers_limit text := current_setting('lock_timeout');
    deadline timestamptz := clock_timestamp()
        + least(interval '2 seconds', nullif(callers_limit::interval, interval '0'));
    needs_column boolean;
    part regclass;
    wanted record;
begin
    perform ledger.register_table(relation, resource, kind, column_name, stamp);
    needs_column := stamp and not exists (
        select from pg_attribute as a where a.attrelid = relation and a.attname = 'fence' and not a.attisdropped
    );
    if not needs_column and not exists (select from ledger.missing_triggers(relation)) then
        return;
    end if;

    for part in
        select t.relid
        from (select relation as relid, 0 as level union select p.relid, p.level from pg_partition_tree(relation) as p)
            as t
        order by t.level, t.relid::oid
    loop
        perform set_config(
            'lock_timeout',
            greatest(1, (extract(epoch from deadline - clock_timestamp()) * 1000)::integer)::text, true
        );
        execute format(
            'lock table only %s in %s mode', part,
            case when needs_column then 'access exclusive' else 'share row exclusive' end
        );
    end loop;
    perform set_config('lock_timeout', callers_limit, true);

    if needs_column then
        execute format('alter table %s add column fence bigint', relation);
    end if;
    -- Twice: making a trigger on a partitioned table makes those of its partitions, in a state of their own.
    for pass in 1..2 loop
        for wanted in select m.* from ledger.missing_triggers(relation) as m
        loop
            if not wanted.is_there and wanted.definition is not null then
                execute wanted.definition;
            end if;
            execute format(
                'alter table only %s enable %s trigger %I', wanted.part, wanted.enabled, wanted.trigger_name
            );
        end loop;
    end loop;
end;
$$;

comment on function ledger.protect_table(regclass, text, text, text, boolean) is
    'Fence an existing table; run by its owner. Refuses: LG304, 55P03.';
