-- The refund, locked, for a move that a person or a webhook makes: no token, but actor, reason and evidence.
--
-- Refuses, first match wins:
--   LG304 BadArgument      an id, the actor or the reason is missing, or the evidence isn't an object
--   LG106 RecoveryNeeded   the server was promoted or restored: what a holder did last may be unknown here
--   LG201 NoSuchRefund     there is no such refund

create or replace function ledger.lock_by_person(call jsonb, actor text, reason text, evidence jsonb)
returns ledger.refund
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    refund ledger.refund;
begin
    perform ledger.check_ids(call, call ->> 'merchant_id', call ->> 'refund_id');
    perform ledger.check_person(call, actor, reason);
    perform ledger.check_evidence(call, evidence);
    perform ledger.check_server(call);

    select r.* into refund
    from ledger.refund as r
    where r.merchant_id = call ->> 'merchant_id' and r.refund_id = call ->> 'refund_id'
    for no key update;
    if not found then
        perform ledger.refuse_missing_refund(call);
    end if;
    return refund;
end;
$$;

comment on function ledger.lock_by_person(jsonb, text, text, jsonb) is
    'Guard. The refund locked for a person''s move. Refuses by refuse_argument, refuse_new_timeline and '
    'refuse_missing_refund.';
