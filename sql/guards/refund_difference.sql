-- In what a recorded refund differs from one that is added again under its id; null when in nothing.

create or replace function ledger.refund_difference(
    refund ledger.refund,
    amount_minor bigint,
    currency text,
    payment_ref text,
    gateway text,
    idempotency_key text
)
returns text
language sql
stable
return nullif(concat_ws(
    ', ',
    case when refund.amount_minor <> amount_minor then 'amount_minor' end,
    case when refund.currency <> currency then 'currency' end,
    case when refund.payment_ref is distinct from payment_ref then 'payment_ref' end,
    case when refund.gateway is distinct from gateway then 'gateway' end,
    case when refund.idempotency_key <> idempotency_key then 'idempotency_key' end
), '');

comment on function ledger.refund_difference(ledger.refund, bigint, text, text, text, text) is
    'Guard. The columns in which a refund differs from a recorded one. Refuses nothing.';
