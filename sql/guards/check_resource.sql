-- Make sure that a resource is well formed: kind:name, printable, without braces, 300 characters at most.
--
-- Braces mark the hash slot in the lease's key.

create or replace function ledger.check_resource(call jsonb, resource text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(resource !~ '^[^[:cntrl:]:{}]{1,100}:[^[:cntrl:]{}]+$' or length(resource) > 300, true) then
        perform ledger.refuse_argument(
            call, 'a resource is kind:name, printable, without braces, at most 300 characters'
        );
    end if;
end;
$$;

comment on function ledger.check_resource(jsonb, text) is
    'Guard. The resource is kind:name. Refuses by refuse_argument.';
