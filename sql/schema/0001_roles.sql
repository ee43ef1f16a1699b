-- 0001_roles: who owns the ledger, who runs inside it, who may call it.
--
-- Locks        pg_authid, for milliseconds.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   roles belong to the whole cluster, so going back leaves them; drop them by hand when no
--              other database uses them.
-- Needs        a superuser, or a role with CREATEROLE. Roles that exist already are left as they are; then
--              the role that runs this must be a member of ledger_owner and ledger_fn (16+: with set).

set local lock_timeout = '2s';
set local statement_timeout = '60s';

do $$
declare
    role_name text;
    privilege text := case when current_setting('server_version_num')::integer >= 160000
                           then 'set' else 'member' end;
begin
    foreach role_name in array array['ledger_owner', 'ledger_fn', 'ledger_worker', 'ledger_operator', 'ledger_reader']
    loop
        if to_regrole(role_name) is null then
            execute format('create role %I nologin', role_name);
        end if;
    end loop;

    foreach role_name in array array['ledger_owner', 'ledger_fn']
    loop
        if not pg_has_role(current_user, role_name, privilege) then
            execute format('grant %I to %I', role_name, current_user);
        end if;
    end loop;
end;
$$;

alter schema ledger owner to ledger_owner;
alter table ledger.schema_version owner to ledger_owner;
comment on table ledger.schema_version is 'The revision this schema is at; kept by Alembic.';
comment on column ledger.schema_version.version_num is 'The revision.';
