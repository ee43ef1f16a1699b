-- Functions and guards, replaced whole. They belong to ledger_fn, which may create in the schema only while this
-- runs. Every upgrade ends with this; run again, it mends functions, grants and triggers that were changed by hand.
--
-- Locks        rows of pg_proc, for milliseconds. A call that is under way goes on with the old text; none waits.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   yes, by the functions of the release before.
-- Needs        membership in ledger_owner and ledger_fn.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';
set local role ledger_owner;
grant create on schema ledger to ledger_fn;
set local role ledger_fn;
