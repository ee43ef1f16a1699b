-- The sessions that hold a job's advisory lock, as a JSON array of pid, user, application and since.
--
-- Refuses nothing.

create or replace function ledger.job_holders(resource text)
returns jsonb
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(ledger.lock_holders(hashtextextended(resource, 1), 2::smallint), '[]');
end;
$$;

comment on function ledger.job_holders(text) is
    'The sessions that hold a job''s advisory lock. Refuses nothing.';
