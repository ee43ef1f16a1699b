-- Draw a number for one attempt at a resource. Draw before taking the lease, activate after it.
--
-- The number comes from a sequence: no rollback gives it out twice, and drawing waits for no one. Its row says
-- that it was drawn; a draw whose transaction rolled back has none. A number at or below the barrier (after a
-- restore) is drawn past; the sequence is never set, for checking and setting would hand numbers out twice.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the resource isn't kind:name
--   LG106 RecoveryNeeded   the server was promoted or restored, or its sequence is far behind the barrier
--   LG107 Paused           an operator paused the resource or its kind

create or replace function ledger.draw_token(resource text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'draw_token', 'resource', resource);
    token bigint;
    barrier bigint;
begin
    perform ledger.check_resource(call, resource);
    perform ledger.check_server(call);
    perform ledger.check_paused(call, resource);
    perform ledger.keep_commit();

    select coalesce(max(f.barrier), 0) into barrier from ledger.fence as f where f.resource = draw_token.resource;
    for attempt in 1..1000 loop
        token := nextval('ledger.token_seq');
        exit when token > barrier;
    end loop;
    if token <= barrier then
        perform ledger.refuse_new_timeline(call, jsonb_build_object('drawn', token, 'barrier', barrier));
    end if;

    insert into ledger.draw (resource, token) values (resource, token);
    return token;
end;
$$;

comment on function ledger.draw_token(text) is
    'Draw a number for one attempt at a resource. Refuses: LG304, LG106, LG107.';
