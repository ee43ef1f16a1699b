-- A job in one transaction, under an advisory lock and a token: no Redis, and nothing to clean up.
\set SHOW_CONTEXT never

create table report (id integer primary key, total bigint);
select ledger.protect_table('report', resource => 'report:daily');

-- Without the lock nobody writes to its table.
insert into report values (1, 84300);
\echo :LAST_ERROR_SQLSTATE

-- Lock, token and writes live and die together.
begin;
select ledger.lock_job('report:daily', 'example/1/0123456789abcdef') as token;
insert into report values (1, 84300);

-- Meanwhile, in another session: the job is running.
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
\! psql -X -v SHOW_CONTEXT=never -c "select ledger.lock_job('report:daily', 'example/2/fedcba9876543210')"
commit;

-- The lock went with its transaction; the fence remembers who wrote last.
select resource, active, holder from ledger.fence;

-- A job that is longer than one transaction holds the same lock for its session, on a connection of its own, and draws
-- and activates a token beside it.
select ledger.hold_job('report:daily');
\! psql -X -A -t -c "select ledger.job_holders('report:daily')"
select ledger.free_job('report:daily');
