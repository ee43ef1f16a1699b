-- Why a column can't name a resource; null when it can: text, varchar, integer, bigint or uuid, of Postgres's own.
--
-- These have the same numbers in every database. A user's type could bring a cast of its own to text, which would run
-- with our rights. A virtual column has no value that a trigger could see.

create or replace function ledger.column_problem(relation oid, column_name text)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (
        select
        from pg_attribute as a
        where a.attrelid = relation
            and a.attname = column_problem.column_name
            and not a.attisdropped
            and a.attnum > 0
            and a.attgenerated <> 'v'
            and a.atttypid in (25, 1043, 23, 20, 2950)
    ) then
        return null;
    end if;
    return format(
        '%I is not a stored column of type text, varchar, integer, bigint or uuid', column_name
    );
end;
$$;

comment on function ledger.column_problem(oid, text) is
    'Guard. Why a column can''t name a resource, or null. Refuses nothing.';
