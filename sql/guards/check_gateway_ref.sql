-- Make sure that a gateway reference is there and printable.

create or replace function ledger.check_gateway_ref(call jsonb, gateway_ref text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if ledger.gateway_ref_problem(gateway_ref) is not null then
        perform ledger.refuse_argument(call, ledger.gateway_ref_problem(gateway_ref));
    end if;
end;
$$;

comment on function ledger.check_gateway_ref(jsonb, text) is
    'Guard. A gateway reference is given and printable. Refuses by refuse_argument.';
