-- Check a token in shadow or enforce, for a write to a protected table or when it is presented.
--
-- A write without a token is refused without a look at the gate: the fence doesn't matter to it, and it may hold rows
-- that a job under way needs, so it mustn't wait for that job.
--
-- Refuses, first match wins:
--   55P03                    an activation holds the gate longer than the limit
--   LG106 RecoveryNeeded     the server was promoted or restored
--   LG102, LG105, LG101      the token isn't the active one
--   LG103 UnfencedWrite      no token was presented for the resource

create or replace function ledger.check_in_mode(mode text, call jsonb, resource text, token bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    gate ledger.gate_pass;
begin
    if mode = 'shadow' then
        perform ledger.record_shadow(call, resource, token);
        return;
    end if;
    if token is null and call ? 'table' then
        perform ledger.check_server(call);
        perform ledger.refuse_unfenced_write(call || jsonb_build_object('resource', resource));
    end if;

    gate := ledger.pass_gate(call ->> 'function', resource, token);
    if gate.verdict is not null then
        perform ledger.refuse_token(
            call || jsonb_build_object('resource', resource, 'token', token), resource, token, gate
        );
    end if;
end;
$$;

comment on function ledger.check_in_mode(text, jsonb, text, bigint) is
    'Guard. Checks a token in shadow or enforce. Refuses by refuse_busy, refuse_new_timeline, refuse_token and '
    'refuse_unfenced_write.';
