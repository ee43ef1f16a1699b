-- Present several tokens, as {"resource": token, ...}, 500 at most; in the order of their resources, whatever the
-- order given, so that two that present the same ones don't wait for each other in a circle.
--
-- Refuses, first match wins:
--   LG304 BadArgument      not an object of at most 500 resources and whole numbers, or a resource is malformed
--   55P03                  an activation holds a gate longer than the limit
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG102, LG105, LG101    a token isn't the active one

create or replace function ledger.present_tokens(tokens jsonb)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'present_tokens');
    resources text[];
begin
    if coalesce(jsonb_typeof(tokens) <> 'object', true) then
        perform ledger.refuse_argument(call, 'tokens is an object of resources and their tokens');
    end if;
    select array_agg(t.key order by t.key collate "C") into resources from jsonb_each(tokens) as t;
    if cardinality(resources) > 500 then
        perform ledger.refuse_argument(call, 'at most 500 resources are presented together');
    end if;

    for position in 1..coalesce(cardinality(resources), 0) loop
        call := call || jsonb_build_object('resource', resources[position]);
        perform ledger.check_resource(call, resources[position]);
        if ledger.as_number(tokens -> resources[position]) is null then
            perform ledger.refuse_argument(call, 'a token is a whole number');
        end if;
    end loop;
    for position in 1..coalesce(cardinality(resources), 0) loop
        perform ledger.present_token(resources[position], ledger.as_number(tokens -> resources[position]));
    end loop;
end;
$$;

comment on function ledger.present_tokens(jsonb) is
    'Present several tokens for this transaction. Refuses: LG304, 55P03, LG106, LG102, LG105, LG101.';
