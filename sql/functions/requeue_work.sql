-- Put work in review back, by a person: its attempts begin again. True if it was in review; false if it may be begun
-- anyway.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the resource or the work's id is malformed, actor or reason is missing, nobody ever began the
--                       work, or it is done

create or replace function ledger.requeue_work(
    resource text,
    work_id text,
    actor text default null,
    reason text default null
)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'requeue_work', 'resource', resource, 'work_id', work_id);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    work ledger.work;
begin
    perform ledger.check_work(call, resource, work_id);
    perform ledger.check_person(call, who, why);
    select w.* into work
    from ledger.work as w
    where w.resource = requeue_work.resource and w.work_id = requeue_work.work_id
    for update;
    if coalesce(work.state = 'done', true) then
        perform ledger.refuse_argument(call, coalesce('the work is ' || work.state, 'nobody ever began that work'));
    end if;
    if work.state <> 'review' then
        return false;
    end if;

    work.state := 'pending';
    work.attempts := 0;
    perform ledger.move_work(work, 'requeued');
    insert into ledger.event (event, kind, resource, token, actor, reason, detail)
    values (
        'requeued', split_part(work.resource, ':', 1), work.resource, work.token, who, why,
        jsonb_build_object('work_id', work.work_id)
    );
    return true;
end;
$$;

comment on function ledger.requeue_work(text, text, text, text) is
    'Put work in review back, by a person. Refuses: LG304.';
