-- A write to a protected table, as its refusal describes it.

create or replace function ledger.write_call(function text, operation text, relation oid)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return jsonb_build_object(
        'function', function,
        'operation', lower(operation),
        'table', (
            select format('%I.%I', n.nspname, c.relname)
            from pg_class as c
            join pg_namespace as n on n.oid = c.relnamespace
            where c.oid = relation
        ),
        'role', session_user
    );
end;
$$;

comment on function ledger.write_call(text, text, oid) is
    'Guard. Describes a write to a protected table. Refuses nothing.';
