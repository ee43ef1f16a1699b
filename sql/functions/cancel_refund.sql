-- Cancel a refund that was certainly never sent; by a person. The reserved money goes back to the merchant.
--
-- Only a pending one, or one in review; never one that may have been sent: resolve that with evidence of what the
-- gateway did.
--
-- outcome    cancelled           recorded now
--            already_cancelled   it was before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument         an id, the actor or the reason is missing, or the evidence isn't an object
--   LG106 RecoveryNeeded      the server was promoted or restored
--   LG201 NoSuchRefund        there is no such refund
--   LG202 RefundFinished      it reached another final state
--   LG204 IllegalTransition   it isn't pending or in review, or it may have been sent

create or replace function ledger.cancel_refund(
    merchant_id text,
    refund_id text,
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
        'function', 'cancel_refund', 'merchant_id', merchant_id, 'refund_id', refund_id
    );
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    refund ledger.refund;
begin
    refund := ledger.lock_by_person(call, who, why, evidence);
    if refund.maybe_sent and refund.settled_at is null then
        perform ledger.refuse_transition(call, refund);
    end if;
    return ledger.move_by_person(call, refund, 'cancelled', null, who, why, evidence);
end;
$$;

comment on function ledger.cancel_refund(text, text, text, text, jsonb) is
    'Cancel a refund that was certainly never sent; by a person. Refuses: LG304, LG106, LG201, LG202, LG204.';
