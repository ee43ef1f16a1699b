-- Record what became of a refund, by a person or a webhook: sent, failed or returned.
--
-- From review: sent, failed, returned. From accepted: sent, failed, the gateway's final word. sent needs the gateway's
-- reference; all need evidence, for the money follows it. Back to pending leads requeue_refund; cancelled,
-- cancel_refund.
--
-- outcome    sent, failed, returned                           recorded now
--            already_sent, already_failed, already_returned   it was before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument          an id, the state, the reference of a sent one, actor, reason or evidence is missing
--   LG106 RecoveryNeeded       the server was promoted or restored
--   LG201 NoSuchRefund         there is no such refund
--   LG303 GatewayRefConflict   it is recorded with another reference
--   LG202 RefundFinished       it reached another final state
--   LG204 IllegalTransition    it is neither in review nor accepted

create or replace function ledger.resolve_refund(
    merchant_id text,
    refund_id text,
    to_state text,
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
        'function', 'resolve_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'to_state', to_state,
        'gateway_ref', gateway_ref
    );
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
begin
    if coalesce(to_state not in ('sent', 'failed', 'returned'), true) then
        perform ledger.refuse_argument(call, 'to_state is sent, failed or returned');
    end if;
    if to_state = 'sent' or gateway_ref is not null then
        perform ledger.check_gateway_ref(call, gateway_ref);
    end if;
    if coalesce(evidence, '{}') = '{}' then
        perform ledger.refuse_argument(call, 'evidence is needed: what the gateway says, as a JSON object');
    end if;
    return ledger.move_by_person(
        call, ledger.lock_by_person(call, who, why, evidence), to_state, gateway_ref, who, why, evidence
    );
end;
$$;

comment on function ledger.resolve_refund(text, text, text, text, text, text, jsonb) is
    'Record what became of a refund, by a person or a webhook. Refuses: LG304, LG106, LG201, LG303, LG202, LG204.';
