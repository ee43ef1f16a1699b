-- Take one refund for sending, before the gateway is called. Commit the claim before the call.
--
-- outcome    claimed     nobody sent it: send it
--            reclaimed   this token had it already: ask the gateway first
--            taken_over  an earlier claimer may have sent it: ask the gateway first
--            review      not taken: attempts_used_up or key_window_over; a person must look
--
-- Every outcome but claimed marks the refund: an earlier request may still arrive at the gateway. A holder that
-- repeats its own claim changes nothing more than that mark.
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
as $$
declare
    gate ledger.gate_pass;
    refund ledger.refund;
    at timestamptz;
    decision text;
    to_state text;
    attempt integer;
    marked boolean;
    first_at timestamptz;
begin
    if merchant_id is null or refund_id is null then
        perform ledger.refuse_argument(
            ledger.claim_call(merchant_id, refund_id, token), 'merchant_id and refund_id must not be null'
        );
    end if;

    gate := ledger.pass_gate('claim_refund', 'settle:' || merchant_id, token);
    if gate.is_paused then
        perform ledger.check_paused(ledger.claim_call(merchant_id, refund_id, token), 'settle:' || merchant_id);
    end if;
    if gate.verdict is not null then
        perform ledger.refuse_token(
            ledger.claim_call(merchant_id, refund_id, token), 'settle:' || merchant_id, token, gate
        );
    end if;

    select r.* into refund
    from ledger.refund as r
    where r.merchant_id = claim_refund.merchant_id and r.refund_id = claim_refund.refund_id
    for no key update;
    if not found then
        perform ledger.refuse_missing_refund(ledger.claim_call(merchant_id, refund_id, token));
    end if;

    at := clock_timestamp();
    decision := ledger.claim_outcome(
        refund.state, refund.fence, refund.maybe_sent, refund.attempts, refund.first_claimed_at,
        token, gate.max_attempts, gate.key_window, at
    );
    if decision like 'LG%' then
        perform ledger.refuse_claim(ledger.claim_call(merchant_id, refund_id, token), decision, refund, gate);
    end if;

    to_state := case when decision in ('attempts_used_up', 'key_window_over') then 'review' else 'sending' end;
    attempt := refund.attempts + case when decision in ('claimed', 'taken_over') then 1 else 0 end;
    marked := refund.maybe_sent or decision in ('reclaimed', 'taken_over');
    first_at := case when decision = 'claimed' then at else refund.first_claimed_at end;

    if decision <> 'reclaimed' or not refund.maybe_sent then
        update ledger.refund as r
        set state = to_state,
            fence = token,
            attempts = attempt,
            maybe_sent = marked,
            claimed_xid = case
                when decision = 'claimed' then pg_current_xact_id()
                when decision = 'reclaimed' then r.claimed_xid
            end,
            first_claimed_at = first_at,
            changed_at = at,
            journal_number = r.journal_number + 1
        where r.merchant_id = claim_refund.merchant_id and r.refund_id = claim_refund.refund_id;

        insert into ledger.journal (
            merchant_id, refund_id, number, attempts, at, token, maybe_sent, from_state, to_state, reason
        )
        values (
            merchant_id, refund_id, refund.journal_number + 1, attempt, at, token, marked, refund.state, to_state,
            coalesce(nullif(decision, 'claimed'), nullif(current_setting('ledger.reason', true), ''))
        );
    end if;

    return row(
        merchant_id, refund_id, refund.amount_minor, refund.currency, refund.payment_ref, refund.gateway,
        refund.idempotency_key, attempt,
        case when to_state = 'review' then 'review' else decision end,
        case when to_state = 'review' then decision end,
        refund.state, nullif(refund.fence, 0), first_at
    )::ledger.claim;
end;
$$;

comment on function ledger.claim_refund(text, text, bigint) is
    'Take one refund for sending, under the active token. '
    'Refuses: LG304, 55P03, LG106, LG107, LG102, LG105, LG101, LG201, LG202, LG204.';
