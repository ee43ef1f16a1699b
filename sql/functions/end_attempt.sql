-- Say how an attempt ended: done, failed (it may be tried again) or review (a person must look). The last attempt that
-- the kind's max_attempts allow goes to review when it failed.
--
-- outcome    done, failed, review               recorded now
--            already_done, already_failed, already_review
--                                               this was recorded before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument      the resource or the work's id is malformed, the outcome isn't one, a failure or a review has
--                          no reason, or the work isn't begun under this token
--   LG106 RecoveryNeeded   the server was promoted or restored
--   55P03                  an activation holds the gate longer than the limit
--   LG102, LG105, LG101    the token isn't the active one

create or replace function ledger.end_attempt(
    resource text,
    work_id text,
    token bigint,
    outcome text,
    reason text default null
)
returns ledger.attempt
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'end_attempt', 'resource', resource, 'work_id', work_id, 'token', token
    );
    work ledger.work;
begin
    perform ledger.check_work(call, resource, work_id);
    if coalesce(outcome not in ('done', 'failed', 'review'), true) then
        perform ledger.refuse_argument(call, 'outcome is done, failed or review');
    end if;
    if outcome <> 'done' then
        perform ledger.check_reason(call, reason, null);
    end if;

    select w.* into work
    from ledger.work as w
    where w.resource = end_attempt.resource and w.work_id = end_attempt.work_id;
    if work.token = end_attempt.token
        and (work.state = outcome or (outcome = 'failed' and work.state = 'review'))
    then
        return ledger.work_as_attempt(work, 'already_' || work.state);
    end if;

    perform ledger.check_server(call);
    perform ledger.check_fenced(call, resource, token);
    perform ledger.keep_commit();
    select w.* into work
    from ledger.work as w
    where w.resource = end_attempt.resource and w.work_id = end_attempt.work_id
    for update;
    if coalesce(work.state <> 'begun' or work.token <> end_attempt.token, true) then
        perform ledger.refuse_argument(
            call,
            format(
                'the work isn''t begun under this token, but %s',
                coalesce(work.state || ' under ' || coalesce(work.token, 0), 'was never begun')
            )
        );
    end if;

    work.state := outcome;
    work.reason := end_attempt.reason;
    if outcome = 'failed' and work.attempts >= (ledger.kind_or_defaults(split_part(resource, ':', 1))).max_attempts then
        work.state := 'review';
        work.reason := format('%s attempts used up; the last one failed: %s', work.attempts, end_attempt.reason);
    end if;
    return ledger.move_work(work, work.state);
end;
$$;

comment on function ledger.end_attempt(text, text, bigint, text, text) is
    'Say how an attempt at a piece of work ended: done, failed or review. '
    'Refuses: LG304, LG106, 55P03, LG102, LG105, LG101.';
