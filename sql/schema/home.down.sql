-- The last step of a downgrade to nothing: the table of revisions, and the schema.
--
-- Locks        ACCESS EXCLUSIVE on the table of revisions, for milliseconds.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   yes, by installing again.
-- Needs        to own the schema, which 0001_roles.down.sql gives back.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';

drop table if exists ledger.schema_version;
drop schema ledger;
