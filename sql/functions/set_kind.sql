-- Change a kind's limits, or where its leases live; make the kind when it doesn't exist. What is null stays as it
-- is; a transaction_limit of zero takes that limit away.
--
-- Takes effect with the next call of every process: the limits are copied to the kind's fences.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the kind's name is malformed, a limit isn't positive, the lock is neither redis nor
--                       advisory, the idle limit is longer than the lease, or actor or reason is missing

create or replace function ledger.set_kind(
    kind text,
    lock text default null,
    lease_ttl interval default null,
    idle_limit interval default null,
    lock_limit interval default null,
    transaction_limit interval default null,
    max_attempts integer default null,
    key_window interval default null,
    actor text default null,
    reason text default null
)
returns ledger.kind_limits
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'set_kind', 'kind', kind);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    before ledger.kind_limits;
    wanted ledger.kind_limits;
begin
    perform ledger.check_person(call, who, why);
    perform ledger.check_kind(call, kind);
    if lock not in ('redis', 'advisory') then
        perform ledger.refuse_argument(call, 'lock is redis or advisory');
    end if;

    perform from ledger.kind as k where k.kind = set_kind.kind for update;
    before := ledger.get_kind(kind);
    wanted := row(
        kind,
        coalesce(lock, before.lock),
        before.mode,
        coalesce(lease_ttl, before.lease_ttl),
        coalesce(idle_limit, before.idle_limit),
        coalesce(lock_limit, before.lock_limit),
        nullif(coalesce(transaction_limit, before.transaction_limit), interval '0'),
        coalesce(max_attempts, before.max_attempts),
        coalesce(key_window, before.key_window),
        true
    )::ledger.kind_limits;
    if least(wanted.lease_ttl, wanted.idle_limit, wanted.lock_limit, wanted.transaction_limit, wanted.key_window)
        < interval '1 millisecond' or wanted.max_attempts < 1
    then
        perform ledger.refuse_argument(call, 'limits are positive');
    end if;
    if greatest(wanted.lease_ttl, wanted.idle_limit, wanted.lock_limit, wanted.transaction_limit)
        > interval '24 days'
    then
        perform ledger.refuse_argument(call, 'lease, idle, lock and transaction limit are at most 24 days');
    end if;
    if wanted.idle_limit > wanted.lease_ttl then
        perform ledger.refuse_argument(
            call,
            format('the idle limit (%s) must not be longer than the lease (%s)', wanted.idle_limit, wanted.lease_ttl)
        );
    end if;
    if wanted = before then
        return wanted;
    end if;

    insert into ledger.kind (
        kind, lock, mode, lease_ttl, idle_limit, lock_limit, transaction_limit, max_attempts, key_window
    )
    values (
        wanted.kind, wanted.lock, wanted.mode, wanted.lease_ttl, wanted.idle_limit, wanted.lock_limit,
        wanted.transaction_limit, wanted.max_attempts, wanted.key_window
    )
    on conflict on constraint kind_pkey do update
    set lock = excluded.lock,
        lease_ttl = excluded.lease_ttl,
        idle_limit = excluded.idle_limit,
        lock_limit = excluded.lock_limit,
        transaction_limit = excluded.transaction_limit,
        max_attempts = excluded.max_attempts,
        key_window = excluded.key_window;

    update ledger.fence as f
    set idle_limit_ms = extract(epoch from wanted.idle_limit) * 1000,
        lock_limit_ms = extract(epoch from wanted.lock_limit) * 1000,
        transaction_limit_ms = extract(epoch from wanted.transaction_limit) * 1000,
        max_attempts = wanted.max_attempts,
        key_window = wanted.key_window
    where f.kind = set_kind.kind;

    insert into ledger.event (event, kind, actor, reason, detail)
    values ('kind_set', kind, who, why, jsonb_build_object('before', to_jsonb(before), 'after', to_jsonb(wanted)));
    return wanted;
end;
$$;

comment on function ledger.set_kind(
    text, text, interval, interval, interval, interval, integer, interval, text, text
) is
    'Change a kind''s limits or where its leases live. Refuses: LG304.';
