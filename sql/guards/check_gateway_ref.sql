-- Make sure that a gateway reference is there and printable.

create or replace function ledger.check_gateway_ref(call jsonb, gateway_ref text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(gateway_ref !~ '^[^[:cntrl:]]{1,255}$' or btrim(gateway_ref) = '', true) then
        perform ledger.refuse_argument(call, 'a gateway reference is printable, 1 to 255 characters');
    end if;
end;
$$;

comment on function ledger.check_gateway_ref(jsonb, text) is
    'Guard. A gateway reference is given and printable. Refuses by refuse_argument.';
