-- What is malformed about a refund that is to be added; null when nothing is.
--
-- Merchant ids contain no slash: the default key joins both ids with one, and would be ambiguous.

create or replace function ledger.refund_problem(
    merchant_id text,
    refund_id text,
    payment_ref text,
    gateway text,
    idempotency_key text
)
returns text
language sql
immutable
return case
    when coalesce(
        merchant_id ~ '[[:cntrl:]/{}]' or length(merchant_id) not between 1 and 100
        or merchant_id <> btrim(merchant_id), true
    )
        then 'a merchant id is printable, 1 to 100 characters, without slash, braces or outer blanks'
    when coalesce(
        refund_id ~ '[[:cntrl:]{}]' or length(refund_id) not between 1 and 150 or refund_id <> btrim(refund_id), true
    )
        then 'a refund id is printable, 1 to 150 characters, without braces or outer blanks'
    when coalesce(idempotency_key ~ '[[:cntrl:]]' or length(idempotency_key) not between 1 and 255, true)
        then 'an idempotency key is printable, 1 to 255 characters'
    when payment_ref ~ '[[:cntrl:]]' or length(payment_ref) not between 1 and 255
        then 'a payment reference is printable, 1 to 255 characters, or null'
    when gateway ~ '[[:cntrl:]]' or length(gateway) not between 1 and 100
        then 'a gateway is printable, 1 to 100 characters, or null'
end;

comment on function ledger.refund_problem(text, text, text, text, text) is
    'Guard. What is malformed about a refund to be added, or null. Refuses nothing.';
