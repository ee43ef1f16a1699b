-- Run this text in one transaction that ends at the first error: psql -v ON_ERROR_STOP=1 -1 -f FILE
--
-- It refuses to run outside a transaction, and on a schema at another revision than the one it was made for. An
-- upgrade that is under way is waited for. A first installation makes the schema and Alembic's table of revisions,
-- and refuses a schema of that name that somebody else made; then the revisions follow, each with a header of its own.
--
-- Locks        one advisory lock, to the end of the transaction; waits for it up to a minute.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   there is nothing to take back.
-- Needs        membership in ledger_owner, except for a first installation.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '60s';
set local statement_timeout = '60s';

do $$
declare
    wanted text := nullif(current_setting('ledger.from_revision', true), '');
    found text;
begin
    if wanted is null then
        raise exception 'this text runs in one transaction; nothing was changed'
            using hint = 'Run psql -v ON_ERROR_STOP=1 -1 -f FILE.';
    end if;

    perform pg_advisory_xact_lock(hashtextextended('ledger.schema_version', 3));
    if to_regclass('ledger.schema_version') is not null then
        execute 'select v.version_num from ledger.schema_version as v' into found;
    end if;
    if coalesce(found, 'base') <> wanted then
        raise exception 'schema ledger is at %, and this text begins at %; nothing was changed',
            coalesce(found, 'base'), wanted
            using hint = 'ledger db sql FROM:TO prints the text that fits.';
    end if;
end;
$$;
