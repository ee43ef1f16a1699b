-- Refuse to settle a refund that this token hasn't claimed, or whose claim isn't committed.

create or replace function ledger.refuse_unclaimed_refund(
    call jsonb,
    reason text,
    refund ledger.refund
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG203',
        message = case reason
            when 'claim_not_committed' then format(
                '%s: its claim is part of this same transaction, so it was not durable when the gateway was called; '
                'nothing was changed',
                ledger.refused_call(call)
            )
            else format(
                '%s: the refund is %s under token %s, not claimed under %s; nothing was changed',
                ledger.refused_call(call), refund.state, refund.fence, call ->> 'token'
            )
        end,
        detail = ledger.refusal_detail(
            call, jsonb_build_object('reason', reason, 'state', refund.state, 'row_token', refund.fence)
        ),
        hint = case reason
            when 'claim_not_committed'
                then 'Commit the claim, call the gateway, then confirm in a transaction of its own.'
            else 'Skip this refund, or claim it first with ledger.claim_refund(...).'
        end;
end;
$$;

comment on function ledger.refuse_unclaimed_refund(jsonb, text, ledger.refund) is
    'Guard. Refuses: LG203 NotClaimed.';
