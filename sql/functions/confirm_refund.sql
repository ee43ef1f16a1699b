-- Record that the gateway sent a refund, under the reference it gave.
--
-- outcome    confirmed           recorded now
--            already_confirmed   this was recorded before; nothing was changed
--            review              the evidence names another amount or currency; a person must look
--
-- The holder's own repetition is recognised before its token is called stale. A holder whose lease is over but
-- whose token is still active is believed: the result is true.
--
-- Refuses, first match wins:
--   LG304 BadArgument          an id or the reference is null or empty, or the evidence isn't an object
--   55P03                      an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded       the server was promoted or restored
--   LG102, LG105, LG101        the token isn't the active one, or the row carries a newer one
--   LG201 NoSuchRefund         there is nothing to confirm
--   LG303 GatewayRefConflict   recorded, or accepted, with another reference
--   LG202 RefundFinished       it failed, was cancelled or returned
--   LG203 NotClaimed           it isn't claimed under this token, or the claim is part of this transaction

create or replace function ledger.confirm_refund(
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
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'confirm_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token,
        'gateway_ref', gateway_ref
    );
    refund ledger.refund;
begin
    perform ledger.check_ids(call, merchant_id, refund_id);
    perform ledger.check_gateway_ref(call, gateway_ref);
    perform ledger.check_evidence(call, evidence);

    refund := ledger.lock_to_settle(call, array['sent', 'review'], true, true);
    if refund.state = 'sent' then
        return ledger.refund_as_move(
            refund, 'sent', 'already_confirmed', refund.fence, refund.gateway_ref, null, refund.changed_at
        );
    end if;
    if refund.state = 'review' then
        return ledger.refund_as_move(
            refund, 'review', 'review', refund.fence, refund.gateway_ref, 'already in review', refund.changed_at
        );
    end if;

    if not ledger.evidence_agrees(evidence, refund.amount_minor, refund.currency) then
        return ledger.move_refund(
            call, refund, 'review', 'review', gateway_ref, 'the gateway names another amount or currency', evidence
        );
    end if;
    return ledger.move_refund(call, refund, 'sent', 'confirmed', gateway_ref, null, evidence);
end;
$$;

comment on function ledger.confirm_refund(text, text, bigint, text, jsonb) is
    'Record that the gateway sent a refund. '
    'Refuses: LG304, 55P03, LG106, LG102, LG105, LG101, LG201, LG303, LG202, LG203.';
