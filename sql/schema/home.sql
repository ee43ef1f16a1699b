-- The schema, before anything else: the table of applied revisions lives in it.
--
-- Run first by every upgrade; changes nothing when the schema is already ours. A schema of that name that
-- somebody else made is refused and left as it is.
--
-- Locks        nothing that others wait for.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   yes, by home.down.sql.
-- Needs        the right to create schemas in this database.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';

do $$
begin
    if to_regnamespace('ledger') is null then
        create schema ledger;
    elsif to_regclass('ledger.schema_version') is null then
        raise exception 'a schema named "ledger" exists and is not the fenced ledger''s; nothing was changed'
            using hint = 'Install into another database, or rename that schema first.';
    end if;
end;
$$;
