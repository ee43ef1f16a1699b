-- Confirm a refund in whatever case isn't the plain one: with evidence, from accepted, recorded before, or refused.

create or replace function ledger.confirm_or_refuse(
    merchant_id text,
    refund_id text,
    token bigint,
    gateway_ref text,
    evidence jsonb
)
returns ledger.move
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'confirm_refund', 'merchant_id', merchant_id, 'refund_id', refund_id, 'token', token,
        'gateway_ref', gateway_ref
    );
    refund ledger.refund;
begin
    perform ledger.check_ids(call, merchant_id, refund_id);
    perform ledger.check_gateway_ref(call, gateway_ref);
    perform ledger.check_evidence(call, evidence);

    refund := ledger.lock_to_settle(call, array['sent', 'review'], true, true);
    if refund.state = 'sent' then
        return ledger.refund_as_move(
            refund, 'sent', 'already_confirmed', refund.fence, refund.gateway_ref, null, refund.changed_at
        );
    end if;
    if refund.state = 'review' then
        return ledger.refund_as_move(
            refund, 'review', 'review', refund.fence, refund.gateway_ref, 'already in review', refund.changed_at
        );
    end if;

    if ledger.evidence_agrees(evidence, refund.amount_minor, refund.currency) is false then
        return ledger.move_refund(
            call, refund, 'review', 'review', gateway_ref, 'the gateway names another amount or currency', evidence
        );
    end if;
    return ledger.move_refund(call, refund, 'sent', 'confirmed', gateway_ref, null, evidence);
end;
$$;

comment on function ledger.confirm_or_refuse(text, text, bigint, text, jsonb) is
    'Guard. Confirms a refund in the cases that aren''t plain. Refuses by check_ids, check_gateway_ref, check_evidence '
    'and lock_to_settle.';
