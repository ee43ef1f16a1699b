-- Whether evidence names the refund's amount and currency: false where it names another one, null where one is missing.

create or replace function ledger.evidence_agrees(evidence jsonb, amount_minor bigint, currency text)
returns boolean
language sql
stable
return (evidence -> 'amount_minor' = to_jsonb(amount_minor) or evidence ->> 'amount_minor' = amount_minor::text)
    and evidence ->> 'currency' = currency;

comment on function ledger.evidence_agrees(jsonb, bigint, text) is
    'Guard. Evidence names no other amount or currency. Refuses nothing.';
