-- A piece of work as what the functions on attempts return.

create or replace function ledger.work_as_attempt(work ledger.work, outcome text)
returns ledger.attempt
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return row(
        work.resource, work.work_id, outcome, work.reason, work.state, work.attempts,
        (ledger.kind_or_defaults(split_part(work.resource, ':', 1))).max_attempts, work.token
    )::ledger.attempt;
end;
$$;

comment on function ledger.work_as_attempt(ledger.work, text) is
    'Guard. Work, with what was done. Refuses nothing.';
