-- Record that the gateway refused a refund for good: it will refuse again under the same key.
--
-- A refusal that the gateway doesn't remember isn't enough, for an earlier request may still move the money: that
-- is mark_unknown. The reserved money goes back to the merchant.
--
-- outcome    failed           recorded now
--            already_failed   this was recorded before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument      an id or the reason is null or empty, or the evidence isn't an object
--   55P03                  an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG102, LG105, LG101    the token isn't the active one, or the row carries a newer one
--   LG201 NoSuchRefund     there is no such refund
--   LG202 RefundFinished   it reached a final state
--   LG203 NotClaimed       it isn't claimed under this token, or the claim is part of this transaction

create or replace function ledger.fail_refund(
    merchant_id text,
    refund_id text,
    token bigint,
    reason text,
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
        'function', 'fail_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token
    );
    refund ledger.refund;
begin
    perform ledger.check_ids(call, merchant_id, refund_id);
    perform ledger.check_reason(call, reason, evidence);

    refund := ledger.lock_to_settle(call, array['failed'], true, true);
    if refund.state = 'failed' then
        return ledger.refund_as_move(
            refund, 'failed', 'already_failed', refund.fence, refund.gateway_ref, null, refund.changed_at
        );
    end if;
    return ledger.move_refund(call, refund, 'failed', 'failed', null, reason, evidence);
end;
$$;

comment on function ledger.fail_refund(text, text, bigint, text, jsonb) is
    'Record that the gateway refused a refund for good. '
    'Refuses: LG304, 55P03, LG106, LG102, LG105, LG101, LG201, LG202, LG203.';
