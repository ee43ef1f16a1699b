-- Forget numbers that were drawn before a time and never activated; by a person. Returns how many. Whoever still
-- brings one is told that it was never drawn (LG102), and draws again.
--
-- An activation removes the draws of its resource by itself. These are of resources that were drawn for and never
-- activated again: their holder died, or found the lease taken. Those of the last 24 hours stay.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the actor or the reason is missing, max_rows is out of bounds, or the time is too young

create or replace function ledger.prune_draws(
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
    call jsonb := jsonb_build_object('function', 'prune_draws');
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    pruned integer;
begin
    perform ledger.check_housekeeping(call, before, interval '24 hours', max_rows, who, why);
    delete from ledger.draw as d
    using (
        select o.resource, o.token
        from ledger.draw as o
        where o.drawn_at < before
        limit max_rows
        for update skip locked
    ) as g
    where d.resource = g.resource and d.token = g.token;
    get diagnostics pruned = row_count;
    if pruned > 0 then
        insert into ledger.event (event, actor, reason, detail)
        values ('pruned', who, why, jsonb_build_object('draws', pruned, 'before', before));
    end if;
    return pruned;
end;
$$;

comment on function ledger.prune_draws(timestamptz, integer, text, text) is
    'Forget numbers that were drawn before a time and never activated; by a person. Refuses: LG304.';
