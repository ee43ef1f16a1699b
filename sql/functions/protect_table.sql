-- Fence an existing table: from now on only transactions that presented the active token write to it.
--
-- Either one resource guards every row (resource => 'report:daily'), or each row's own does: <kind>:<value of the
-- column> (kind => 'monthly-charges', column_name => 'org_id'). Nothing of the table is rewritten, and none of its
-- columns is changed, unless stamp asks for a column fence that shows which token wrote a row last.
--
-- Run by the table's owner, as itself. Locks the table SHARE ROW EXCLUSIVE for milliseconds, and waits for that two
-- seconds at most: writers that are under way end first. Run again, it mends what is missing. How a kind is checked
-- (off, shadow, enforce) is set by set_mode; begin with shadow.
--
-- Refuses, first match wins:
--   LG304 BadArgument   not a table of one's own, not exactly one way of naming the resource, or a column of a type
--                       that can't name one
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
    wanted record;
begin
    perform ledger.register_table(relation, resource, kind, column_name, stamp);
    perform set_config('lock_timeout', '2s', true);
    if stamp then
        execute format('alter table %s add column if not exists fence bigint', relation);
    end if;
    for wanted in select w.* from ledger.missing_triggers(relation) as w
    loop
        execute wanted.definition;
        execute format('alter table %s enable always trigger %I', wanted.part, wanted.trigger_name);
    end loop;
    perform set_config('lock_timeout', callers_limit, true);
end;
$$;

comment on function ledger.protect_table(regclass, text, text, text, boolean) is
    'Fence an existing table; run by its owner. Refuses: LG304, 55P03.';
