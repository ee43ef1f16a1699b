-- Make sure that a move which needs a reason has one, and that evidence is an object.

create or replace function ledger.check_reason(call jsonb, reason text, evidence jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(btrim(reason), '') = '' then
        perform ledger.refuse_argument(call, 'a reason is needed');
    end if;
    perform ledger.check_evidence(call, evidence);
end;
$$;

comment on function ledger.check_reason(jsonb, text, jsonb) is
    'Guard. There is a reason, and evidence is an object. Refuses by refuse_argument.';
