-- A kind's limits; for a kind that was never used, the defaults that its first activation will write.

create or replace function ledger.get_kind(kind text)
returns ledger.kind_limits
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return ledger.kind_or_defaults(kind);
end;
$$;

comment on function ledger.get_kind(text) is
    'A kind''s limits, or the defaults. Refuses nothing.';
