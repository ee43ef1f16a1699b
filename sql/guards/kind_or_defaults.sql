-- A kind's limits; for a kind that was never used, the defaults that its first activation will write.

create or replace function ledger.kind_or_defaults(name text)
returns ledger.kind_limits
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    limits ledger.kind_limits;
begin
    select k.kind, k.lock, k.mode, k.lease_ttl, k.idle_limit, k.lock_limit, k.transaction_limit,
        k.max_attempts, k.key_window, true
    into limits
    from ledger.kind as k
    where k.kind = name;

    if not found then
        limits := row(
            name, 'redis', 'enforce', interval '30 seconds', interval '10 seconds', interval '5 seconds',
            null, 5, interval '23 hours', false
        )::ledger.kind_limits;
    end if;
    return limits;
end;
$$;

comment on function ledger.kind_or_defaults(text) is
    'Guard. A kind''s limits, or the defaults. Refuses nothing.';
