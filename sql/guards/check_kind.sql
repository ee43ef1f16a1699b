-- Make sure that a kind's name is well formed: what may stand before the colon of a resource.

create or replace function ledger.check_kind(call jsonb, kind text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(kind !~ '^[^[:cntrl:]:{}]{1,100}$', true) then
        perform ledger.refuse_argument(call, 'a kind is printable, without colon or braces, at most 100 characters');
    end if;
end;
$$;

comment on function ledger.check_kind(jsonb, text) is
    'Guard. A kind''s name is well formed. Refuses by refuse_argument.';
