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
begin
    perform ledger.check_person(call, who, why);
    return ledger.recover_server(nothing_lost, who, why);
end;
$$;

comment on function ledger.recover_failover(boolean, text, text) is
    'Let work go on after a promotion or a restore. Refuses: LG304.';
