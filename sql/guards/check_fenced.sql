-- Check a write to a protected table, or a token that is presented, as the kind's mode says: off, shadow, enforce.
--
-- Shadow decides as enforce does, records what would have been refused, once for each transaction, resource and
-- code, and lets it through; it never waits, raises or sets a limit. While shadow or off, the kind's switch is held
-- shared until the transaction ends, so that a change of mode waits for it; while a change is under way, enforce.
--
-- Refuses, first match wins:
--   55P03                       an activation holds the gate longer than the limit
--   LG106 RecoveryNeeded        the server was promoted or restored
--   LG102, LG105, LG101         the token isn't the active one
--   LG103 UnfencedWrite         no token was presented for the resource

create or replace function ledger.check_fenced(call jsonb, resource text, token bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    gate ledger.gate_pass;
    mode text := ledger.resource_mode(resource);
begin
    if mode <> 'enforce' then
        mode := 'enforce';
        if pg_try_advisory_xact_lock_shared(hashtextextended(split_part(resource, ':', 1), 4)) then
            mode := ledger.resource_mode(resource);
        end if;
        if mode = 'shadow' then
            perform ledger.record_shadow(call, resource, token);
        end if;
        if mode <> 'enforce' then
            return;
        end if;
    end if;

    if ledger.is_exempt(call) then
        return;
    end if;
    gate := ledger.pass_gate(call ->> 'function', resource, token);
    if gate.verdict is null then
        return;
    end if;
    if token is null and call ? 'table' then
        perform ledger.refuse_unfenced_write(call);
    end if;
    perform ledger.refuse_token(call, resource, token, gate);
end;
$$;

comment on function ledger.check_fenced(jsonb, text, bigint) is
    'Guard. Checks a token as its kind''s mode says. Refuses by refuse_unfenced_write and refuse_token.';
