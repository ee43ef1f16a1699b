-- What the first journal entry keeps of a refund, so that the journal alone can rebuild it.

create or replace function ledger.refund_origin(payment_ref text, gateway text, idempotency_key text)
returns jsonb
language sql
stable
return jsonb_strip_nulls(jsonb_build_object(
    'payment_ref', payment_ref, 'gateway', gateway, 'idempotency_key', idempotency_key
));

comment on function ledger.refund_origin(text, text, text) is
    'Guard. The evidence of a refund''s first journal entry. Refuses nothing.';
