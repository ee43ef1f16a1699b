-- Make sure that the session's user owns a table, or is a member of the role that does.

create or replace function ledger.check_owner(call jsonb, relation regclass)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select
        from pg_class as c
        where c.oid = relation and c.relkind in ('r', 'p') and pg_has_role(session_user, c.relowner, 'member')
    ) then
        perform ledger.refuse_argument(call, format('%s is not a table that %s owns', relation, session_user));
    end if;
    if exists (
        select
        from pg_class as c
        join pg_namespace as n on n.oid = c.relnamespace
        where c.oid = relation and n.nspname in ('ledger', 'pg_catalog', 'information_schema')
    ) then
        perform ledger.refuse_argument(call, 'the ledger''s own tables and the catalog''s are guarded otherwise');
    end if;
end;
$$;

comment on function ledger.check_owner(jsonb, regclass) is
    'Guard. The session''s user owns the table. Refuses by refuse_argument.';
