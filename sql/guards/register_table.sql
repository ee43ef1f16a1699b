-- The entry of a protected table, and everything that can be wrong with it. protect_table calls it; called alone it
-- protects nothing, and verify says so.
--
-- Refuses, first match wins:
--   LG304 BadArgument   not a table of one's own that can be protected whole, not exactly one way of naming the
--                       resource, a column of a type that can't name one, or protected otherwise already

create or replace function ledger.register_table(
    relation regclass,
    resource text,
    kind text,
    column_name text,
    stamp boolean
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'protect_table', 'relation', relation::text);
    protection ledger.protected_table;
    problem text;
begin
    perform ledger.check_owner(call, relation);
    perform ledger.check_protectable(call, relation);
    if stamp is null or (resource is null) = (column_name is null) or (column_name is null) <> (kind is null) then
        perform ledger.refuse_argument(call, 'give either resource, or kind and column_name; stamp is true or false');
    end if;
    if resource is not null then
        perform ledger.check_resource(call, resource);
    else
        perform ledger.check_kind(call, kind);
        problem := ledger.column_problem(relation, column_name);
        if problem is not null then
            perform ledger.refuse_argument(call, problem);
        end if;
    end if;
    if stamp and exists (
        select
        from pg_attribute as a
        where a.attrelid = relation and a.attname = 'fence' and not a.attisdropped
            and a.atttypid <> 'pg_catalog.int8'::regtype
    ) then
        perform ledger.refuse_argument(call, 'stamp needs a column fence of type bigint, and there is another one');
    end if;
    if coalesce(kind, split_part(resource, ':', 1)) = 'settle' then
        perform ledger.refuse_argument(call, 'kind settle guards refunds; choose another for your tables');
    end if;
    perform ledger.ensure_kind(coalesce(kind, split_part(resource, ':', 1)), 'advisory');

    select p.* into protection from ledger.protected_table as p where p.relation = register_table.relation;
    if found then
        if protection.resource is distinct from resource
            or protection.column_name is distinct from column_name
            or (kind is not null and protection.kind <> kind)
            or protection.stamp <> stamp
        then
            perform ledger.refuse_argument(
                call, 'the table is protected otherwise; in one transaction, unprotect it and protect it again'
            );
        end if;
        return;
    end if;

    insert into ledger.protected_table (relation, resource, kind, column_name, stamp)
    values (relation, resource, coalesce(kind, split_part(resource, ':', 1)), column_name, stamp);

    insert into ledger.event (event, kind, resource, detail)
    values (
        'protected', coalesce(kind, split_part(resource, ':', 1)), resource,
        jsonb_build_object('table', relation::text, 'column_name', column_name, 'stamp', stamp)
    );
end;
$$;

comment on function ledger.register_table(regclass, text, text, text, boolean) is
    'Guard. The entry of a protected table; called by protect_table. Refuses by refuse_argument.';
