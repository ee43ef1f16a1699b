-- The refund, locked, for a call that settles it under a token; or the refusal that fits.
--
-- First everything that doesn't depend on the row's state: the gate and the token. A refund that this very call
-- settled before passes in any case: the caller sees it and changes nothing.
--
-- Refuses, first match wins:
--   55P03                      an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded       the server was promoted or restored
--   LG102, LG105, LG101        the token isn't the active one, and this call isn't recorded under it
--   LG201 NoSuchRefund         there is nothing to settle
--   LG101 StaleToken           the row carries a newer token than the fence
--   LG303 GatewayRefConflict   recorded, or accepted, with another reference
--   LG202 RefundFinished       it reached a final state by another call
--   LG203 NotClaimed           it isn't claimed under this token (an accepted one needs no claim), or
--                              its claim isn't committed: claim_not_committed

create or replace function ledger.lock_to_settle(call jsonb, states text[], accepted_too boolean, durable boolean)
returns ledger.refund
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    token bigint := (call ->> 'token')::bigint;
    resource text := 'settle:' || (call ->> 'merchant_id');
    gateway_ref text := call ->> 'gateway_ref';
    gate ledger.gate_pass;
    refund ledger.refund;
begin
    gate := ledger.pass_gate(call ->> 'function', resource, token);

    if gate.verdict is not null then
        select r.* into refund
        from ledger.refund as r
        where r.merchant_id = call ->> 'merchant_id' and r.refund_id = call ->> 'refund_id';
        if ledger.recorded_already(refund, token, states, gateway_ref) then
            return refund;
        end if;
        perform ledger.refuse_token(call, resource, token, gate);
    end if;

    select r.* into refund
    from ledger.refund as r
    where r.merchant_id = call ->> 'merchant_id' and r.refund_id = call ->> 'refund_id'
    for no key update;
    if not found then
        perform ledger.refuse_missing_refund(call);
    end if;

    if ledger.recorded_already(refund, token, states, gateway_ref) then
        return refund;
    end if;
    if refund.state = 'sent' and 'sent' = any(states) and refund.gateway_ref = gateway_ref then
        return refund;
    end if;
    if refund.fence > token then
        perform ledger.refuse_stale_token(
            call, 'row', gate.active, gate.holder, gate.activated_at, jsonb_build_object('row_token', refund.fence)
        );
    end if;
    if refund.state in ('sending', 'sent', 'returned', 'accepted') and refund.gateway_ref <> gateway_ref then
        perform ledger.refuse_gateway_ref(call, refund);
    end if;
    if refund.settled_at is not null then
        perform ledger.refuse_finished_refund(call, refund);
    end if;
    if not (accepted_too and refund.state = 'accepted') and (refund.state <> 'sending' or refund.fence < token) then
        perform ledger.refuse_unclaimed_refund(call, 'not_claimed', refund);
    end if;
    if durable and refund.claimed_xid = pg_current_xact_id() then
        perform ledger.refuse_unclaimed_refund(call, 'claim_not_committed', refund);
    end if;
    return refund;
end;
$$;

comment on function ledger.lock_to_settle(jsonb, text[], boolean, boolean) is
    'Guard. The refund locked for settling. '
    'Refuses by the guards of LG106, LG102, LG105, LG101, LG201, LG303, LG202, LG203.';
