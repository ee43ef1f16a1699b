-- Forget refusals that were recorded before a time, the oldest first; by a person. Returns how many. They are the
-- record of what didn't happen: neither a refund nor money depends on them.
--
-- Those of the last 24 hours stay, for the metrics and for whoever switches a kind to enforce.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the actor or the reason is missing, max_rows is out of bounds, or the time is too young

create or replace function ledger.prune_refusals(
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
    call jsonb := jsonb_build_object('function', 'prune_refusals');
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    pruned integer;
begin
    perform ledger.check_housekeeping(call, before, interval '24 hours', max_rows, who, why);
    delete from ledger.refusal as r
    where r.refusal_id = any(array(
        select o.refusal_id
        from ledger.refusal as o
        where o.at < before
        order by o.at
        limit max_rows
    ));
    get diagnostics pruned = row_count;
    if pruned > 0 then
        insert into ledger.event (event, actor, reason, detail)
        values ('pruned', who, why, jsonb_build_object('refusals', pruned, 'before', before));
    end if;
    return pruned;
end;
$$;

comment on function ledger.prune_refusals(timestamptz, integer, text, text) is
    'Forget refusals that were recorded before a time; by a person. Refuses: LG304.';
