-- Whether evidence names no other amount and no other currency than the refund's. What it doesn't name agrees.

create or replace function ledger.evidence_agrees(evidence jsonb, amount_minor bigint, currency text)
returns boolean
language sql
stable
return coalesce(
    (evidence -> 'amount_minor' = to_jsonb(amount_minor) or evidence ->> 'amount_minor' = amount_minor::text)
    and evidence ->> 'currency' = currency,
    true
);

comment on function ledger.evidence_agrees(jsonb, bigint, text) is
    'Guard. Evidence names no other amount or currency. Refuses nothing.';
