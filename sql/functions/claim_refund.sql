-- Take one refund for sending, before the gateway is called. Commit the claim before the call.
--
-- outcome    claimed     nobody sent it: send it
--            reclaimed   this token had it already: ask the gateway first
--            taken_over  an earlier claimer may have sent it: ask the gateway first
--            review      not taken: attempts_used_up or key_window_over; a person must look
--
-- A claim of one that was out before marks it, also where it leads to review: an earlier request may still arrive at
-- the gateway. A holder that repeats its own claim changes nothing more than that mark.
--
-- Refuses, first match wins:
--   LG304 BadArgument         an id is null
--   55P03                     an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded      the server was promoted or restored
--   LG107 Paused              an operator paused the merchant or the kind
--   LG102, LG105, LG101       the token isn't the active one, or the row carries a newer one
--   LG201 NoSuchRefund        there is nothing to claim
--   LG202 RefundFinished      a second claim would pay twice
--   LG204 IllegalTransition   it is accepted or in review, or this very token found its outcome unknown

create or replace function ledger.claim_refund(merchant_id text, refund_id text, token bigint)
returns ledger.claim
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    gate ledger.gate_pass;
    was_state text;
    was_fence bigint;
    was_marked boolean;
    was_attempts integer;
    was_number integer;
    amount_minor bigint;
    currency text;
    payment_ref text;
    gateway text;
    idempotency_key text;
    at timestamptz;
begin
    if merchant_id is null or refund_id is null then
        return ledger.claim_or_refuse(merchant_id, refund_id, token, gate);
    end if;
    gate := ledger.pass_gate('claim_refund', 'settle:' || merchant_id, token);
    if gate.is_paused then
        perform ledger.check_paused(
            jsonb_build_object(
                'function', 'claim_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token
            ),
            'settle:' || merchant_id
        );
    end if;
    if gate.verdict is not null then
        return ledger.claim_or_refuse(merchant_id, refund_id, token, gate);
    end if;

    select
        r.state, r.fence, r.maybe_sent, r.attempts, r.journal_number,
        r.amount_minor, r.currency, r.payment_ref, r.gateway, r.idempotency_key
    into
        was_state, was_fence, was_marked, was_attempts, was_number,
        amount_minor, currency, payment_ref, gateway, idempotency_key
    from ledger.refund as r
    where r.merchant_id = claim_refund.merchant_id and r.refund_id = claim_refund.refund_id
    for no key update;

    -- The plain case, a refund that nobody can have sent. Whatever isn't plain goes the long way.
    if not coalesce(
        was_state = 'pending' and not was_marked and was_attempts < gate.max_attempts and was_fence <= token, false
    ) then
        return ledger.claim_or_refuse(merchant_id, refund_id, token, gate);
    end if;

    at := clock_timestamp();
    update ledger.refund as r
    set state = 'sending',
        fence = claim_refund.token,
        attempts = was_attempts + 1,
        claimed_xid = pg_current_xact_id(),
        first_claimed_at = at,
        changed_at = at,
        journal_number = was_number + 1
    where r.merchant_id = claim_refund.merchant_id and r.refund_id = claim_refund.refund_id;

    insert into ledger.journal (
        merchant_id, refund_id, number, attempts, at, token, maybe_sent, from_state, to_state, reason
    )
    values (
        merchant_id, refund_id, was_number + 1, was_attempts + 1, at, token, false, 'pending', 'sending',
        nullif(current_setting('ledger.reason', true), '')
    );

    return row(
        merchant_id, refund_id, amount_minor, currency, payment_ref, gateway, idempotency_key, was_attempts + 1,
        'claimed', null, 'pending', nullif(was_fence, 0), at
    )::ledger.claim;
end;
$$;

comment on function ledger.claim_refund(text, text, bigint) is
    'Take one refund for sending, under the active token. '
    'Refuses: LG304, 55P03, LG106, LG107, LG102, LG105, LG101, LG201, LG202, LG204.';
