-- Give a claimed refund back, proven not sent by this holder.
--
-- One that an earlier claimer may have sent doesn't become pending, but unknown: that holder's request may still
-- arrive, and this one's proof says nothing about it.
--
-- outcome    released           it is pending again
--            unknown            it may have been sent before
--            already_released, already_unknown   this was recorded before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument      an id or the reason is null or empty, or the evidence isn't an object
--   55P03                  an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG102, LG105, LG101    the token isn't the active one, or the row carries a newer one
--   LG201 NoSuchRefund     there is no such refund
--   LG202 RefundFinished   it reached a final state
--   LG203 NotClaimed       it isn't claimed under this token

create or replace function ledger.release_refund(
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
        'function', 'release_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token
    );
    refund ledger.refund;
begin
    perform ledger.check_ids(call, merchant_id, refund_id);
    perform ledger.check_reason(call, reason, evidence);

    refund := ledger.lock_to_settle(call, array['pending', 'unknown'], false, false);
    if refund.state in ('pending', 'unknown') then
        return ledger.refund_as_move(
            refund, refund.state, case when refund.state = 'pending' then 'already_released' else 'already_unknown' end,
            refund.fence, refund.gateway_ref, null, refund.changed_at
        );
    end if;
    if refund.maybe_sent then
        return ledger.move_refund(call, refund, 'unknown', 'unknown', null, reason, evidence);
    end if;
    return ledger.move_refund(call, refund, 'pending', 'released', null, reason, evidence);
end;
$$;

comment on function ledger.release_refund(text, text, bigint, text, jsonb) is
    'Give a claimed refund back, proven not sent. '
    'Refuses: LG304, 55P03, LG106, LG102, LG105, LG101, LG201, LG202, LG203.';
