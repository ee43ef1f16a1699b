-- Give the schema back to whoever installs. The roles stay, for they belong to the whole cluster; where no other
-- database uses them: drop role ledger_reader, ledger_operator, ledger_worker, ledger_fn, ledger_owner.
--
-- Locks        one row of pg_namespace and the table of revisions, for milliseconds.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   yes, by 0001_schema.sql.
-- Needs        membership in ledger_owner.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';

do $$
begin
    execute format('alter table ledger.schema_version owner to %I', current_user);
    execute format('alter schema ledger owner to %I', current_user);
end;
$$;
