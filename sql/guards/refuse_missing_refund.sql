-- Refuse a call that names a refund which doesn't exist.

create or replace function ledger.refuse_missing_refund(call jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG201',
        message = format('%s: there is no such refund; nothing was changed', ledger.refused_call(call)),
        detail = ledger.refusal_detail(call, '{}'),
        hint = 'Check both ids: the merchant comes first. Refunds are added with ledger.add_refund(...).';
end;
$$;

comment on function ledger.refuse_missing_refund(jsonb) is
    'Guard. Refuses: LG201 NoSuchRefund.';
