-- What a claim of a refund under an active token comes to: an outcome, a reason for review, or the code it is
-- refused with. The one decision behind claim_refund and claim_refunds.
--
-- A row that may be at the gateway (anything but a pending one that was never out) is never sent again once the
-- gateway may have forgotten its key: a person must look.

create or replace function ledger.claim_outcome(
    state text,
    row_token bigint,
    maybe_sent boolean,
    attempts integer,
    first_claimed_at timestamptz,
    token bigint,
    max_attempts integer,
    key_window interval,
    at timestamptz
)
returns text
language sql
stable
return case
    when row_token > token then 'LG101'
    when state in ('sent', 'failed', 'cancelled', 'returned') then 'LG202'
    when state in ('accepted', 'review') then 'LG204'
    when state = 'unknown' and row_token = token then 'LG204'
    when (state <> 'pending' or maybe_sent) and first_claimed_at <= at - key_window then 'key_window_over'
    when state = 'sending' and row_token = token then 'reclaimed'
    when attempts >= max_attempts then 'attempts_used_up'
    when state = 'pending' and not maybe_sent then 'claimed'
    else 'taken_over'
end;

comment on function ledger.claim_outcome(
    text, bigint, boolean, integer, timestamptz, bigint, integer, interval, timestamptz
) is
    'Guard. The decision of a claim: claimed, reclaimed, taken_over, a reason for review, or a code. Refuses nothing.';
