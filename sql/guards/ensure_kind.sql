-- The row of a kind, made with the defaults if this is its first activation.
--
-- While another open transaction is making the same row this one doesn't wait for it: a job may run for hours.
-- It goes on with the defaults, and a later activation writes the row.

create or replace function ledger.ensure_kind(name text, lock text)
returns ledger.kind_limits
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    limits ledger.kind_limits := ledger.kind_or_defaults(name);
begin
    if not limits.known and pg_try_advisory_xact_lock(hashtextextended(name, 2)) then
        insert into ledger.kind (kind, lock) values (name, ensure_kind.lock)
        on conflict do nothing;
        limits := ledger.kind_or_defaults(name);
    end if;
    return limits;
end;
$$;

comment on function ledger.ensure_kind(text, text) is
    'Guard. A kind''s limits, its row made with the defaults when missing. Refuses nothing.';
