-- Write what became of a piece of work; that it went to review is kept as an event as well.

create or replace function ledger.move_work(work ledger.work, outcome text)
returns ledger.attempt
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update ledger.work as w
    set state = work.state,
        attempts = work.attempts,
        token = work.token,
        reason = work.reason,
        changed_at = clock_timestamp()
    where w.resource = work.resource and w.work_id = work.work_id;

    if work.state = 'review' then
        insert into ledger.event (event, kind, resource, token, reason, detail)
        values (
            'reviewed', split_part(work.resource, ':', 1), work.resource, work.token, work.reason,
            jsonb_build_object('work_id', work.work_id, 'attempts', work.attempts)
        );
    end if;
    return ledger.work_as_attempt(work, outcome);
end;
$$;

comment on function ledger.move_work(ledger.work, text) is
    'Guard. Writes the state of a piece of work. Refuses nothing.';
