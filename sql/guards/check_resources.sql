-- Check the tokens that this transaction presented for the resources of a write, in the order given.
--
-- The setting ledger.tokens says which were presented. Anybody can set it: it is input, not proof.
-- In shadow 500 resources of a write are looked at, as many as can be presented: enforce would have stopped before.
--
-- Refuses, first match wins: what check_in_mode refuses.

create or replace function ledger.check_resources(mode text, call jsonb, resources text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    tokens jsonb := ledger.setting_object('ledger.tokens');
    resource text;
begin
    foreach resource in array case mode when 'shadow' then resources[1:500] else resources end
    loop
        perform ledger.check_in_mode(mode, call, resource, ledger.as_number(tokens -> resource));
    end loop;
end;
$$;

comment on function ledger.check_resources(text, jsonb, text[]) is
    'Guard. Checks what was presented for several resources. Refuses by the guards of check_in_mode.';
