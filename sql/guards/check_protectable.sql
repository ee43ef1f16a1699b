-- Make sure that a table can be protected whole: a permanent table, and a partitioned one at its root.
--
-- Statements that name a parent fire the parent's statement triggers alone; so a part by itself can't be protected.
--
-- Refuses, first match wins:
--   LG304 BadArgument   temporary, a partition, or a parent or child by inheritance

create or replace function ledger.check_protectable(call jsonb, relation regclass)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    class pg_class;
begin
    select c.* into class from pg_class as c where c.oid = relation;
    if class.relpersistence = 't' then
        perform ledger.refuse_argument(call, format('%s is temporary', relation));
    end if;
    if class.relispartition then
        perform ledger.refuse_argument(
            call, format('%s is a partition; protect %s', relation, pg_partition_root(relation))
        );
    end if;
    if exists (select from pg_inherits as i where i.inhrelid = relation)
        or (class.relkind = 'r' and exists (select from pg_inherits as i where i.inhparent = relation))
    then
        perform ledger.refuse_argument(call, format('%s inherits or is inherited from; use partitions', relation));
    end if;
end;
$$;

comment on function ledger.check_protectable(jsonb, regclass) is
    'Guard. A table can be protected whole. Refuses by refuse_argument.';
