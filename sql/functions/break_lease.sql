-- Fence out whoever holds a resource, by a person: draw a token, activate it, and return it. The lease itself is
-- cleared afterwards, by whoever can reach it; the fence must be raised first.
--
-- holder is the one who is fenced out, as ledger.fence or the lease shows it; it is kept with who did it and why. Under
-- the token that is returned the person may go on: claim and settle what the broken holder left. A paused resource
-- isn't broken: there nothing can begin anyway, and what is out gets recorded.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the resource or the holder is malformed, actor or reason is missing, or this transaction has
--                          already written under the resource
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG107 Paused           an operator paused the resource or its kind
--   55P03                  older writes are still in flight

create or replace function ledger.break_lease(
    resource text,
    holder text,
    actor text default null,
    reason text default null
)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'break_lease', 'resource', resource, 'holder', holder);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    person text := format('person/%s/%s', pg_backend_pid(), left(replace(gen_random_uuid()::text, '-', ''), 16));
    token bigint;
begin
    perform ledger.check_activation(call, resource, holder);
    perform ledger.check_person(call, who, why);
    token := ledger.draw_token(resource);
    perform ledger.activate_token(resource, token, person);
    insert into ledger.event (event, kind, resource, token, holder, previous_holder, actor, reason)
    values ('lease_broken', split_part(resource, ':', 1), resource, token, person, holder, who, why);
    return token;
end;
$$;

comment on function ledger.break_lease(text, text, text, text) is
    'Fence out whoever holds a resource, by a person; returns the token. Refuses: LG304, LG106, LG107, 55P03.';
