-- Refuse an amount that isn't positive or a currency that isn't known.

create or replace function ledger.refuse_amount(call jsonb, reason text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG302',
        message = format('%s: %s; nothing was changed', ledger.refused_call(call), reason),
        detail = ledger.refusal_detail(call, jsonb_build_object('reason', reason)),
        hint = 'Amounts are whole numbers of the minor unit, above zero; select * from ledger.currency lists the '
            'currencies.';
end;
$$;

comment on function ledger.refuse_amount(jsonb, text) is
    'Guard. Refuses: LG302 BadAmount.';
