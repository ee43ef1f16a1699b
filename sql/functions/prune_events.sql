-- Forget what only told how workers came and went before a time: activations under which nothing was moved, how long
-- leases were held, sessions ended. By a person; looks at max_rows at most, after the cursor.
--
-- What else is written in event stays for good: who set, paused, exempted, broke, archived or recovered what. Of the
-- activations these stay, for history and verify need the holder behind a token:
--
--   of the active token
--   of a token that an entry of the journal names, archived or not
--   of a token under which work isn't done
--
-- And so does all that happened to a merchant's fence since the oldest of its open refunds was added.
-- Those of the last 30 days stay, for the advice on leases. Whoever brings a token whose activation is forgotten is
-- told that it was voided, not superseded.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the actor or the reason is missing, max_rows is out of bounds, or the time is too young

create or replace function ledger.prune_events(
    before timestamptz,
    max_rows integer,
    after_event_id bigint default 0,
    actor text default null,
    reason text default null
)
returns ledger.pruned
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
declare
    call jsonb := jsonb_build_object('function', 'prune_events');
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    looked_at bigint[];
    tokens bigint[];
    resources text[];
    merchants text[];
    kept bigint[];
    pruned integer;
begin
    perform ledger.check_housekeeping(call, before, interval '30 days', max_rows, who, why);
    select
        array_agg(o.event_id order by o.event_id),
        array_agg(o.token),
        array_agg(distinct o.resource),
        array_agg(distinct substr(o.resource, 8)) filter (where o.resource like 'settle:%')
    into looked_at, tokens, resources, merchants
    from (
        select e.event_id, e.token, e.resource
        from ledger.event as e
        where e.event_id > coalesce(after_event_id, 0)
            and e.event in ('activated', 'held', 'session_ended')
            and e.at < before
        order by e.event_id
        limit max_rows
    ) as o;
    if looked_at is null then
        return row(0, null)::ledger.pruned;
    end if;

    -- As arrays, which are looked up in one pass over a merchant's journal; joined, each event might read all of it.
    kept := array(
        select f.active from ledger.fence as f where f.resource = any(resources) and f.active = any(tokens)
        union all
        select w.token
        from ledger.work as w
        where w.resource = any(resources) and w.token = any(tokens) and w.state <> 'done'
        union all
        select distinct j.token
        from ledger.journal as j
        where j.merchant_id = any(merchants) and j.token = any(tokens)
        union all
        select distinct j.token
        from ledger.archived_journal as j
        where j.merchant_id = any(merchants) and j.token = any(tokens)
    );
    delete from ledger.event as e
    where e.event_id = any(looked_at)
        and (e.event <> 'activated' or e.token <> all(kept))
        and not exists (
            select
            from (
                select r.merchant_id, min(r.added_at) as added_at
                from ledger.refund as r
                where r.settled_at is null and r.merchant_id = any(merchants)
                group by r.merchant_id
            ) as r
            where 'settle:' || r.merchant_id = e.resource and r.added_at <= e.at
        );
    get diagnostics pruned = row_count;
    if pruned > 0 then
        insert into ledger.event (event, actor, reason, detail)
        values ('pruned', who, why, jsonb_build_object('events', pruned, 'before', before));
    end if;
    return row(pruned, looked_at[cardinality(looked_at)])::ledger.pruned;
end;
$$;

comment on function ledger.prune_events(timestamptz, integer, bigint, text, text) is
    'Forget how workers came and went before a time, where nothing was moved; by a person. Refuses: LG304.';
