-- 0001_roles: who owns the ledger, who runs inside it, who may call it. None of them can log in.
--
-- They belong to the whole cluster, so this may be another team's to run, once, in any database of it
-- (ledger db sql --part roles). Roles that exist already are left as they are.
--
-- Locks        rows of pg_authid that it creates.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   going back leaves the roles; drop them by hand when no other database uses them.
-- Needs        CREATEROLE, or a superuser, where a role is missing.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';

do $$
declare
    role_name text;
begin
    foreach role_name in array array['ledger_owner', 'ledger_fn', 'ledger_worker', 'ledger_operator', 'ledger_reader']
    loop
        if to_regrole(role_name) is null then
            execute format('create role %I nologin', role_name);
        end if;
    end loop;
end;
$$;
