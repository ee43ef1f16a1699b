-- Claim a refund in whatever case isn't the plain one: the holder's own, one that is taken over, one that goes to
-- review; or refuse it.
--
-- Refuses, first match wins:
--   LG304 BadArgument         an id is null
--   LG102, LG105, LG101       the token isn't the active one
--   LG201 NoSuchRefund        there is nothing to claim
--   LG101 StaleToken          the row carries a newer token
--   LG202 RefundFinished      a second claim would pay twice
--   LG204 IllegalTransition   it is accepted or in review, or this very token found its outcome unknown

create or replace function ledger.claim_or_refuse(
    merchant_id text,
    refund_id text,
    token bigint,
    gate ledger.gate_pass
)
returns ledger.claim
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'claim_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token
    );
    refund ledger.refund;
    at timestamptz;
    decision text;
    to_state text;
    attempt integer;
    marked boolean;
begin
    if merchant_id is null or refund_id is null then
        perform ledger.refuse_argument(call, 'merchant_id and refund_id must not be null');
    end if;
    if gate.verdict is not null then
        perform ledger.refuse_token(call, 'settle:' || merchant_id, token, gate);
    end if;

    -- claim_refund has locked it, and found it other than plain.
    select r.* into refund
    from ledger.refund as r
    where r.merchant_id = claim_or_refuse.merchant_id and r.refund_id = claim_or_refuse.refund_id;
    if not found then
        perform ledger.refuse_missing_refund(call);
    end if;

    at := clock_timestamp();
    decision := ledger.claim_outcome(
        refund.state, refund.fence, refund.maybe_sent, refund.attempts, refund.first_claimed_at,
        token, gate.max_attempts, gate.key_window, at
    );
    if decision = 'LG101' then
        perform ledger.refuse_stale_token(
            call, 'row', gate.active, gate.holder, gate.activated_at, jsonb_build_object('row_token', refund.fence)
        );
    elsif decision = 'LG202' then
        perform ledger.refuse_finished_refund(call, refund);
    elsif decision = 'LG204' then
        perform ledger.refuse_transition(call, refund);
    end if;

    to_state := case when decision in ('attempts_used_up', 'key_window_over') then 'review' else 'sending' end;
    attempt := refund.attempts + case when decision = 'taken_over' then 1 else 0 end;
    marked := refund.maybe_sent or refund.state <> 'pending';

    if decision <> 'reclaimed' or not refund.maybe_sent then
        update ledger.refund as r
        set state = to_state,
            fence = token,
            attempts = attempt,
            maybe_sent = marked,
            claimed_xid = case when decision = 'reclaimed' then r.claimed_xid end,
            changed_at = at,
            journal_number = r.journal_number + 1
        where r.merchant_id = claim_or_refuse.merchant_id and r.refund_id = claim_or_refuse.refund_id;

        insert into ledger.journal (
            merchant_id, refund_id, number, attempts, at, token, maybe_sent, from_state, to_state, reason
        )
        values (
            merchant_id, refund_id, refund.journal_number + 1, attempt, at, token, marked, refund.state, to_state,
            decision
        );
    end if;

    return row(
        merchant_id, refund_id, refund.amount_minor, refund.currency, refund.payment_ref, refund.gateway,
        refund.idempotency_key, attempt,
        case when to_state = 'review' then 'review' else decision end,
        case when to_state = 'review' then decision end,
        refund.state, nullif(refund.fence, 0), refund.first_claimed_at
    )::ledger.claim;
end;
$$;

comment on function ledger.claim_or_refuse(text, text, bigint, ledger.gate_pass) is
    'Guard. Claims a refund in the cases that aren''t plain, or refuses it by the guard that fits.';
