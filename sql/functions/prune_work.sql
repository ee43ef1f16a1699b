-- Forget work that was done before a time; by a person. Returns how many pieces. Work that isn't done stays, however
-- old: it may be begun again, or a person must look.
--
-- A queue that delivers a forgotten job once more is told `begun`, not `done`, and does it twice: choose a time
-- before which the queue has forgotten it as well. The last 30 days stay in any case.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the actor or the reason is missing, max_rows is out of bounds, or the time is too young

create or replace function ledger.prune_work(
    before timestamptz,
    max_rows integer,
    actor text default null,
    reason text default null
)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'prune_work');
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    pruned integer;
begin
    perform ledger.check_housekeeping(call, before, interval '30 days', max_rows, who, why);
    delete from ledger.work as w
    using (
        select o.resource, o.work_id
        from ledger.work as o
        where o.state = 'done' and o.changed_at < before
        limit max_rows
        for update skip locked
    ) as g
    where w.resource = g.resource and w.work_id = g.work_id;
    get diagnostics pruned = row_count;
    if pruned > 0 then
        insert into ledger.event (event, actor, reason, detail)
        values ('pruned', who, why, jsonb_build_object('work', pruned, 'before', before));
    end if;
    return pruned;
end;
$$;

comment on function ledger.prune_work(timestamptz, integer, text, text) is
    'Forget work that was done before a time; by a person. Refuses: LG304.';
