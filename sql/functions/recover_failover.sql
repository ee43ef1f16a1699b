-- Let work go on after a promotion or a restore.
--
-- Commits may be lost: tokens that were handed out are unknown here, and refunds that were claimed look pending.
-- So the sequence, every active token and every barrier are lifted above anything that can have been handed out,
-- which fences out every holder; and every open refund is marked, so that the gateway is asked before any is sent.
-- nothing_lost acknowledges a planned switchover and only makes the server known. Where the server is the known one
-- and only its sequence is behind a barrier, as after a shard has moved, the sequence is lifted and that's all.
-- Returns what was done: nothing_to_do, acknowledged or recovered.
--
-- Refuses, first match wins:
--   LG304 BadArgument   actor or reason is missing

create or replace function ledger.recover_failover(
    nothing_lost boolean default false,
    actor text default null,
    reason text default null
)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'recover_failover');
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    server ledger.server;
    current_timeline text := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    identifier bigint;
    last_drawn bigint;
    highest_barrier bigint;
    lifted bigint;
    is_known_server boolean;
    outcome text;
begin
    if coalesce(btrim(who), '') = '' or coalesce(btrim(why), '') = '' then
        perform ledger.refuse_argument(
            call, 'actor and reason are needed, as arguments or as ledger.actor and ledger.reason'
        );
    end if;

    perform ledger.keep_commit();
    select s.* into server from ledger.server as s for update;
    select c.system_identifier into identifier from pg_control_system() as c;
    select s.last_value, coalesce((select max(f.barrier) from ledger.fence as f), 0)
    into last_drawn, highest_barrier
    from ledger.token_seq as s;
    is_known_server := server.timeline = current_timeline and server.system_identifier = identifier;
    if is_known_server and highest_barrier <= last_drawn then
        return 'nothing_to_do';
    end if;
    outcome := case when is_known_server or nothing_lost is true then 'acknowledged' else 'recovered' end;

    if outcome = 'recovered' or highest_barrier > last_drawn then
        -- So far ahead that no draw beside this one passes it between the look and the lift.
        lifted := greatest(last_drawn, highest_barrier) + 1048576;
        perform setval('ledger.token_seq', lifted);
    end if;

    if outcome = 'recovered' then
        delete from ledger.draw;
        update ledger.fence as f
        set active = lifted,
            barrier = lifted,
            holder = 'recovery',
            activated_at = clock_timestamp();

        insert into ledger.journal (
            merchant_id, refund_id, number, attempts, at, maybe_sent, from_state, to_state, actor, reason
        )
        select r.merchant_id, r.refund_id, r.journal_number + 1, r.attempts, now(), true, r.state, r.state, who, why
        from ledger.refund as r
        where r.settled_at is null and not r.maybe_sent;

        update ledger.refund as r
        set maybe_sent = true,
            first_claimed_at = coalesce(r.first_claimed_at, r.added_at),
            changed_at = now(),
            journal_number = r.journal_number + 1
        where r.settled_at is null and not r.maybe_sent;
    end if;

    update ledger.server as s
    set system_identifier = identifier, timeline = current_timeline, started_at = pg_postmaster_start_time();

    insert into ledger.event (event, token, actor, reason, detail)
    values ('recovered', lifted, who, why, jsonb_build_object(
        'outcome', outcome, 'timeline', current_timeline, 'known_timeline', server.timeline,
        'system_identifier', identifier, 'known_system_identifier', server.system_identifier
    ));
    return outcome;
end;
$$;

comment on function ledger.recover_failover(boolean, text, text) is
    'Let work go on after a promotion or a restore. Refuses: LG304.';
