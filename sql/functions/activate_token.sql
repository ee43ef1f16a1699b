-- Make a drawn token the only valid one of its resource. This raises the fence.
--
-- Call it after a lease operation that showed the lease to be one's own. It waits until every write under an
-- older token has ended, so that none commits afterwards. Every number drawn up to now becomes void, higher
-- ones too: whoever holds one was overtaken between its draw and its lease. Activating again by the same
-- holder is a no-op. The first activation of a resource makes its fence.
--
-- The transaction that activates holds the gate until it ends, so the idle limit bounds it as it bounds a write.
--
-- Refuses, first match wins:
--   LG304 BadArgument      the resource or the holder is malformed, or this transaction has already presented a
--                          token or written under the resource: activate before writing
--   55P03                  older writes are still in flight after idle limit, one second and lock limit
--   LG106 RecoveryNeeded   the server was promoted or restored
--   LG107 Paused           an operator paused the resource or its kind
--   LG102 TokenNotDrawn    nobody drew that number
--   LG101 StaleToken       it was superseded or voided, or is active under another holder

create or replace function ledger.activate_token(resource text, token bigint, holder text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'activate_token', 'resource', resource, 'token', token, 'holder', holder
    );
    kind ledger.kind_limits;
    fence ledger.fence;
    gate ledger.gate_pass;
    ended jsonb;
    last_drawn bigint;
begin
    perform ledger.check_activation(call, resource, holder);

    kind := ledger.ensure_kind(split_part(resource, ':', 1), 'redis');
    ended := ledger.close_gate(
        call,
        (extract(epoch from kind.idle_limit) * 1000)::integer,
        (extract(epoch from kind.lock_limit) * 1000)::integer
    );
    perform ledger.check_server(call);
    perform ledger.check_paused(call, resource);
    perform ledger.limit_transaction(
        (extract(epoch from kind.idle_limit) * 1000)::integer,
        (extract(epoch from kind.transaction_limit) * 1000)::integer
    );

    select f.* into fence from ledger.fence as f where f.resource = activate_token.resource for no key update;
    if fence.active = token and fence.holder = holder then
        return;
    end if;

    if token <= fence.barrier or not exists (
        select from ledger.draw as d where d.resource = activate_token.resource and d.token = activate_token.token
    ) then
        gate.active := fence.active;
        gate.barrier := fence.barrier;
        gate.holder := fence.holder;
        gate.activated_at := fence.activated_at;
        perform ledger.refuse_token(call, resource, token, gate);
    end if;

    -- Read again: set_kind may have gone by while this waited, and the fence's limits must be the newest.
    kind := ledger.kind_or_defaults(kind.kind);

    perform ledger.keep_commit();
    select s.last_value into last_drawn from ledger.token_seq as s;
    delete from ledger.draw as d where d.resource = activate_token.resource and d.token <= last_drawn;

    insert into ledger.fence (
        resource, kind, active, barrier, holder, activated_at,
        idle_limit_ms, lock_limit_ms, transaction_limit_ms, max_attempts, key_window
    )
    values (
        resource, kind.kind, token, last_drawn, holder, clock_timestamp(),
        extract(epoch from kind.idle_limit) * 1000, extract(epoch from kind.lock_limit) * 1000,
        extract(epoch from kind.transaction_limit) * 1000, kind.max_attempts, kind.key_window
    )
    on conflict on constraint fence_pkey do update
    set active = excluded.active,
        barrier = excluded.barrier,
        holder = excluded.holder,
        activated_at = excluded.activated_at,
        idle_limit_ms = excluded.idle_limit_ms,
        lock_limit_ms = excluded.lock_limit_ms,
        transaction_limit_ms = excluded.transaction_limit_ms,
        max_attempts = excluded.max_attempts,
        key_window = excluded.key_window;

    insert into ledger.event (event, kind, resource, token, holder, previous_token, previous_holder)
    values ('activated', kind.kind, resource, token, holder, fence.active, fence.holder);

    insert into ledger.event (event, kind, resource, token, holder, detail)
    select 'session_ended', kind.kind, activate_token.resource, activate_token.token, activate_token.holder, e.value
    from jsonb_array_elements(ended) as e;
end;
$$;

comment on function ledger.activate_token(text, bigint, text) is
    'Make a drawn token the only valid one of its resource. Refuses: LG304, 55P03, LG106, LG107, LG102, LG101.';
