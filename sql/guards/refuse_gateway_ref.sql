-- Refuse a gateway reference that differs from the recorded one.

create or replace function ledger.refuse_gateway_ref(call jsonb, refund ledger.refund)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG303',
        message = format(
            '%s: it is recorded as %s under gateway reference %s, not %s; nothing was changed',
            ledger.refused_call(call), refund.state, refund.gateway_ref, call ->> 'gateway_ref'
        ),
        detail = ledger.refusal_detail(call, jsonb_build_object(
            'state', refund.state, 'recorded_gateway_ref', refund.gateway_ref, 'row_token', refund.fence
        )),
        hint = 'Two references may mean two movements of money. Stop, and ask the gateway about both.';
end;
$$;

comment on function ledger.refuse_gateway_ref(jsonb, ledger.refund) is
    'Guard. Refuses: LG303 GatewayRefConflict.';
