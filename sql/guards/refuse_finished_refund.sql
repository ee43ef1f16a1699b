-- Refuse to move a refund that has reached a final state.

create or replace function ledger.refuse_finished_refund(call jsonb, refund ledger.refund)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG202',
        message = format(
            '%s: the refund is %s since %s; nothing was changed',
            ledger.refused_call(call), refund.state, refund.settled_at
        ),
        detail = ledger.refusal_detail(call, jsonb_build_object(
            'state', refund.state, 'settled_at', refund.settled_at, 'gateway_ref', refund.gateway_ref,
            'row_token', refund.fence
        )),
        hint = 'Skip this refund. Another try is a new refund id.';
end;
$$;

comment on function ledger.refuse_finished_refund(jsonb, ledger.refund) is
    'Guard. Refuses: LG202 RefundFinished.';
