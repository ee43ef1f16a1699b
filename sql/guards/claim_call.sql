-- What a refused claim was called with, for its DETAIL.

create or replace function ledger.claim_call(merchant_id text, refund_id text, token bigint)
returns jsonb
language sql
immutable
return jsonb_build_object(
    'function', 'claim_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token
);

comment on function ledger.claim_call(text, text, bigint) is
    'Guard. The call of a refused claim. Refuses nothing.';
