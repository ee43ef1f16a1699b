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
as $$
declare
    call jsonb := jsonb_build_object('function', 'prune_events');
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    looked_at bigint[];
    pruned integer;
begin
    perform ledger.check_housekeeping(call, before, interval '30 days', max_rows, who, why);
    select array_agg(o.event_id order by o.event_id) into looked_at
    from (
        select e.event_id
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

    delete from ledger.event as e
    where e.event_id = any(looked_at)
        and not exists (
            select
            from ledger.refund as r
            where r.settled_at is null and 'settle:' || r.merchant_id = e.resource and r.added_at <= e.at
        )
        and (
            e.event <> 'activated'
            or not (
                exists (select from ledger.fence as f where f.resource = e.resource and f.active = e.token)
                or exists (
                    select
                    from ledger.work as w
                    where w.resource = e.resource and w.token = e.token and w.state <> 'done'
                )
                or exists (
                    select from ledger.journal as j where 'settle:' || j.merchant_id = e.resource and j.token = e.token
                )
                or exists (
                    select
                    from ledger.archived_journal as j
                    where 'settle:' || j.merchant_id = e.resource and j.token = e.token
                )
            )
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
