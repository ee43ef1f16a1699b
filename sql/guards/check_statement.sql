-- Check a statement that touched the rows of these resources, in shadow or enforce.
--
-- Refuses, first match wins:
--   55P03   an exempt transaction is under way
--   and what check_in_mode refuses

create or replace function ledger.check_statement(
    mode text,
    operation text,
    relation oid,
    can_wait boolean,
    resources text[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb;
begin
    if (mode = 'enforce' and ledger.is_passed_at_once(relation, resources)) or ledger.is_exempt(relation) then
        return;
    end if;
    call := ledger.write_call('check_write', operation, relation);
    if mode = 'enforce' then
        perform ledger.pass_switch(call, relation, can_wait);
    end if;
    perform ledger.check_resources(mode, call, resources);
end;
$$;

comment on function ledger.check_statement(text, text, oid, boolean, text[]) is
    'Guard. Checks a statement in shadow or enforce. Refuses by refuse_busy and the guards of check_in_mode.';
