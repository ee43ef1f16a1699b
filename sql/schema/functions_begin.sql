-- Functions and guards, replaced whole. They belong to ledger_fn, which may create in the schema only while this
-- runs.
--
-- Locks        pg_proc rows, for milliseconds. A call that is under way goes on with the old text.
-- Transaction  runs inside one.
-- Needs        membership in ledger_owner and ledger_fn.

set local lock_timeout = '2s';
set local statement_timeout = '60s';
set local role ledger_owner;
grant create on schema ledger to ledger_fn;
set local role ledger_fn;
