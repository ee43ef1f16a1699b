-- Record that the gateway has a refund and will give its final word later.
--
-- Whoever holds the active token then may record that word; it need not claim the refund again.
--
-- outcome    accepted           recorded now
--            already_accepted   this was recorded before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument          an id or the reference is null or empty, or the evidence isn't an object
--   55P03                      an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded       the server was promoted or restored
--   LG102, LG105, LG101        the token isn't the active one, or the row carries a newer one
--   LG201 NoSuchRefund         there is no such refund
--   LG303 GatewayRefConflict   recorded, or accepted, with another reference
--   LG202 RefundFinished       it reached a final state
--   LG203 NotClaimed           it isn't claimed under this token, or the claim is part of this transaction

create or replace function ledger.accept_refund(
    merchant_id text,
    refund_id text,
    token bigint,
    gateway_ref text,
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
        'function', 'accept_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token,
        'gateway_ref', gateway_ref
    );
    refund ledger.refund;
begin
    perform ledger.check_ids(call, merchant_id, refund_id);
    perform ledger.check_gateway_ref(call, gateway_ref);
    perform ledger.check_evidence(call, evidence);

    refund := ledger.lock_to_settle(call, array['accepted'], false, true);
    if refund.state = 'accepted' then
        return ledger.refund_as_move(
            refund, 'accepted', 'already_accepted', refund.fence, refund.gateway_ref, null, refund.changed_at
        );
    end if;
    return ledger.move_refund(call, refund, 'accepted', 'accepted', gateway_ref, null, evidence);
end;
$$;

comment on function ledger.accept_refund(text, text, bigint, text, jsonb) is
    'Record that the gateway has a refund, final word later. '
    'Refuses: LG304, 55P03, LG106, LG102, LG105, LG101, LG201, LG303, LG202, LG203.';
