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
set enable_seqscan = off
set jit = off
as $$
declare
    gate ledger.gate_pass;
    is_plain boolean;
    amount_minor bigint;
    currency text;
    idempotency_key text;
    attempts integer;
    marked boolean;
    was_number integer;
    at timestamptz;
begin
    if evidence is not null or coalesce(merchant_id, '') = '' or coalesce(refund_id, '') = ''
        or ledger.gateway_ref_problem(gateway_ref) is not null
    then
        return ledger.confirm_or_refuse(merchant_id, refund_id, token, gateway_ref, evidence);
    end if;
    gate := ledger.pass_gate('confirm_refund', 'settle:' || merchant_id, token);

    -- The plain case, the holder's own claim. Whatever isn't plain goes the long way, which looks at the gate again.
    if gate.verdict is null then
        select
            r.state = 'sending' and r.fence = confirm_refund.token and r.gateway_ref is null
                and r.claimed_xid is distinct from pg_current_xact_id_if_assigned(),
            r.amount_minor, r.currency, r.idempotency_key, r.attempts, r.maybe_sent, r.journal_number
        into is_plain, amount_minor, currency, idempotency_key, attempts, marked, was_number
        from ledger.refund as r
        where r.merchant_id = confirm_refund.merchant_id and r.refund_id = confirm_refund.refund_id
        for no key update;
    end if;
    if is_plain is not true then
        return ledger.confirm_or_refuse(merchant_id, refund_id, token, gateway_ref, evidence);
    end if;

    -- The accounts are those of the table transition; verify compares the two.
    at := clock_timestamp();
    update ledger.refund as r
    set state = 'sent',
        gateway_ref = confirm_refund.gateway_ref,
        changed_at = at,
        settled_at = at,
        journal_number = was_number + 1
    where r.merchant_id = confirm_refund.merchant_id and r.refund_id = confirm_refund.refund_id;

    insert into ledger.journal (
        merchant_id, refund_id, number, attempts, at, token, amount_minor, maybe_sent, from_state, to_state,
        currency, debit, credit, gateway_ref, reason
    )
    values (
        merchant_id, refund_id, was_number + 1, attempts, at, token, amount_minor, marked, 'sending', 'sent',
        currency, 'refund_reserved', 'gateway_clearing', gateway_ref,
        nullif(current_setting('ledger.reason', true), '')
    );

    return row(
        merchant_id, refund_id, 'confirmed', null, 'sent', 'sending', token, amount_minor, currency, idempotency_key,
        gateway_ref, attempts, marked, at
    )::ledger.move;
end;
$$;

comment on function ledger.confirm_refund(text, text, bigint, text, jsonb) is
    'Record that the gateway sent a refund. '
    'Refuses: LG304, 55P03, LG106, LG102, LG105, LG101, LG201, LG303, LG202, LG203.';
