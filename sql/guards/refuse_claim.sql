-- Refuse a claim under the code that claim_outcome decided on.

create or replace function ledger.refuse_claim(
    call jsonb,
    code text,
    refund ledger.refund,
    gate ledger.gate_pass
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if code = 'LG101' then
        perform ledger.refuse_stale_token(
            call, 'row', gate.active, gate.holder, gate.activated_at, jsonb_build_object('row_token', refund.fence)
        );
    elsif code = 'LG202' then
        perform ledger.refuse_finished_refund(call, refund);
    else
        perform ledger.refuse_transition(call, refund);
    end if;
end;
$$;

comment on function ledger.refuse_claim(jsonb, text, ledger.refund, ledger.gate_pass) is
    'Guard. Refuses a claim by the guard of its code: LG101, LG202 or LG204.';
