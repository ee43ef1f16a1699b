-- Record that a sent refund came back, as a closed account sends it; by a person or a webhook. The money is the
-- merchant's again.
--
-- outcome    returned           recorded now
--            already_returned   it was before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument          an id, actor, reason or evidence is missing
--   LG106 RecoveryNeeded       the server was promoted or restored
--   LG201 NoSuchRefund         there is no such refund
--   LG303 GatewayRefConflict   it is recorded with another reference
--   LG202 RefundFinished       it failed or was cancelled
--   LG204 IllegalTransition    it was never sent

create or replace function ledger.return_refund(
    merchant_id text,
    refund_id text,
    gateway_ref text default null,
    actor text default null,
    reason text default null,
    evidence jsonb default null
)
returns ledger.move
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'return_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'gateway_ref', gateway_ref
    );
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
begin
    if coalesce(evidence, '{}') = '{}' then
        perform ledger.refuse_argument(call, 'evidence is needed: what the gateway says, as a JSON object');
    end if;
    return ledger.move_by_person(
        call, ledger.lock_by_person(call, who, why, evidence), 'returned', gateway_ref, who, why, evidence
    );
end;
$$;

comment on function ledger.return_refund(text, text, text, text, text, jsonb) is
    'Record that a sent refund came back. Refuses: LG304, LG106, LG201, LG303, LG202, LG204.';
