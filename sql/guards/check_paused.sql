-- Make sure that neither a resource nor its kind is paused.

create or replace function ledger.check_paused(call jsonb, resource text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    pause ledger.pause;
begin
    select p.* into pause
    from ledger.pause as p
    where p.target in (resource, split_part(resource, ':', 1))
    order by p.target
    limit 1;
    if found then
        perform ledger.refuse_paused(call, pause);
    end if;
end;
$$;

comment on function ledger.check_paused(jsonb, text) is
    'Guard. The resource isn''t paused. Refuses by refuse_paused.';
