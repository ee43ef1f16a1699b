-- Make sure that a call names the work it is about: a resource, and an id of 1 to 300 printable characters.

create or replace function ledger.check_work(call jsonb, resource text, work_id text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform ledger.check_resource(call, resource);
    if coalesce(work_id ~ '[[:cntrl:]]' or btrim(work_id) = '' or length(work_id) > 300, true) then
        perform ledger.refuse_argument(call, 'work_id is 1 to 300 printable characters');
    end if;
end;
$$;

comment on function ledger.check_work(jsonb, text, text) is
    'Guard. The resource and the work''s id are well formed. Refuses by refuse_argument.';
