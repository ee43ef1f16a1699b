-- Make sure that a column can name a resource: text, varchar, int, bigint or uuid, of Postgres's own.
--
-- A user's type could bring a cast of its own to text, which would run with our rights.

create or replace function ledger.check_column(call jsonb, relation oid, column_name text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select
        from pg_attribute as a
        where a.attrelid = relation
            and a.attname = check_column.column_name
            and not a.attisdropped
            and a.attnum > 0
            and a.atttypid in (
                'pg_catalog.text'::regtype, 'pg_catalog.varchar'::regtype, 'pg_catalog.int4'::regtype,
                'pg_catalog.int8'::regtype, 'pg_catalog.uuid'::regtype
            )
    ) then
        perform ledger.refuse_argument(
            call, format('%I is not a column of type text, varchar, integer, bigint or uuid', column_name)
        );
    end if;
end;
$$;

comment on function ledger.check_column(jsonb, oid, text) is
    'Guard. A column can name a resource. Refuses by refuse_argument.';
