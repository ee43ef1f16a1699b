-- Remove the entry of a protected table. unprotect_table calls it; called alone it leaves the triggers, which go on
-- checking. The entry of a table that was dropped is anybody's to remove.
--
-- Refuses, first match wins:
--   LG304 BadArgument   not a table of one's own

create or replace function ledger.unregister_table(relation regclass)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    gone ledger.protected_table;
begin
    if exists (select from pg_class as c where c.oid = relation) then
        perform ledger.check_owner(
            jsonb_build_object('function', 'unprotect_table', 'relation', relation::text), relation
        );
    end if;
    delete from ledger.protected_table as p where p.relation = unregister_table.relation returning p.* into gone;
    if found then
        insert into ledger.event (event, kind, resource, detail)
        values ('unprotected', gone.kind, gone.resource, jsonb_build_object('table', relation::text));
    end if;
end;
$$;

comment on function ledger.unregister_table(regclass) is
    'Guard. Removes the entry of a protected table; called by unprotect_table. Refuses by refuse_argument.';
