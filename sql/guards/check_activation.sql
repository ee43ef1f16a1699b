-- Make sure that a token may be activated here: resource and holder are well formed, and this transaction hasn't
-- been inside the resource's gate yet.
--
-- Activating after writing would raise the fence above one's own older writes, and two that do it deadlock.

create or replace function ledger.check_activation(call jsonb, resource text, holder text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform ledger.check_resource(call, resource);
    if coalesce(holder !~ '^[^[:cntrl:]:]+$' or length(holder) > 300, true) then
        perform ledger.refuse_argument(call, 'a holder is printable, without a colon, at most 300 characters');
    end if;
    if ledger.is_inside_gate(resource) then
        perform ledger.refuse_argument(
            call, 'this transaction has already presented a token or written under the resource; activate first'
        );
    end if;
end;
$$;

comment on function ledger.check_activation(jsonb, text, text) is
    'Guard. A token may be activated in this transaction. Refuses by refuse_argument.';
