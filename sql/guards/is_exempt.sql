-- Whether an operator let this very transaction write to the table without a token.
--
-- The exemption is a row that only ledger_fn can write; a setting could be forged. Fenced writers take the table's
-- switch shared, so that none writes while an exempt transaction is open.

create or replace function ledger.is_exempt(call jsonb)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    table_oid oid := (call ->> 'relation')::oid;
begin
    if table_oid is null then
        return false;
    end if;
    if exists (
        select
        from ledger.exemption as x
        where x.transaction = pg_current_xact_id_if_assigned() and x.relation = table_oid
    ) then
        return true;
    end if;
    if not pg_try_advisory_xact_lock_shared(hashtextextended(table_oid::text, 5)) then
        perform ledger.wait_at_switch(call, hashtextextended(table_oid::text, 5));
    end if;
    return false;
end;
$$;

comment on function ledger.is_exempt(jsonb) is
    'Guard. Whether this transaction is exempt for the table. Refuses by refuse_busy.';
