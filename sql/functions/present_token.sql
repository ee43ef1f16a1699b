-- Present a token, for writes to protected tables in this transaction with one's own statements.
--
-- Takes the gate and checks, as each of those writes will do again. Several resources may be presented one after
-- the other, or by present_tokens at once.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the resource is malformed
--   55P03                  an activation holds the gate longer than the limit
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG102, LG105, LG101    the token isn't the active one

create or replace function ledger.present_token(resource text, token bigint)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'present_token', 'resource', resource, 'token', token);
begin
    perform ledger.check_resource(call, resource);
    perform ledger.check_fenced(call, resource, token);
    perform ledger.bind_token(resource, token);
end;
$$;

comment on function ledger.present_token(text, bigint) is
    'Present a token for this transaction''s writes to protected tables. '
    'Refuses: LG304, 55P03, LG106, LG102, LG105, LG101.';
