-- How a resource's protected tables are checked: its fence says, or, before it has one, its kind.

create or replace function ledger.resource_mode(resource text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    mode text;
begin
    select f.mode into mode from ledger.fence as f where f.resource = resource_mode.resource;
    if not found then
        select k.mode into mode from ledger.kind as k where k.kind = split_part(resource, ':', 1);
    end if;
    return coalesce(mode, 'enforce');
end;
$$;

comment on function ledger.resource_mode(text) is
    'Guard. off, shadow or enforce for a resource. Refuses nothing.';
