-- Count an attempt at a piece of work, before it begins: a queue's job, say, that is delivered again and again. Commit
-- this before the work starts, so that an attempt that kills its worker is counted as well.
--
-- outcome    begun      do the work, then end_attempt
--            repeated   this token had begun it already: the reply was lost, or the job was delivered twice
--            done       it was done before: nothing to do
--            review     not begun: the kind's max_attempts are used up, or it was in review before; reason says why
--
-- Work in review stays there until a person puts it back (requeue_work): never in a loop, never dropped.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the resource or the work's id is malformed
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG107 Paused           an operator paused the resource or its kind
--   55P03                  an activation holds the gate longer than the limit
--   LG102, LG105, LG101    the token isn't the active one

create or replace function ledger.begin_attempt(resource text, work_id text, token bigint)
returns ledger.attempt
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'begin_attempt', 'resource', resource, 'work_id', work_id, 'token', token
    );
    work ledger.work;
begin
    perform ledger.check_work(call, resource, work_id);
    perform ledger.check_server(call);
    perform ledger.check_paused(call, resource);
    perform ledger.check_fenced(call, resource, token);
    perform ledger.keep_commit();

    select w.* into work
    from ledger.work as w
    where w.resource = begin_attempt.resource and w.work_id = begin_attempt.work_id
    for update;
    if not found then
        -- Whoever added it since then is waited for, and theirs is the row that counts.
        insert into ledger.work as w (resource, work_id)
        values (begin_attempt.resource, begin_attempt.work_id)
        on conflict on constraint work_pkey do update set work_id = excluded.work_id
        returning w.* into work;
    end if;

    if work.state in ('done', 'review') then
        return ledger.work_as_attempt(work, work.state);
    end if;
    if work.state = 'begun' and work.token = begin_attempt.token then
        return ledger.work_as_attempt(work, 'repeated');
    end if;

    if work.attempts >= (ledger.kind_or_defaults(split_part(resource, ':', 1))).max_attempts then
        work.reason := format(
            '%s attempts used up; the last one %s', work.attempts,
            case work.state when 'begun' then 'never ended' else 'failed: ' || work.reason end
        );
        work.state := 'review';
        return ledger.move_work(work, 'review');
    end if;
    work.state := 'begun';
    work.attempts := work.attempts + 1;
    work.token := begin_attempt.token;
    return ledger.move_work(work, 'begun');
end;
$$;

comment on function ledger.begin_attempt(text, text, bigint) is
    'Count an attempt at a piece of work before it begins; past the kind''s limit it goes to review. '
    'Refuses: LG304, LG106, LG107, 55P03, LG102, LG105, LG101.';
