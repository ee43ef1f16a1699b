-- Present several tokens, as {"resource": token, ...}, 500 at most; in the order of their resources, whatever the
-- order given, so that two that present the same ones don't wait for each other in a circle.
--
-- Refuses, first match wins:
--   LG304 BadArgument      not an object of at most 500 resources and whole numbers
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
    pair record;
begin
    if coalesce(jsonb_typeof(tokens) <> 'object', true) then
        perform ledger.refuse_argument(call, 'tokens is an object of resources and their tokens');
    end if;
    if (select count(*) from jsonb_object_keys(tokens)) > 500 then
        perform ledger.refuse_argument(call, 'at most 500 resources are presented together');
    end if;
    for pair in
        select t.key as resource, ledger.as_number(t.value) as token
        from jsonb_each(tokens) as t
        order by t.key collate "C"
    loop
        perform ledger.present_token(pair.resource, pair.token);
    end loop;
end;
$$;

comment on function ledger.present_tokens(jsonb) is
    'Present several tokens for this transaction. Refuses: LG304, 55P03, LG106, LG102, LG105, LG101.';
